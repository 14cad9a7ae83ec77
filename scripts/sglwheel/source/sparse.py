"""Files of a stored commit as a directory: only what a build reads, submodules where it reads them."""

from __future__ import annotations

import hashlib
import json
import os
import posixpath
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sglwheel.errors import SourceError
from sglwheel.files import Layout
from sglwheel.git import Git
from sglwheel.mirrors import Mirrors
from sglwheel.source.store import Entry, GitStore
from sglwheel.types import CommitId

# A quoted include that leaves its own directory: the compiler looks there first.
_INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*"([^"\n]*\.\./[^"\n]+)"', re.MULTILINE)
_CODE = frozenset(
    {".h", ".hpp", ".hh", ".hxx", ".cuh", ".cu", ".c", ".cc", ".cpp", ".cxx", ".inl", ".inc", ".ipp"}
)
# Pictures and the like of documentation, a third of what a small project weighs: no compiler reads them.
_SHOWN = frozenset(
    {".gif", ".ico", ".ipynb", ".jpeg", ".jpg", ".mp4", ".pdf", ".png", ".pptx", ".svg", ".webp"}
)
_LICENSE = re.compile(r"(licen[cs]e|copying|notice|authors|thirdparty|third[_-]party)", re.IGNORECASE)


@dataclass(frozen=True)
class Request:
    """What is wanted of a commit: paths (`.` is all that a build can read), and submodules beside them."""

    paths: frozenset[str]
    submodules: tuple[str, ...] = ()


@dataclass(frozen=True)
class Piece:
    """One repository's part of an exported directory; `path` is empty for the outermost one."""

    path: str
    url: str
    commit: str
    tree: str
    """The commit's whole tree."""
    content: str
    """The tree of what was exported."""


def export(
    store: GitStore,
    commit: CommitId,
    request: Request,
    into: Path,
    layout: Layout,
    mirrors: Mirrors,
    *,
    prefix: str = "",
) -> tuple[tuple[Piece, ...], int]:
    """Write the wanted files below `into`; return what they are and the bytes received."""
    received = store.commit(commit)
    entries = {entry.path: entry for entry in store.entries(commit)}
    links = {path: entry for path, entry in entries.items() if entry.kind == "commit"}
    inner = _submodule_paths(request, links)
    chosen = _choose(request.paths, entries)
    written: set[str] = set()
    while new := chosen - written:
        received += store.objects(entries[path].object for path in new)
        _checkout(store, [entries[path] for path in sorted(new)], into)
        written |= new
        chosen |= _included(new, entries, into)
    content = _write_tree(store, [entries[path] for path in sorted(written)])
    pieces = [Piece(prefix, store.url, commit, store.git.tree(commit), content)]
    if inner:
        urls = _submodule_urls(store, commit)
        for path, paths in sorted(inner.items()):
            if path not in urls:
                raise SourceError(
                    f"submodule {path} has no url in .gitmodules", where={"commit": commit, "url": store.url}
                )
            child = GitStore.open(_absolute(store.url, urls[path]), layout, mirrors)
            wanted, inside = CommitId.parse(links[path].object), posixpath.join(prefix, path)
            request = Request(frozenset(paths))
            more, count = export(child, wanted, request, into / path, layout, mirrors, prefix=inside)
            pieces += more
            received += count
    return tuple(pieces), received


def identity(pieces: Sequence[Piece]) -> str:
    """One id for everything that was exported: a tree id, or a hash over those of all pieces."""
    if len(pieces) == 1:
        return pieces[0].content
    text = json.dumps([[piece.path, piece.content] for piece in pieces])
    return hashlib.sha256(text.encode()).hexdigest()


def license_files(root: Path, pieces: Sequence[Piece] = ()) -> tuple[Path, ...]:
    """Licences and notices at the top of each piece."""
    tops = [root / piece.path for piece in pieces] or [root]
    found = (item for top in tops for item in sorted(top.iterdir()) if item.is_file())
    return tuple(item for item in found if _LICENSE.match(item.name))


def _submodule_paths(request: Request, links: Mapping[str, Entry]) -> dict[str, set[str]]:
    inner: dict[str, set[str]] = {}
    for path in links:
        if path in request.submodules:
            inner.setdefault(path, set()).add(".")
        for wanted in request.paths:
            if wanted == path:
                inner.setdefault(path, set()).add(".")
            elif wanted.startswith(f"{path}/"):
                inner.setdefault(path, set()).add(wanted.removeprefix(f"{path}/"))
    return inner


def _choose(paths: Iterable[str], entries: Mapping[str, Entry]) -> set[str]:
    blobs = [path for path, entry in entries.items() if entry.kind == "blob" and not _shown(path)]
    # Licences, versions and the like lie at the top and cost little.
    chosen = {path for path in blobs if "/" not in path}
    for path in paths:
        if path == ".":
            return set(blobs)
        if path in entries and entries[path].kind == "blob":
            path = posixpath.dirname(path)
        if path:
            chosen |= {blob for blob in blobs if blob.startswith(f"{path}/")}
    return chosen


def _shown(path: str) -> bool:
    return posixpath.splitext(path)[1].lower() in _SHOWN


def _included(paths: Iterable[str], entries: Mapping[str, Entry], root: Path) -> set[str]:
    """Files beside those that code includes from directories nobody named."""
    directories: set[str] = set()
    for path in paths:
        if posixpath.splitext(path)[1] not in _CODE or entries[path].mode == "120000":
            continue
        for match in _INCLUDE.finditer((root / path).read_bytes()):
            target = posixpath.normpath(posixpath.join(posixpath.dirname(path), os.fsdecode(match[1])))
            if target in entries and entries[target].kind == "blob":
                directories.add(posixpath.dirname(target))
    return {
        path for path in entries if entries[path].kind == "blob" and posixpath.dirname(path) in directories
    }


def _index(store: GitStore, entries: Sequence[Entry], index: Path) -> dict[str, str]:
    env = {"GIT_INDEX_FILE": str(index)}
    lines = "".join(f"{entry.mode} {entry.object}\t{entry.path}\0" for entry in entries)
    store.git.run("update-index", "-z", "--index-info", input=lines.encode(), env=env)
    return env


def _checkout(store: GitStore, entries: Sequence[Entry], into: Path) -> None:
    into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        env = _index(store, entries, Path(scratch) / "index")
        words = (f"--git-dir={store.git.path}", f"--work-tree={into}", "checkout-index", "--all", "--quiet")
        Git(into).run(*words, env=env)


def _write_tree(store: GitStore, entries: Sequence[Entry]) -> str:
    with tempfile.TemporaryDirectory() as scratch:
        env = _index(store, entries, Path(scratch) / "index")
        return store.git.run("write-tree", "--missing-ok", env=env).stdout.strip()


def _submodule_urls(store: GitStore, commit: CommitId) -> dict[str, str]:
    done = store.git.run("config", "-z", f"--blob={commit}:.gitmodules", "--list", accept=(0, 1, 128))
    values = dict(item.split("\n", 1) for item in done.stdout.split("\0") if "\n" in item)
    names = {
        key.removeprefix("submodule.").removesuffix(".path"): value
        for key, value in values.items()
        if key.endswith(".path")
    }
    return {
        path: values[f"submodule.{name}.url"]
        for name, path in names.items()
        if f"submodule.{name}.url" in values
    }


def _absolute(base: str, url: str) -> str:
    if not url.startswith(("./", "../")):
        return url
    base = base.rstrip("/")
    while url.startswith(("./", "../")):
        if url.startswith("../"):
            base = base.rpartition("/")[0]
            url = url[3:]
        else:
            url = url[2:]
    return f"{base}/{url}"
