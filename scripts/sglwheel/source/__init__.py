"""From a recipe to its sources: the upstream's exact commit, and everything its build would fetch."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol

from sglwheel import console, files
from sglwheel.errors import SourceError, UsageError
from sglwheel.files import Layout
from sglwheel.mirrors import Mirrors
from sglwheel.recipe import Recipe
from sglwheel.source import overrides, sourcelock
from sglwheel.source.fetchcontent import Declaration, Environment, LocalTree, Plan, Walker
from sglwheel.source.fetched import FetchedSource, Fetcher
from sglwheel.source.store import GitStore
from sglwheel.types import CommitId

# A host may set these, so conditions on them stay open; no other name is in a build's environment.
_OPEN_ENVIRONMENT = frozenset(
    {
        "CC", "CFLAGS", "CMAKE_BUILD_PARALLEL_LEVEL", "CMAKE_PREFIX_PATH", "CUDACXX", "CUDAFLAGS",
        "CUDAHOSTCXX", "CUDAToolkit_ROOT",
        "CUDA_HOME", "CUDA_PATH", "CXX", "CXXFLAGS", "HOME", "LANG", "LC_ALL", "LDFLAGS",
        "MAX_JOBS", "PATH", "SOURCE_DATE_EPOCH", "TMPDIR",
    }
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
    """Whether an upstream commit is in the checkout's history, which is fetched once (commits only)."""
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
    refit: bool = False,
    keep: bool = True,
) -> Dependencies:
    """Find, fetch and store what the patched tree's CMake declares. `relock` resolves tags and urls anew.

    `refit` does so where the lock speaks of another source than the build, which else is an error. Without
    `keep` the lock learns nothing of it.

    Raises SourceError; UsageError for an override that fits no source.
    """
    if recipe.pure:
        return Dependencies(())
    root = patched if isinstance(patched, Path) else patched.path
    replaced = overrides.parse(override or {})
    old = sourcelock.load(layout, recipe.id, edited=relock)
    # What is replaced for once keeps its pin.
    pins = {name: pin for name, pin in old.items() if not relock or name in replaced}
    fetcher = Fetcher(recipe, layout, mirrors, replaced, pins, refit)
    walker = Walker(LocalTree(root), fetcher.project, _options(recipe), _environment(recipe))
    plan = walker.walk(recipe.source.directory)
    _check_names(plan, replaced, recipe)
    sources = _fetch_all(plan, fetcher)
    found = {
        source.name: source.pin.merged(fetcher.pin(source.name, source.kind, source.url, source.requested))
        for source in sources
        if source.via != "override"
    }
    if keep and any(old.get(name) != pin for name, pin in found.items()):
        sourcelock.save(layout, recipe.id, {**pins, **found}.values(), edited=relock)
    return Dependencies(sources)


def declared(
    patched: HasPath | Path,
    recipe: Recipe,
    layout: Layout,
    mirrors: Mirrors,
    override: Mapping[str, str] | None = None,
) -> tuple[Declaration, ...]:
    """What the patched tree's CMake would fetch; only CMake files are fetched for it. Raises SourceError."""
    if recipe.pure:
        return ()
    root = patched if isinstance(patched, Path) else patched.path
    replaced = overrides.parse(override or {})
    fetcher = Fetcher(recipe, layout, mirrors, replaced, sourcelock.load(layout, recipe.id))
    walker = Walker(LocalTree(root), fetcher.project, _options(recipe), _environment(recipe))
    return tuple(walker.walk(recipe.source.directory).declarations)


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
                ignored = shutil.ignore_patterns(".git")
                shutil.copytree(source.path, scratch, symlinks=True, dirs_exist_ok=True, ignore=ignored)
                _make_writable(scratch)
            marker.write_text(source.content)
        result[source.name] = target
    return result


def _fetch_all(plan: Plan, fetcher: Fetcher) -> tuple[FetchedSource, ...]:
    total = len(plan.declarations)
    failures: list[SourceError] = []
    received = 0
    with (
        console.progress("fetching sources", unit="sources") as progress,
        # Waiting for servers, mostly; git and zlib do their work outside the interpreter.
        ThreadPoolExecutor(max_workers=8, thread_name_prefix="fetch") as pool,
    ):
        running = [pool.submit(fetcher.fetch, declaration, plan) for declaration in plan.declarations]
        try:
            for done, future in enumerate(as_completed(running), 1):
                error = future.exception()
                if isinstance(error, SourceError):
                    failures.append(error)
                else:
                    received += future.result().bytes_fetched
                progress.update(done, total, console.format_bytes(received))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    if len(failures) > 1:
        raise SourceError(
            f"{len(failures)} of {total} sources cannot be had",
            where={
                error.what: "\n".join(f"{key}: {text}" for key, text in error.where.items())
                for error in failures
            },
            next=failures[0].next,
        )
    if failures:
        raise failures[0]
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

    return {key: text(value) for key, value in recipe.options.items()}


def _environment(recipe: Recipe) -> Environment:
    architectures = ";".join(str(arch) for arch in recipe.build.architectures)
    return Environment({**recipe.build.environment, "TORCH_CUDA_ARCH_LIST": architectures}, _OPEN_ENVIRONMENT)


def _make_writable(root: Path) -> None:
    for directory, _, names in os.walk(root):
        for name in names:
            path = Path(directory, name)
            if not path.is_symlink():
                path.chmod(path.stat().st_mode | 0o200)
