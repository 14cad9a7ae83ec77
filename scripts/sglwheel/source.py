"""From a recipe to its sources: the upstream's exact commit, and everything its build would fetch."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol

from sglwheel import console, files, overrides, sourcelock
from sglwheel.errors import SourceError, UsageError
from sglwheel.fetchcontent import LocalTree, Plan, Walker
from sglwheel.fetched import FetchedSource, Fetcher
from sglwheel.files import Layout
from sglwheel.mirrors import Mirrors
from sglwheel.recipe import Recipe
from sglwheel.store import GitStore
from sglwheel.types import CommitId

# Values of these are the host's or ours, so conditions on them stay open; all else is not in a build's environment.
_OPEN_ENVIRONMENT = (
    "PATH", "HOME", "CC", "CXX", "CFLAGS", "CXXFLAGS", "CUDACXX", "CUDAHOSTCXX", "CUDAFLAGS", "LDFLAGS", "CUDA_HOME",
    "CUDA_PATH", "CUDAToolkit_ROOT", "MAX_JOBS", "TMPDIR", "LANG", "LC_ALL", "SOURCE_DATE_EPOCH",
    "CMAKE_PREFIX_PATH", "CMAKE_BUILD_PARALLEL_LEVEL",
)  # fmt: skip


@dataclass(frozen=True)
class Checkout:
    """The upstream at one commit: a bare partial repository that has the kernel project's files."""

    repository: Path
    commit: CommitId
    tree: str
    date: datetime
    url: str
    bytes_fetched: int


@dataclass(frozen=True)
class Dependencies:
    """Everything that the build's CMake would have fetched."""

    sources: tuple[FetchedSource, ...]

    @property
    def overridden(self) -> bool:
        """Whether a person replaced a source: such a wheel says so."""
        return any(source.via == "override" for source in self.sources)

    @property
    def bytes_fetched(self) -> int:
        return sum(source.bytes_fetched for source in self.sources)


class HasPath(Protocol):
    """A patched tree, as far as this module looks."""

    @property
    def path(self) -> Path: ...


def checkout(recipe: Recipe, layout: Layout, mirrors: Mirrors, *, commit: CommitId | None = None) -> Checkout:
    """Have the recipe's commit (or another one) and the files of its kernel project. Raises SourceError."""
    wanted = commit or recipe.source.commit
    store = GitStore.open(recipe.source.git, layout, mirrors)
    received = store.commit(wanted)
    top = [entry.path for entry in store.entries(wanted, recursive=False) if entry.kind == "blob"]
    inside = store.entries(wanted, [recipe.source.directory])
    if not inside and commit is None:
        raise SourceError(
            f"commit {wanted.short} has no directory {recipe.source.directory!r}",
            where={"url": recipe.source.git},
            next=f"edit source.directory in recipes/{recipe.id}.toml",
        )
    received += store.blobs(wanted, [*top, recipe.source.directory])
    return Checkout(
        store.git.path, wanted, store.git.tree(wanted), store.git.date(wanted), recipe.source.git, received
    )


def contains(checkout: Checkout, commit: str, layout: Layout, mirrors: Mirrors) -> bool:
    """Whether an upstream commit is in the history of the checkout; fetches the history (commits only) once."""
    store = GitStore.open(checkout.url, layout, mirrors)
    store.history(checkout.commit)
    done = store.git.run("merge-base", "--is-ancestor", commit, checkout.commit, accept=(0, 1, 128))
    return done.returncode == 0


def dependencies(
    patched: HasPath | Path,
    recipe: Recipe,
    layout: Layout,
    mirrors: Mirrors,
    override: Mapping[str, str] | None = None,
    *,
    relock: bool = False,
) -> Dependencies:
    """Find, fetch and store what the patched tree's CMake declares. `relock` resolves tags and urls anew.

    Raises SourceError; UsageError for an override that fits no source.
    """
    root = patched if isinstance(patched, Path) else patched.path
    replaced = overrides.parse(override or {})
    pins = {} if relock else sourcelock.load(layout, recipe.id)
    fetcher = Fetcher(recipe, layout, mirrors, replaced, pins)
    plan = Walker(LocalTree(root), fetcher.project, _options(recipe), _environment(recipe)).walk(
        recipe.source.directory
    )
    _check_names(plan, replaced, recipe)
    sources = _fetch_all(plan, fetcher)
    found = {source.name: fetcher.pin(source) for source in sources if source.via != "override"}
    if any(pins.get(name) != pin for name, pin in found.items()):
        sourcelock.save(layout, recipe.id, {**pins, **found}.values())
    return Dependencies(sources)


def materialize(dependencies: Dependencies, into: Path) -> dict[str, Path]:
    """Give a build its own, writable copies; return name → directory for FETCHCONTENT_SOURCE_DIR_<NAME>.

    A copy that is there already is left alone, with what the build did to it, so that nothing compiles again.
    """
    result: dict[str, Path] = {}
    for source in dependencies.sources:
        target = into / source.name
        marker = into / f".{source.name}.content"
        if not (target.is_dir() and marker.is_file() and marker.read_text() == source.content):
            marker.unlink(missing_ok=True)
            shutil.rmtree(target, ignore_errors=True)
            with files.directory_atomic(target) as scratch:
                shutil.copytree(
                    source.path, scratch, symlinks=True, dirs_exist_ok=True, ignore=_ignore_git(source.path)
                )
                _make_writable(scratch)
            marker.write_text(source.content)
        result[source.name] = target
    return result


def _fetch_all(plan: Plan, fetcher: Fetcher) -> tuple[FetchedSource, ...]:
    total = len(plan.declarations)
    with (
        console.progress("fetching sources", unit="sources") as progress,
        # Waiting for servers, mostly; git and zlib do their work outside the interpreter.
        ThreadPoolExecutor(max_workers=8, thread_name_prefix="fetch") as pool,
    ):
        running: list[Future[FetchedSource]] = [
            pool.submit(fetcher.fetch, declaration, plan) for declaration in plan.declarations
        ]
        received = 0
        try:
            for done, future in enumerate(as_completed(running), 1):
                received += future.result().bytes_fetched
                progress.update(done, total, console.format_bytes(received))
        except BaseException:
            for future in running:
                future.cancel()
            raise
    return tuple(future.result() for future in running)


def _check_names(plan: Plan, replaced: Mapping[str, overrides.Override], recipe: Recipe) -> None:
    names = [declaration.name for declaration in plan.declarations]
    unknown = sorted(set(replaced) - set(names))
    if unknown:
        raise UsageError(
            f"no source is called {', '.join(unknown)}",
            where={"recipe": recipe.id, "sources": ", ".join(names)},
        )
    for name in recipe.source.sparse:
        if name.lower() not in names:
            raise SourceError(
                f"source.sparse.{name}: the build fetches no such source",
                where={"sources": ", ".join(names)},
                next=f"edit recipes/{recipe.id}.toml",
            )


def _options(recipe: Recipe) -> dict[str, str]:
    def text(value: bool | int | str) -> str:
        return ("ON" if value else "OFF") if isinstance(value, bool) else str(value)

    return {key: text(value) for key, value in recipe.build.cmake.items()}


def _environment(recipe: Recipe) -> Mapping[str, str | None]:
    known: dict[str, str | None] = dict(recipe.build.environment)
    known["TORCH_CUDA_ARCH_LIST"] = ";".join(str(arch) for arch in recipe.build.architectures)
    return _CleanEnvironment(known)


class _CleanEnvironment(dict[str, str | None]):
    """What a build's environment holds: any other name is known to be unset."""

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or name not in _OPEN_ENVIRONMENT

    def __missing__(self, name: str) -> str | None:
        return None

    def get(self, name: str, default: object = None) -> object:  # type: ignore[override]
        return self[name] if name in self else default


def _ignore_git(root: Path):  # type: ignore[no-untyped-def]
    def ignore(directory: str, names: list[str]) -> list[str]:
        return [name for name in names if name == ".git"]

    return ignore


def _make_writable(root: Path) -> None:
    for directory, _, names in os.walk(root):
        for name in names:
            path = Path(directory, name)
            if not path.is_symlink():
                path.chmod(path.stat().st_mode | 0o200)
