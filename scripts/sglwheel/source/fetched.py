"""One fetched source at a time: where it comes from, and what is taken of it."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sglwheel.errors import SourceError
from sglwheel.files import Layout
from sglwheel.git import Git
from sglwheel.mirrors import Mirrors, local_path
from sglwheel.recipe import Recipe
from sglwheel.source import downloads, kept, overrides, sparse
from sglwheel.source.fetchcontent import Declaration, LocalTree, Plan, Tree
from sglwheel.source.overrides import Override
from sglwheel.source.sourcelock import Pin
from sglwheel.source.sparse import Piece, Request
from sglwheel.source.store import GitStore
from sglwheel.types import CommitId


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
    """`origin`, `mirror`, `tree-of-commit` (instead of a forge's archive) or `override`."""
    submodules: tuple[Piece, ...] = ()
    bytes_fetched: int = 0
    license_files: tuple[Path, ...] = ()

    @property
    def pin(self) -> Pin:
        """What a lock says of it."""
        return Pin(self.name, self.kind, self.url, self.requested, self.commit, self.tree, self.sha256)


@dataclass(frozen=True)
class _Place:
    """Where a declaration leads after overrides, lock and mirrors had their say: a commit, or a directory."""

    via: str
    received: int = 0
    commit: tuple[GitStore, CommitId] | None = None
    directory: Path | None = None
    sha256: str | None = None


@dataclass
class Fetcher:
    """Fetches what a plan names; one per run, safe to use from several threads."""

    recipe: Recipe
    layout: Layout
    mirrors: Mirrors
    overrides: Mapping[str, Override]
    pins: Mapping[str, Pin]
    refit: bool = False
    _places: dict[str, _Place] = field(default_factory=dict)
    _guard: threading.Lock = field(default_factory=threading.Lock)

    def pin(self, name: str, kind: str, url: str, requested: str) -> Pin | None:
        """What the lock says of a source, unless it speaks of another one."""
        pin = self.pins.get(name)
        return pin if pin and (pin.kind, pin.url, pin.requested) == (kind, url, requested) else None

    def project(self, declaration: Declaration) -> Tree:
        """The files of a source whose own CMake takes part."""
        place = self._place(declaration)
        if place.commit is not None:
            return _GitTree.open(*place.commit)
        assert place.directory is not None
        return LocalTree(place.directory)

    def fetch(self, declaration: Declaration, plan: Plan) -> FetchedSource:
        """Have one source in the store. Raises SourceError."""
        name, kind, url, requested = (
            declaration.name,
            declaration.kind,
            declaration.url,
            declaration.requested,
        )
        place = self._place(declaration)
        if place.commit is not None:
            store, commit = place.commit
            request = self._request(declaration, plan)
            found = kept.keep(name, store, commit, request, self.layout, self.mirrors)
            licenses = sparse.license_files(found.path, found.pieces)
            return FetchedSource(
                name, kind, url, requested, commit, None, found.pieces[0].tree, found.content, found.path,
                place.via, found.pieces[1:], place.received + found.received, licenses,
            )  # fmt: skip
        assert place.directory is not None
        tree = overrides.tree_id(place.directory) if place.via == "override" else None
        return FetchedSource(
            name, kind, url, requested, None, place.sha256, tree, place.sha256 or tree or "", place.directory,
            place.via, (), place.received, sparse.license_files(place.directory),
        )  # fmt: skip

    def _place(self, declaration: Declaration) -> _Place:
        with self._guard:
            known = self._places.get(declaration.name)
        if known is None:
            try:
                known = self._find(declaration)
            except SourceError as error:
                raise SourceError(
                    f"{declaration.name}: {error.what}",
                    where={"declared": declaration.where, **error.where},
                    next=error.next,
                ) from error
            with self._guard:
                self._places[declaration.name] = known
        return known

    def _find(self, declaration: Declaration) -> _Place:
        override = self.overrides.get(declaration.name)
        if override is not None:
            return self._overridden(declaration, override)
        pin = self.pins.get(declaration.name)
        fits = self.pin(declaration.name, declaration.kind, declaration.url, declaration.requested)
        if self.refit:
            pin = fits
        elif pin is not None and fits is None:
            raise SourceError(
                "the lock speaks of another source than the build",
                where={
                    "build": f"{declaration.url} {declaration.requested}".strip(),
                    f"recipes/{self.recipe.id}.lock": f"{pin.url} {pin.requested}".strip(),
                },
                next=f"sglwheel lock {self.recipe.id}",
            )
        return self._git(declaration, pin) if declaration.kind == "git" else self._url(declaration, pin)

    def _git(self, declaration: Declaration, pin: Pin | None) -> _Place:
        store = GitStore.open(declaration.url, self.layout, self.mirrors)
        commit = _commit(store, declaration.requested, pin)
        if commit != declaration.requested and len(declaration.requested) == len(commit):
            raise _contradiction(self.recipe.id, declaration.url, declaration.requested, commit)
        received = store.commit(commit)
        if pin and pin.tree and pin.tree != (tree := store.git.tree(commit)):
            raise _contradiction(self.recipe.id, f"the tree of {commit}", tree, pin.tree)
        return _Place(store.via(commit), received, (store, commit))

    def _url(self, declaration: Declaration, pin: Pin | None) -> _Place:
        sha256 = pin.sha256 if pin else None
        algorithm, _, digest = declaration.requested.partition("=")
        if sha256 and algorithm.upper() == "SHA256" and digest.lower() != sha256:
            raise _contradiction(self.recipe.id, f"the SHA256 of {declaration.url}", digest.lower(), sha256)
        forge = downloads.forge_archive(declaration.url)
        tried: dict[str, str] = {}
        if forge and self.mirrors.mapped(forge[0]) and not self._has_file(declaration, sha256):
            try:
                store = GitStore.open(forge[0], self.layout, self.mirrors)
                commit = _commit(store, forge[1], pin)
                received = store.commit(commit)
            except SourceError as error:
                # What stands for a forge may have its archives alone, as upstream's GITHUB_ARTIFACTORY does.
                tried = dict(error.where)
            else:
                tree = store.git.tree(commit)
                if pin and pin.tree and pin.tree != tree:
                    raise _contradiction(self.recipe.id, f"the tree of {commit}", tree, pin.tree)
                return _Place("tree-of-commit", received, (store, commit))
        try:
            found = downloads.download(
                declaration.urls, declaration.requested, sha256, self.layout, self.mirrors
            )
        except SourceError as error:
            raise SourceError(error.what, where={**tried, **error.where}, next=error.next) from error
        return _Place(found.via, found.received, directory=found.path, sha256=found.sha256)

    def _has_file(self, declaration: Declaration, sha256: str | None) -> bool:
        algorithm, _, digest = declaration.requested.partition("=")
        known = digest.lower() if algorithm.upper() == "SHA256" else sha256
        if known and downloads.stored(known, self.layout):
            return True
        paths = (local_path(candidate) for candidate in self.mirrors.mapped(declaration.url))
        return any(path is not None and path.is_file() for path in paths)

    def _overridden(self, declaration: Declaration, override: Override) -> _Place:
        if override.revision is None:
            return _Place("override", directory=override.path)
        forge = downloads.forge_archive(declaration.url)
        url = forge[0] if forge else declaration.url
        if override.path is not None:
            store = GitStore.open(url, self.layout, self.mirrors, first=[str(override.path)])
            commit = Git(override.path).resolve(override.revision)
        else:
            store = GitStore.open(url, self.layout, self.mirrors)
            commit = _commit(store, override.revision, None)
        received = store.commit(commit)
        return _Place("override", received, (store, commit))

    def _request(self, declaration: Declaration, plan: Plan) -> Request:
        paths = set(plan.references.get(declaration.name, ()))
        if declaration.name in plan.projects:
            paths.add(".")
        for name, more in self.recipe.source.sparse.items():
            if name.lower() == declaration.name:
                paths.update(more)
        return Request(frozenset(paths), declaration.submodules or ())


def _contradiction(recipe_id: str, what: str, actual: str, locked: str) -> SourceError:
    return SourceError(
        f"{what} is {actual}, the lock says {locked}",
        where={"file": f"recipes/{recipe_id}.lock"},
        next=f"sglwheel lock --check {recipe_id}",
    )


def _commit(store: GitStore, requested: str, pin: Pin | None) -> CommitId:
    if pin and pin.commit:
        return CommitId.parse(pin.commit)
    try:
        return CommitId.parse(requested)
    except ValueError:
        return store.resolve(requested)


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
            if entry.kind == "blob" and entry.path.endswith((".cmake", "CMakeLists.txt"))
        ]
        store.objects(entry.object for entry in entries)
        return cls(store, commit, frozenset(entry.path for entry in entries))

    def read(self, path: str) -> str | None:
        return self.store.git.read(self.commit, path) if path in self.paths else None
