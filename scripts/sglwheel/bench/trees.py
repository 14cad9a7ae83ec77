"""A build tree that is configured and not built, for what compares commands."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sglwheel import build, patching, source, toolchain
from sglwheel.build.buildtree import BuildTree
from sglwheel.pipeline import Context
from sglwheel.recipe import KernelRecipe
from sglwheel.series import Series
from sglwheel.toolchain import BuildEnv, torchpin


@dataclass(frozen=True)
class Configured:
    """A tree, CMake's `compile_commands.json` in it, and the environment that its commands need."""

    tree: BuildTree
    commands: Path
    env: BuildEnv


def configured(context: Context, recipe: KernelRecipe, chosen: Series) -> Configured:
    """Bring a recipe with a patch series, maybe others than its context has, to where compiling would begin.

    Raises what the stages raise that come before.
    """
    layout, mirrors = context.layout, context.mirrors
    env = toolchain.prepare(recipe, torchpin.pin(recipe), layout, mirrors, context.lent)
    patched = patching.apply(context.checkout, chosen, context.facts, layout, recipe)
    # Upstream's own way fetches more than the recipe's, whose lock must not learn of it.
    overrides = context.options.overrides
    fetched = source.dependencies(patched, recipe, layout, mirrors, overrides, refit=True, keep=False)
    listed = build.configure(recipe, patched, fetched, env, layout, date=context.checkout.date)
    return Configured(BuildTree(listed.parents[1]), listed, env)
