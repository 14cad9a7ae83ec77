"""Recipes and the patches that they carry."""

from __future__ import annotations

import click

from sglwheel import console
from sglwheel.cli.options import as_json, failing_as, torch_option
from sglwheel.errors import PatchError, UsageError
from sglwheel.files import Layout


@click.command()
@as_json
def recipes(as_json: bool) -> None:
    """List the recipes and what they build."""
    from sglwheel import recipe

    layout = Layout.find()
    loaded = [recipe.load(layout, name) for name in recipe.names(layout)]
    if as_json:
        console.emit_json({item.id: item.model_dump(mode="json", by_alias=True) for item in loaded})
        return
    width = max((len(item.id) for item in loaded), default=0)
    for item in loaded:
        console.emit(f"{item.id:<{width}}  {item.summary}")


@click.command()
def schema() -> None:
    """Print the recipes' JSON schema (docs/recipe.schema.json)."""
    from sglwheel import recipe

    console.emit(recipe.json_schema())


@click.command()
@click.argument("name")
@torch_option
@click.option("--all", "all_patches", is_flag=True, help="apply patches that are not needed, too")
@click.option(
    "--edit", is_flag=True, help="open a workspace with every patch as a commit; `export` writes it back"
)
@click.option("--discard", is_flag=True, help="throw that workspace away")
@as_json
@failing_as(PatchError)
def patch(name: str, torch: str | None, all_patches: bool, edit: bool, discard: bool, as_json: bool) -> None:
    """Apply the series of recipe NAME and say each patch's state and why, or edit it."""
    from sglwheel import pipeline
    from sglwheel.patching import editing

    if edit and discard:
        raise UsageError("--edit opens a workspace, --discard throws it away: choose one")
    context = pipeline.Context.load(Layout.find(), name, pipeline.Options(torch, all_patches=all_patches))
    if discard:
        editing.discard(context.layout, context.recipe)
        return
    if edit:
        session = editing.open_session(context.checkout, context.series, context.layout, context.recipe)
        console.emit(f"{context.layout.relative(session.path)}: change, commit, amend, rebase -i as you like")
        console.emit(f"then: sglwheel export {name}, or sglwheel patch {name} --discard")
        return
    states, failures = context.states()
    if as_json:
        console.emit_json({"commit": context.checkout.commit, "patches": [vars(state) for state in states]})
    else:
        for line in pipeline.describe_patches(states):
            console.emit(line)
    if failures:
        raise failures[0]
    patched = context.patch()
    if not as_json:
        console.emit(f"patched {context.checkout.commit.short} → {patched.commit} in {patched.path}")


@click.command()
@click.argument("name")
@as_json
@failing_as(PatchError)
def export(name: str, as_json: bool) -> None:
    """Write the workspace of `patch --edit` back as recipe NAME's series."""
    from sglwheel import recipe
    from sglwheel.patching import editing

    layout = Layout.find()
    changes = editing.export(layout, recipe.load(layout, name))
    if as_json:
        console.emit_json([vars(change) for change in changes])
        return
    for change in changes:
        console.emit(f"{change.what:<8} {change.name}")


@click.command()
@click.option(
    "--upstream", is_flag=True, help="re-export every series at its commit too, fetching what is needed"
)
@as_json
@failing_as(PatchError)
def check(upstream: bool, as_json: bool) -> None:
    """Lint every recipe and series, also against each other; what is embedded is re-exported as well."""
    from sglwheel import pipeline, recipe
    from sglwheel.patching import lint

    layout = Layout.find()
    contexts = [pipeline.Context.load(layout, name) for name in recipe.names(layout)]
    checkouts = {one.recipe.id: one.checkout for one in contexts if upstream or one.embedded}
    problems = lint.check(layout, [one.recipe for one in contexts], checkouts)
    if as_json:
        console.emit_json([vars(problem) for problem in problems])
    if problems:
        raise lint.error(problems)
    if not as_json:
        console.emit(f"{len(contexts)} recipes and their series are in order")


VERBS = (recipes, schema, patch, export, check)
