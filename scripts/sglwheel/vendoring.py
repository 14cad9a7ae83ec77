"""Make a bundle: fetch what is missing, take only what the build reads, the same bytes every time."""

from __future__ import annotations

import json
import re
import shutil
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from email.parser import HeaderParser
from pathlib import Path

from sglwheel import console, files, pipeline, series
from sglwheel.bundle import ARCHIVE, MANIFEST, SCHEMA, Bundle
from sglwheel.errors import SourceError, ToolchainError
from sglwheel.files import Layout
from sglwheel.git import Git
from sglwheel.locks import locking, torchchoice
from sglwheel.mirrors import normal
from sglwheel.source import downloads, unpacked
from sglwheel.source.fetched import FetchedSource
from sglwheel.source.store import GitStore
from sglwheel.toolchain import wheels
from sglwheel.toolchain.pylocks import Pylocks
from sglwheel.types import CommitId

_TERMS = """# Under which terms the parts of this bundle may be passed on

The tool's authors grant nothing here: each part has its own terms. Read them before you pass the bundle on.
NVIDIA's packages are under NVIDIA's Software License Agreement and the CUDA Toolkit's supplement, which list
what may be redistributed, and how: https://docs.nvidia.com/cuda/eula/

"""


@dataclass
class _Git:
    """What is taken of one repository."""

    store: GitStore
    commits: set[CommitId] = field(default_factory=set)
    tags: dict[str, CommitId] = field(default_factory=dict)
    """What CMake calls a commit, where that is no commit id: only what no lock names is asked for by it."""
    blobs: set[str] = field(default_factory=set)


def vendor(layout: Layout, name: str, into: Path, overrides: Mapping[str, str] | None = None) -> Bundle:
    """Make or complete the bundle of a recipe; what is there already and right is left alone.

    `into` is a directory, or a file named `*.tar.zst`. Sources in `overrides` are left to the host that
    builds. Raises the error of the first stage that cannot be had.
    """
    # Git is started elsewhere, and would take a relative path from there.
    into = into.absolute()
    if not into.name.endswith(ARCHIVE):
        return _vendor(layout, name, into, overrides or {})
    made = _vendor(layout, name, layout.work / name / "bundle", overrides or {})
    with console.step(f"pack {into}"):
        made.pack(into)
    return made


def _vendor(layout: Layout, name: str, into: Path, overrides: Mapping[str, str]) -> Bundle:
    context = pipeline.Context.load(layout, name, pipeline.Options(overrides=overrides))
    recipe, mirrors = context.recipe, context.mirrors
    with console.step(f"source {recipe.source.git}"):
        every = context.kind.fetched(context.checkout, context.patch())
        found = list({(one.name, one.requested, one.content): one for one in every}.values())
    with console.step("wheels"):
        locks = locking.write_packages(recipe, layout, mirrors)
        python = torchchoice.python_of(recipe)
        wanted = {item.filename: item for lock in locks for item in wheels.of(lock, python)}
        received = wheels.keep(list(wanted.values()), layout, mirrors)
        console.detail(f"{console.counted(len(wanted), 'wheel')}, {console.format_bytes(received)} fetched")
    into.mkdir(parents=True, exist_ok=True)
    places: dict[str, str] = {}
    terms: dict[str, str] = {}
    with console.step(f"bundle {into}"):
        for item in wanted.values():
            path = wheels.stored(item, layout)
            if path is None:
                raise ToolchainError(f"{item.filename} went away while it was bundled", next="run it again")
            target = into / "wheels" / item.filename
            _place(path, target, item.sha256)
            places[item.url] = f"wheels/{item.filename}"
            terms[item.filename] = _wheel_terms(path)
        repositories: dict[str, _Git] = {}
        upstream = _repository(repositories, recipe.source.git, context)
        commit = recipe.source.commit
        upstream.commits.add(commit)
        touched = [file for patch in context.series.patches for file in patch.files]
        entries = upstream.store.entries(commit)
        upstream.blobs |= {
            entry.object
            for entry in entries
            if entry.kind == "blob"
            and (
                "/" not in entry.path
                or entry.path.startswith(f"{recipe.source.directory}/")
                or entry.path in touched
            )
        }
        terms[recipe.source.git] = "LICENSE of the repository"
        for one in found:
            if one.via == "override":
                continue
            _take(one, repositories, places, context, into)
            terms[one.name] = (
                ", ".join(path.name for path in one.license_files) or "no licence file at its top"
            )
        for url, taken in sorted(repositories.items()):
            places[url] = _pack(taken, into)
        copied = [*layout.recipes.glob(f"{name}.*"), *Pylocks.files_of(name, layout)]
        chain = series.load(layout, recipe.source.series, directory=recipe.source.directory)
        copied += [path for path in chain.directory.rglob("*") if path.is_file()]
        for path in copied:
            if path.is_file():
                _place(path, into / path.relative_to(layout.root), files.sha256(path))
        lines = "".join(f"- {key}: {text}\n" for key, text in sorted(terms.items()))
        files.write_atomic(into / "LICENSES.md", _TERMS + lines)
        _prune(into, places)
        return _seal(into, name, places)


def _prune(into: Path, places: Mapping[str, str]) -> None:
    """Drop what an earlier run put there for other locks."""
    wanted = {into / path for path in places.values()}
    for pattern in ("wheels/*", "git/*", "urls/*/*"):
        for path in into.glob(pattern):
            if path not in wanted:
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def _seal(into: Path, name: str, places: dict[str, str]) -> Bundle:
    hashes = {
        str(path.relative_to(into)): files.sha256_once(path)
        for path in sorted(into.rglob("*"))
        if path.is_file() and path.name != MANIFEST and not path.name.endswith(".part")
    }
    manifest = {"schema": SCHEMA, "recipe": name, "places": dict(sorted(places.items())), "files": hashes}
    files.write_atomic(into / MANIFEST, json.dumps(manifest, indent=1, sort_keys=True) + "\n")
    return Bundle.open(into)


def _repository(known: dict[str, _Git], url: str, context: pipeline.Context) -> _Git:
    # One repository goes by several spellings of its url, and is one directory of the bundle.
    url = normal(url)
    if url not in known:
        known[url] = _Git(GitStore.open(url, context.layout, context.mirrors))
    return known[url]


def _take(
    one: FetchedSource, known: dict[str, _Git], places: dict[str, str], context: pipeline.Context, into: Path
) -> None:
    if one.commit is None:
        assert one.sha256 is not None
        archive = downloads.archive_of(one.sha256, context.layout)
        name = f"urls/{one.sha256}/{one.url.rpartition('/')[2]}"
        _place(archive, into / name, one.sha256)
        places[one.url] = name
        return
    forge = downloads.forge_archive(one.url)
    inner = {piece.path: piece for piece in one.submodules}
    taken = _repository(known, forge[0] if forge else one.url, context)
    asked = forge[1] if forge else one.requested
    if asked != one.commit:
        taken.tags[asked] = CommitId.parse(one.commit)
    _files(taken, one.commit, one.path, inner)
    for piece in one.submodules:
        _files(_repository(known, piece.url, context), piece.commit, one.path / piece.path, {})


def _files(taken: _Git, commit: str, root: Path, without: Iterable[str]) -> None:
    """Take the blobs of what was exported, and all CMake files: finding the sources reads them."""
    inside = tuple(f"{path}/" for path in without)
    present = {path for path in unpacked.contents(root) if not (inside and path.startswith(inside))}
    wanted = CommitId.parse(commit)
    taken.store.commit(wanted)
    taken.commits.add(wanted)
    taken.blobs |= {
        entry.object
        for entry in taken.store.entries(commit)
        if entry.kind == "blob"
        and (entry.path in present or entry.path.endswith((".cmake", "CMakeLists.txt", ".gitmodules")))
    }


def _pack(taken: _Git, into: Path) -> str:
    """One pack with exactly these objects, as a bare repository that admits to lacking the rest."""
    store = taken.store
    store.objects(taken.blobs)
    ids = set(taken.blobs)
    shallow: list[str] = []
    for commit in sorted(taken.commits):
        listing = ("rev-list", "--objects", "--no-object-names", "--filter=blob:none", "--max-count=1")
        ids |= set(store.git.run(*listing, commit).stdout.split())
        shallow.append(commit)
    listed = "".join(f"{item}\n" for item in sorted(ids))
    names = {f"sglwheel/{commit}": commit for commit in sorted(taken.commits)}
    names |= {f"tags/{tag}": commit for tag, commit in sorted(taken.tags.items())}
    state = files.digest(listed + "".join(f"{name} {commit}\n" for name, commit in names.items()))
    path = into / "git" / store.git.path.name
    note = path / "objects.sha256"
    if not (note.is_file() and note.read_text() == state):
        shutil.rmtree(path, ignore_errors=True)
        git = Git.init(path)
        pack = path / "objects" / "pack"
        pack.mkdir(parents=True, exist_ok=True)
        settings = ("-c", "pack.threads=1", "-c", "core.compression=6")
        words = (
            "pack-objects",
            "--quiet",
            "--no-reuse-delta",
            "--window=10",
            "--depth=50",
            str(pack / "pack"),
        )
        done = store.git.run(*settings, *words, input=listed.encode(), what="git pack-objects")
        (pack / f"pack-{done.stdout.strip()}.promisor").write_text("")
        for name, commit in names.items():
            reference = path / "refs" / name
            reference.parent.mkdir(parents=True, exist_ok=True)
            reference.write_text(f"{commit}\n")
        (path / "shallow").write_text("".join(f"{commit}\n" for commit in shallow))
        for key, value in (
            ("core.repositoryFormatVersion", "1"),
            ("extensions.partialClone", "origin"),
            ("remote.origin.url", store.url),
            ("remote.origin.promisor", "true"),
        ):
            git.run("config", key, value)
        note.write_text(state)
    return f"git/{path.name}"


def _place(source_path: Path, target: Path, sha256: str) -> None:
    if target.is_file() and files.sha256_once(target) == sha256:
        return
    if not source_path.is_file():
        raise SourceError(f"{target.name} is not in the store", where={"file": str(source_path)})
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    part = target.with_name(f"{target.name}.part")
    part.unlink(missing_ok=True)
    if target.suffix == ".whl":
        files.link(source_path, part)
    else:
        shutil.copyfile(source_path, part)
    if files.sha256_once(part) != sha256:
        raise SourceError(
            f"{target.name} has other content than its hash says", where={"file": str(source_path)}
        )
    part.replace(target)


def _wheel_terms(path: Path) -> str:
    """What a wheel's metadata says of its licence."""
    with zipfile.ZipFile(path) as container:
        names = [one for one in container.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", one)]
        text = container.read(names[0]).decode("utf-8", "replace") if names else ""
    metadata = HeaderParser().parsestr(text)
    said = str(metadata.get("License-Expression") or metadata.get("License") or "").strip()
    if not said or len(said) > 100:
        every = [str(one) for one in metadata.get_all("Classifier") or ()]
        said = ", ".join(one.rpartition(" :: ")[2] for one in every if one.startswith("License ::"))
    return said or "its metadata names none"
