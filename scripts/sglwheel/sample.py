"""The embedded sample upstream: plain trees replayed into git repositories whose commit ids never change."""

from __future__ import annotations

import io
import os
import tarfile
import tomllib
from pathlib import Path
from typing import Literal

import pydantic
from pydantic import AwareDatetime, BaseModel, ConfigDict

from sglwheel import files, process
from sglwheel.errors import SourceError

# Paths inside a tree to their bytes; modes are constant (100644), so the host's umask cannot matter.
Tree = dict[str, bytes]


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Move(_Table):
    """A file or directory that goes elsewhere."""

    source: str
    target: str


class Replacement(_Table):
    """A text that stands exactly once in a file."""

    file: str
    old: str
    new: str


class Commit(_Table):
    """One commit: moves, deletions, files laid over, and replacements, in this order."""

    message: str
    date: AwareDatetime
    moves: tuple[Move, ...] = ()
    deletes: tuple[str, ...] = ()
    overlay: str | None = None
    replacements: tuple[Replacement, ...] = ()


class Repository(_Table):
    """A linear history."""

    url: str
    commits: tuple[Commit, ...]


class Archive(_Table):
    """A tree offered as an uncompressed tar: compressors differ between hosts, tar does not."""

    url: str
    tree: str
    prefix: str
    date: AwareDatetime


class History(_Table):
    """What `history.toml` describes."""

    schema_: Literal[1] = pydantic.Field(alias="schema")
    author: str
    branch: str
    repositories: tuple[Repository, ...]
    archives: tuple[Archive, ...] = ()


def load(directory: Path) -> History:
    """Read `history.toml` in `directory`. Raises SourceError."""
    path = directory / "history.toml"
    try:
        # JSON mode: in strict mode a TOML array would not do for a tuple.
        text = pydantic.TypeAdapter(object).dump_json(tomllib.loads(path.read_text("utf-8")))
        return History.model_validate_json(text)
    except (OSError, tomllib.TOMLDecodeError, pydantic.ValidationError) as error:
        raise SourceError(f"no usable history: {error}", where={"file": str(path)}) from error


def replay(directory: Path, into: Path) -> dict[str, Path]:
    """Create every repository (bare) and archive below `into`; return where each url's content lies.

    Repeating it, also over an older history, converges. Raises SourceError where an edit has no effect.
    """
    history = load(directory)
    result: dict[str, Path] = {}
    for repository in history.repositories:
        bare = into / repository.url.rpartition("/")[2]
        _import(fast_import_stream(directory, history, repository), history.branch, bare)
        result[repository.url] = bare
    for archive in history.archives:
        path = into / archive.url.rpartition("/")[2]
        files.write_atomic(path, _tar(directory, archive))
        result[archive.url] = path
    return result


def fast_import_stream(directory: Path, history: History, repository: Repository) -> bytes:
    """The repository as input of `git fast-import`: each commit with its whole tree."""
    out = io.BytesIO()
    tree: Tree = {}
    for commit in repository.commits:
        tree = _next_tree(directory, tree, commit)
        who = f"{history.author} {commit.date.timestamp():.0f} +0000"
        out.write(f"commit refs/heads/{history.branch}\nauthor {who}\ncommitter {who}\n".encode())
        out.write(_data(commit.message.strip().encode() + b"\n") + b"deleteall\n")
        for path, content in sorted(tree.items()):
            out.write(f"M 100644 inline {path}\n".encode() + _data(content))
        out.write(b"\n")
    out.write(b"done\n")
    return out.getvalue()


def _next_tree(directory: Path, tree: Tree, commit: Commit) -> Tree:
    tree = dict(tree)
    for move in commit.moves:
        for path in _matching(tree, move.source):
            tree[move.target + path.removeprefix(move.source)] = tree.pop(path)
    for name in commit.deletes:
        for path in _matching(tree, name):
            del tree[path]
    if commit.overlay is not None:
        tree.update(_read(directory / commit.overlay))
    for edit in commit.replacements:
        old, content = edit.old.encode(), tree.get(edit.file, b"")
        if content.count(old) != 1:
            where = {"commit": commit.message.partition("\n")[0], "file": edit.file, "text": edit.old}
            raise SourceError(f"the text to replace stands {content.count(old)} times, not once", where=where)
        tree[edit.file] = content.replace(old, edit.new.encode())
    return tree


def _matching(tree: Tree, name: str) -> list[str]:
    paths = [path for path in tree if path == name or path.startswith(f"{name}/")]
    if not paths:
        raise SourceError(f"the history moves or deletes {name}, which is not there")
    return paths


def _read(root: Path) -> Tree:
    # Test runners and linters leave caches wherever there is Python.
    tree = {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and not any(part == "__pycache__" or part.endswith("_cache") for part in path.parts)
    }
    if not tree:
        raise SourceError(f"no files in {root}")
    return tree


def _data(content: bytes) -> bytes:
    return b"data %d\n%b\n" % (len(content), content)


def _import(stream: bytes, branch: str, bare: Path) -> None:
    # A user's configuration could sign, hook or rename; nothing of it may reach the ids.
    environment = {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": os.devnull,
        "LC_ALL": "C",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
    }
    bare.parent.mkdir(parents=True, exist_ok=True)
    here = ["-C", str(bare)]
    for words, sent in (
        (
            [
                "init",
                "-q",
                "--bare",
                "--template=",
                "--object-format=sha1",
                f"--initial-branch={branch}",
                str(bare),
            ],
            None,
        ),
        # What a public forge allows: blobless clones, and fetching any commit by its id.
        ([*here, "config", "uploadpack.allowFilter", "true"], None),
        ([*here, "config", "uploadpack.allowAnySHA1InWant", "true"], None),
        ([*here, "fast-import", "--quiet", "--done", "--force"], stream),
    ):
        process.run(["git", *words], failure=SourceError, env=environment, input=sent, what="sample upstream")


def _tar(directory: Path, archive: Archive) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for path, content in sorted(_read(directory / archive.tree).items()):
            member = tarfile.TarInfo(f"{archive.prefix}/{path}")
            member.size, member.mtime, member.mode = len(content), int(archive.date.timestamp()), 0o644
            tar.addfile(member, io.BytesIO(content))
    return out.getvalue()
