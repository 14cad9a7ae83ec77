"""A real build as far as a measurement needs it: configured, and single sources of it compiled."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sglwheel import pipeline, process, source
from sglwheel.build.buildtree import BuildTree
from sglwheel.build.cachewatch import CacheWatch
from sglwheel.build.diagnosis import compile_error, configure_error
from sglwheel.build.invocation import Invocation
from sglwheel.build.progress import Transcript
from sglwheel.errors import BuildError
from sglwheel.files import Layout
from sglwheel.patching import PatchedTree
from sglwheel.recipe import KernelRecipe
from sglwheel.toolchain import BuildEnv


def configured(
    context: pipeline.Context, env: BuildEnv, patched: PatchedTree, overrides: Mapping[str, str]
) -> Invocation:
    """Configure as a build does, in a tree apart. Raises SourceError, BuildError with CMake's first error."""
    recipe, layout = context.recipe, context.layout
    fetched = source.dependencies(patched, recipe, layout, context.mirrors, overrides)
    tree, said = BuildTree(layout.work / recipe.id / "partial"), Transcript()
    tree.copy_source(patched.path)
    tree.copy_programs()
    invocation = Invocation(recipe, env, tree, int(context.checkout.date.timestamp()))
    definitions = invocation.definitions(source.materialize(fetched, tree.dependencies))
    tree.new_configuration()
    # ninja's dry run and an install of nothing: scikit-build-core configures and compiles nothing.
    words = ("-C", "build.tool-args=-n", "-C", "install.components=none")
    log = _log(layout, recipe.id)
    done = process.stream(
        invocation.command(tree.path / "dry", definitions, *words),
        failure=BuildError,
        log=log,
        env=invocation.environment(),
        on_line=said.feed,
    )
    if done.returncode:
        raise configure_error(said, done, log, tree)
    return invocation


@dataclass(frozen=True)
class Compiled:
    """One object: the seconds, and whether the compiler cache had it: same command, files and compilers."""

    seconds: float
    cached: bool


def compile_unit(invocation: Invocation, unit: str, layout: Layout) -> Compiled:
    """Compile the one object whose name ends in `unit`, as a build does. Raises BuildError."""
    ninja, tree = invocation.env.bin / "ninja", invocation.tree.cmake
    # What a build makes: upstream knows a second variant of most sources, which the series leaves out.
    listed = process.run(
        [ninja, "-C", tree, "-t", "inputs", "all"], failure=BuildError, env=invocation.environment()
    )
    target = next(one for one in listed.stdout.splitlines() if one.endswith(f"/{unit}"))
    recipe, env, log = invocation.recipe, invocation.env, _log(layout, invocation.recipe.id)
    assert isinstance(recipe, KernelRecipe)
    cache = CacheWatch.of(recipe, layout, invocation.tree, env, invocation.prefixes)
    started = time.monotonic()
    done = process.stream(
        [ninja, "-C", tree, "-j1", target],
        failure=BuildError,
        log=log,
        env=invocation.environment() | cache.begin(),
        on_line=(said := Transcript()).feed,
    )
    if done.returncode:
        raise compile_error(said, done, log, invocation.tree)
    cache.follow()
    return Compiled(round(time.monotonic() - started, 1), cache.counts()["hit"] > 0)


def _log(layout: Layout, name: str) -> Path:
    return layout.work / name / "logs" / "partial.log"
