"""A real build as far as a measurement needs it: configured, and single sources of it compiled."""

from __future__ import annotations

import time
from collections.abc import Mapping

from sglwheel import pipeline, process, source
from sglwheel.build.buildtree import BuildTree
from sglwheel.build.diagnosis import configure_error
from sglwheel.build.invocation import Invocation
from sglwheel.build.progress import Transcript
from sglwheel.errors import BuildError
from sglwheel.patching import PatchedTree
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
    log = layout.work / recipe.id / "logs" / "partial.log"
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


def compile_unit(invocation: Invocation, unit: str) -> float:
    """Compile the one object whose name ends in `unit`; seconds that it took. Raises BuildError."""
    ninja, tree = invocation.env.bin / "ninja", invocation.tree.cmake
    listed = process.run(
        [ninja, "-C", tree, "-t", "targets", "all"], failure=BuildError, env=invocation.environment()
    )
    targets = [line.partition(":")[0] for line in listed.stdout.splitlines()]
    target = next(one for one in targets if one.endswith(f"/{unit}"))
    started = time.monotonic()
    process.run([ninja, "-C", tree, "-j1", target], failure=BuildError, env=invocation.environment())
    return round(time.monotonic() - started, 1)
