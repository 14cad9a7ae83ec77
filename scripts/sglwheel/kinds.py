"""What the kinds of recipes do differently: each has its environment, and its way from patches to a wheel."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from packaging.version import Version

from sglwheel import __version__, build, console, finish, proving, series, source, toolchain
from sglwheel.build import BuiltWheel, packing
from sglwheel.build.budget import Allowance
from sglwheel.errors import BuildError, PatchError, SourceError, ToolchainError, UsageError
from sglwheel.files import Layout
from sglwheel.mirrors import Mirrors
from sglwheel.patching import PatchedTree
from sglwheel.patching.proofs import ProofResult
from sglwheel.recipe import KernelRecipe, PythonRecipe, Recipe
from sglwheel.release.releasing import stage
from sglwheel.smoke import Environment
from sglwheel.source import Checkout, Dependencies
from sglwheel.source.fetched import FetchedSource
from sglwheel.toolchain import packing as packers
from sglwheel.toolchain import torchpin
from sglwheel.toolchain.borrowed import Borrowed


@dataclass(frozen=True)
class Versions:
    """What patches' conditions are evaluated against; `cmake` is None where nothing is compiled."""

    cmake: Version | None
    cuda: Version
    torch: Version


@dataclass(frozen=True)
class Made:
    """A finished wheel, and what it was made of."""

    checkout: Checkout
    patched: PatchedTree
    env: Environment
    dependencies: Dependencies
    built: BuiltWheel
    finished: finish.FinishedWheel

    @property
    def bytes_fetched(self) -> int:
        return self.checkout.bytes_fetched + self.dependencies.bytes_fetched

    def facts(self) -> dict[str, Any]:
        """For scripts."""
        return {
            "fingerprint": self.built.fingerprint,
            "patches": [vars(state) for state in self.patched.patches],
            "build": {**self.costs(), "steps": self.built.steps, "reused": self.built.reused},
            "compiler_cache": dict(self.built.cache),
            "bytes_fetched": self.bytes_fetched,
        }

    def left(self) -> tuple[Path, ...]:
        """Files and directories that a next run would use."""
        env, built = self.env, self.built
        found = [self.patched.path, env.python, env.torch.path / "version.py"]
        if isinstance(env, toolchain.BuildEnv):
            compilers = [env.environment[key] for key in ("CC", "CXX") if key in env.environment]
            found += [env.cuda_home / "bin" / "nvcc", env.stub, *map(Path, compilers)]
        return (*found, built.tree / "result.json", built.path, self.finished.path)

    def costs(self) -> dict[str, Any]:
        return {
            "cpu_seconds": round(self.built.cpu_seconds, 1),
            "seconds": round(self.built.seconds, 1),
            "peak_bytes": self.built.peak_bytes,
        }

    def who(self) -> dict[str, Any]:
        """What may differ between two builds of the same bytes."""
        return {
            "tool": f"sglwheel {__version__}",
            "built": datetime.now(UTC).isoformat(timespec="seconds"),
            "host": {"system": platform.system(), "machine": platform.machine(), "cpus": os.cpu_count()},
            **self.costs(),
            "bytes_fetched": self.bytes_fetched,
        }


class Kind(Protocol):
    """How a recipe of one kind gets from a patched tree to a finished wheel."""

    @property
    def versions(self) -> Versions:
        """Which versions the build will have, without making anything."""
        ...

    @property
    def title(self) -> str:
        """What `prepare` makes, in words."""
        ...

    def prepare(self) -> Environment:
        """Make the build environment. Raises ToolchainError."""
        ...

    def make(self, checkout: Checkout, patched: PatchedTree) -> Made:
        """Build and finish. Raises the failing stage's error."""
        ...

    def fetched(self, checkout: Checkout, patched: PatchedTree) -> Iterator[FetchedSource]:
        """Have every source that `make` would fetch; the same one may come again. Raises SourceError."""
        ...


@dataclass(frozen=True)
class Kernels:
    """CUDA kernels: a toolkit, everything that CMake fetches, a compile under admission."""

    recipe: KernelRecipe
    layout: Layout
    mirrors: Mirrors
    lent: Borrowed | None
    overrides: Mapping[str, str]
    allowance: Allowance

    @property
    def versions(self) -> Versions:
        found = toolchain.resolve(self.recipe, torchpin.pin(self.recipe), self.lent)
        return Versions(found.cmake, found.cuda, found.torch)

    @property
    def title(self) -> str:
        return f"toolchain: torch {self.recipe.torch.version}, CUDA {self.recipe.build.cuda_toolkit}"

    def prepare(self) -> toolchain.BuildEnv:
        return toolchain.prepare(self.recipe, torchpin.pin(self.recipe), self.layout, self.mirrors, self.lent)

    def make(self, checkout: Checkout, patched: PatchedTree) -> Made:
        recipe, layout = self.recipe, self.layout
        with stage(self.title, ToolchainError):
            env = self.prepare()
            console.detail(f"torch {env.torch.full_version}, nvcc {env.nvcc_version}, {env.cxx}")
        with stage("dependencies", SourceError):
            dependencies = source.dependencies(patched, recipe, layout, self.mirrors, self.overrides)
            say_fetched(dependencies.bytes_fetched)
        with stage("proofs", PatchError):
            for line in proving.describe(self._prove(checkout, patched, env)):
                console.detail(line)
        with stage("build", BuildError):
            built = build.build(
                recipe, patched, dependencies, env, layout, date=checkout.date, allowance=self.allowance
            )
            console.detail(
                f"{layout.relative(built.tree)}: nothing to do"
                if built.reused
                else f"{built.steps} steps, {console.format_seconds(built.cpu_seconds)} of CPU, "
                f"at most {console.format_bytes(built.peak_bytes)} at once"
            )
        with stage("finish", BuildError):
            finished = finish.finish(built, recipe, patched, dependencies, env, checkout, layout)
            console.detail(finished.path.name)
        return Made(checkout, patched, env, dependencies, built, finished)

    def _prove(
        self, checkout: Checkout, patched: PatchedTree, env: toolchain.BuildEnv
    ) -> tuple[ProofResult, ...]:
        recipe, layout = self.recipe, self.layout
        return proving.check(recipe, self._series(), patched, env, layout, checkout, self._fetch)

    def fetched(self, checkout: Checkout, patched: PatchedTree) -> Iterator[FetchedSource]:
        yield from source.dependencies(
            patched, self.recipe, self.layout, self.mirrors, self.overrides
        ).sources
        yield from proving.sources(self.recipe, self._series(), patched, self.layout, checkout, self._fetch)

    def _fetch(self, tree: Path) -> Dependencies:
        """What a tree fetches that no wheel is made of: the lock holds where it speaks of the same."""
        return source.dependencies(
            tree, self.recipe, self.layout, self.mirrors, self.overrides, refit=True, keep=False
        )

    def _series(self) -> series.Series:
        wanted = self.recipe.source
        return series.load(self.layout, wanted.series, directory=wanted.directory)


@dataclass(frozen=True)
class PythonAlone:
    """A project of Python alone: nothing to fetch or compile, packed by setuptools."""

    recipe: PythonRecipe
    layout: Layout
    mirrors: Mirrors

    @property
    def versions(self) -> Versions:
        torch = self.recipe.torch
        return Versions(None, Version(torch.cuda.version), torch.version)

    @property
    def title(self) -> str:
        return f"toolchain: torch {self.recipe.torch.version}, setuptools"

    def prepare(self) -> packers.PackingEnv:
        return packers.prepare(self.recipe, torchpin.pin(self.recipe), self.layout, self.mirrors)

    def make(self, checkout: Checkout, patched: PatchedTree) -> Made:
        recipe, layout = self.recipe, self.layout
        with stage(self.title, ToolchainError):
            env = self.prepare()
            console.detail(", ".join(f"{name} {version}" for name, version in env.description.items()))
        with stage("build", BuildError):
            built = packing.pack(recipe, patched, checkout, env, layout)
            console.detail(f"{layout.relative(built.tree)}" + (": nothing to do" if built.reused else ""))
        none = Dependencies(())
        with stage("finish", BuildError):
            finished = finish.finish(built, recipe, patched, none, env, checkout, layout, tag=finish.pure_tag)
            console.detail(finished.path.name)
        return Made(checkout, patched, env, none, built, finished)

    def fetched(self, checkout: Checkout, patched: PatchedTree) -> Iterator[FetchedSource]:
        return iter(())


def of(
    recipe: Recipe,
    layout: Layout,
    mirrors: Mirrors,
    *,
    lent: Borrowed | None = None,
    overrides: Mapping[str, str] | None = None,
    allowance: Allowance | None = None,
) -> Kind:
    """The kind of a recipe, with what the command line says about this run. Raises UsageError."""
    match recipe:
        case KernelRecipe():
            return Kernels(recipe, layout, mirrors, lent, overrides or {}, allowance or Allowance())
        case PythonRecipe():
            if lent is not None or overrides:
                raise UsageError(
                    f"{recipe.id} is of Python alone: it fetches no sources and compiles against no torch",
                    next="leave out --torch-from and --override",
                )
            return PythonAlone(recipe, layout, mirrors)
        case _:
            raise UsageError(f"{recipe.id} is of a kind that cannot be built")


def say_fetched(count: int) -> None:
    """Narrate how much a stage downloaded."""
    console.detail(f"{console.format_bytes(count)} fetched" if count else "nothing to fetch")
