"""One fetched source at a time: where it comes from, what is taken of it, and where it is kept."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sglwheel import downloads, export, files, overrides
from sglwheel.errors import SourceError
from sglwheel.export import Piece, Request
from sglwheel.fetchcontent import Declaration, LocalTree, Plan, Tree
from sglwheel.files import Layout
from sglwheel.git import Git
from sglwheel.mirrors import Mirrors, local_path
from sglwheel.overrides import Override
from sglwheel.recipe import Recipe
from sglwheel.sourcelock import Pin
from sglwheel.store import GitStore
from sglwheel.types import CommitId

# Part of what names an exported directory: raise it when the same request would give other files.
_FORMAT = 1


@dataclass(frozen=True)
class FetchedSource:
    """A source in the store; builds get copies of `path`."""

    name: str
    kind: str
    url: str
    requested: str
    commit: str | None
    sha256: str | None
    tree: str | None
    """Tree id of the whole commit or directory."""
    content: str
    """Identity of exactly what `path` holds: other files of the same commit give another one."""
    path: Path
    via: str
    submodules: tuple[Piece, ...] = ()
    bytes_fetched: int = 0
    license_files: tuple[Path, ...] = ()


@dataclass(frozen=True)
class _Place:
    """A declaration after overrides, lock and mirrors had their say."""

    declaration: Declaration
    via: str
    store: GitStore | None = None
    commit: CommitId | None = None
    directory: Path | None = None
    sha256: str | None = None
    received: int = 0


@dataclass
class Fetcher:
    """Fetches what a plan names; one per run, safe to use from several threads."""

    recipe: Recipe
    layout: Layout
    mirrors: Mirrors
    overrides: Mapping[str, Override]
    pins: Mapping[str, Pin]
    _places: dict[str, _Place] = field(default_factory=dict)

    def project(self, declaration: Declaration) -> Tree:
        """The files of a source whose own CMake takes part."""
        place = self._place(declaration)
        if place.directory is not None:
            return LocalTree(place.directory)
        assert place.store is not None and place.commit is not None
        return _GitTree.open(place.store, place.commit)

    def fetch(self, declaration: Declaration, plan: Plan) -> FetchedSource:
        """Have one source in the store. Raises SourceError."""
        try:
            place = self._place(declaration)
            if place.store is not None:
                return self._exported(place, plan)
        except SourceError as error:
            raise SourceError(
                f"{declaration.name}: {error.what}",
                where={"declared": declaration.where, **error.where},
                next=error.next,
            ) from error
        assert place.directory is not None
        tree = overrides.tree_id(place.directory) if place.via == "override" else None
        licenses = export.license_files(place.directory, [Piece("", declaration.url, "", "", "")])
        return FetchedSource(
            declaration.name, declaration.kind, declaration.url, declaration.requested, None, place.sha256, tree,
            place.sha256 or tree or "", place.directory, place.via, (), place.received, licenses,
        )  # fmt: skip

    def pin(self, source: FetchedSource) -> Pin:
        """What the lock says of a source."""
        return Pin(
            source.name, source.kind, source.url, source.requested, source.commit, source.tree, source.sha256
        )

    def _place(self, declaration: Declaration) -> _Place:
        if declaration.name not in self._places:
            override = self.overrides.get(declaration.name)
            if override is not None:
                place = self._overridden(declaration, override)
            else:
                pin = self._pin(declaration)
                place = (
                    self._git(declaration, pin) if declaration.kind == "git" else self._url(declaration, pin)
                )
            self._places[declaration.name] = place
        return self._places[declaration.name]

    def _pin(self, declaration: Declaration) -> Pin | None:
        pin = self.pins.get(declaration.name)
        if pin is None:
            return None
        if (pin.kind, pin.url, pin.requested) != (declaration.kind, declaration.url, declaration.requested):
            raise SourceError(
                f"{declaration.name} is not what the lock says",
                where={
                    declaration.where: f"{declaration.url} {declaration.requested}".strip(),
                    f"recipes/{self.recipe.id}.lock": f"{pin.url} {pin.requested}".strip(),
                },
                next=f"sglwheel lock {self.recipe.id}",
            )
        return pin

    def _git(self, declaration: Declaration, pin: Pin | None) -> _Place:
        store = GitStore.open(declaration.url, self.layout, self.mirrors)
        commit = self._commit(store, declaration.requested, pin)
        received = store.commit(commit)
        return _Place(declaration, self._via(declaration.url), store, commit, received=received)

    def _url(self, declaration: Declaration, pin: Pin | None) -> _Place:
        sha256 = pin.sha256 if pin else None
        forge = downloads.forge_archive(declaration.url)
        if forge and self.mirrors.mapped(forge[0]) and not self._has_file(declaration, sha256):
            repository, revision = forge
            store = GitStore.open(repository, self.layout, self.mirrors)
            commit = self._commit(store, revision, pin)
            received = store.commit(commit)
            tree = store.git.tree(commit)
            if pin and pin.tree and pin.tree != tree:
                raise SourceError(
                    f"the tree of {commit} is {tree}, the lock says {pin.tree}", where={"url": repository}
                )
            return _Place(declaration, "tree-of-commit", store, commit, received=received)
        download = downloads.download(
            declaration.urls, declaration.requested, sha256, self.layout, self.mirrors
        )
        return _Place(
            declaration, self._via(declaration.url), directory=download.path, sha256=download.sha256,
            received=download.received,
        )  # fmt: skip

    def _has_file(self, declaration: Declaration, sha256: str | None) -> bool:
        algorithm, _, digest = declaration.requested.partition("=")
        known = digest.lower() if algorithm.upper() == "SHA256" else sha256
        if known and downloads.stored(known, self.layout):
            return True
        return any(
            (path := local_path(candidate)) is not None and path.is_file()
            for candidate in self.mirrors.mapped(declaration.url)
        )

    def _overridden(self, declaration: Declaration, override: Override) -> _Place:
        if override.path is not None and override.revision is None:
            return _Place(declaration, "override", directory=override.path)
        if override.path is not None:
            assert override.revision is not None
            commit = Git(override.path).resolve(override.revision)
            store = GitStore.open(declaration.url, self.layout, self.mirrors, first=[str(override.path)])
        else:
            assert override.revision is not None
            forge = downloads.forge_archive(declaration.url)
            url = forge[0] if forge else declaration.url
            store = GitStore.open(url, self.layout, self.mirrors)
            commit = self._commit(store, override.revision, None)
        received = store.commit(commit)
        return _Place(declaration, "override", store, commit, received=received)

    def _commit(self, store: GitStore, requested: str, pin: Pin | None) -> CommitId:
        if pin and pin.commit:
            return CommitId.parse(pin.commit)
        try:
            return CommitId.parse(requested)
        except ValueError:
            return store.resolve(requested)

    def _via(self, url: str) -> str:
        return "mirror" if self.mirrors.mapped(url) else "origin"

    def _request(self, declaration: Declaration, plan: Plan) -> Request:
        paths = set(plan.references.get(declaration.name, ()))
        if declaration.name in plan.projects:
            paths.add(".")
        for name, more in self.recipe.source.sparse.items():
            if name.lower() == declaration.name:
                paths.update(more)
        return Request(frozenset(paths), declaration.submodules or ())

    def _exported(self, place: _Place, plan: Plan) -> FetchedSource:
        store, commit, declaration = place.store, place.commit, place.declaration
        assert store is not None and commit is not None
        request = self._request(declaration, plan)
        key = hashlib.sha256(
            json.dumps(
                [_FORMAT, store.url, commit, sorted(request.paths), sorted(request.submodules)]
            ).encode()
        ).hexdigest()
        root = files.cache_directory(self.layout.cache) / "sources"
        receipt = root / f"{declaration.name}-{key[:16]}.json"
        facts = _reuse(receipt, root)
        received = place.received
        if facts is None:
            with files.locked(receipt.with_suffix(".lock"), failure=SourceError, what=declaration.name):
                facts = _reuse(receipt, root)
                if facts is None:
                    facts, more = self._export(store, commit, request, root, declaration.name)
                    received += more
                    files.write_atomic(receipt, json.dumps(facts, indent=1))
        pieces = tuple(Piece(**item) for item in facts["pieces"])
        path = root / facts["directory"]
        return FetchedSource(
            declaration.name, declaration.kind, declaration.url, declaration.requested, commit, None, pieces[0].tree,
            export.identity(pieces), path, place.via, pieces[1:], received, export.license_files(path, pieces),
        )  # fmt: skip

    def _export(
        self, store: GitStore, commit: CommitId, request: Request, root: Path, name: str
    ) -> tuple[dict[str, Any], int]:
        scratch = (
            root
            / f".{name}-{os.getpid()}-{hashlib.sha256(str(sorted(request.paths)).encode()).hexdigest()[:8]}"
        )
        shutil.rmtree(scratch, ignore_errors=True)
        try:
            pieces, received = export.export(store, commit, request, scratch, self.layout, self.mirrors)
            _freeze(scratch, store.git.date(commit).timestamp())
            directory = f"{name}-{export.identity(pieces)[:16]}"
            target = root / directory
            if target.is_dir() and _state(target) != _state(scratch):
                # Somebody edited the store: builds get what the id says.
                shutil.rmtree(target)
            if not target.is_dir():
                scratch.rename(target)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        return {
            "directory": directory,
            "state": _state(target),
            "pieces": [asdict(item) for item in pieces],
        }, received


@dataclass(frozen=True)
class _GitTree:
    """CMake files of a stored commit."""

    store: GitStore
    commit: CommitId
    paths: frozenset[str]

    @classmethod
    def open(cls, store: GitStore, commit: CommitId) -> _GitTree:
        entries = [
            entry
            for entry in store.entries(commit)
            if entry.kind == "blob"
            and (entry.path.endswith(".cmake") or entry.path.rpartition("/")[2] == "CMakeLists.txt")
        ]
        store.objects(entry.object for entry in entries)
        return cls(store, commit, frozenset(entry.path for entry in entries))

    def read(self, path: str) -> str | None:
        return self.store.git.read(self.commit, path) if path in self.paths else None


def _reuse(receipt: Path, root: Path) -> dict[str, Any] | None:
    """What a receipt says, if the directory is still as it was."""
    try:
        facts: dict[str, Any] = json.loads(receipt.read_text())
        unchanged = _state(root / facts["directory"]) == facts["state"]
    except (OSError, ValueError, KeyError):
        return None
    return facts if unchanged else None


def _freeze(root: Path, moment: float) -> None:
    """Make files read-only, with times that are the same whenever they are exported."""
    for directory, _, names in os.walk(root):
        for name in names:
            path = Path(directory, name)
            if not path.is_symlink():
                path.chmod(0o555 if path.stat().st_mode & 0o100 else 0o444)
            os.utime(path, (moment, moment), follow_symlinks=False)


def _state(root: Path) -> str:
    """A hash over names, sizes, modes and times: an edit in place changes it."""
    digest = hashlib.sha256()
    if not root.is_dir():
        raise FileNotFoundError(root)
    for directory, directories, names in os.walk(root):
        directories.sort()
        for name in sorted(names):
            facts = Path(directory, name).lstat()
            line = f"{directory[len(str(root)) :]}/{name}\0{facts.st_size}\0{facts.st_mode:o}\0{facts.st_mtime_ns}\n"
            digest.update(line.encode("utf-8", "surrogateescape"))
    return digest.hexdigest()
