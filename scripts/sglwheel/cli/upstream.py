"""When upstream moves: how the series fares, and carrying it on."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from sglwheel import console, files
from sglwheel.cli.options import as_json, failing_as, override_option, pairs
from sglwheel.errors import PatchError, UsageError
from sglwheel.files import Layout


@click.command()
@click.argument("name")
@click.option("--from", "start", metavar="COMMIT|DATE", help="where to begin (the recipe's commit)")
@click.option("--to", "end", metavar="COMMIT|BRANCH|DATE", help="where to end (the branch that it tracks)")
@click.option("--all", "all_patches", is_flag=True, help="try patches that are not needed, too")
@click.option("--offline", is_flag=True, help="ask nobody: only the history that is here")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), metavar="FILE.html", help="write the picture as a page"
)
@as_json
@failing_as(PatchError)
def drift(
    name: str,
    start: str | None,
    end: str | None,
    all_patches: bool,
    offline: bool,
    output: Path | None,
    as_json: bool,
) -> None:
    """Say when each patch of recipe NAME changed state along upstream's history, and which commit did it.

    Ends with 4 when the series does not work at the end.
    """
    from sglwheel import drift as drifting
    from sglwheel import pipeline
    from sglwheel.drift import driftview
    from sglwheel.drift.lineage import Lineage

    context = pipeline.Context.load(Layout.find(), name)
    lineage = Lineage.open(context.recipe, context.layout, context.mirrors)
    last = lineage.commit(end or context.recipe.source.track, option="--to", offline=offline)
    first = lineage.commit(start or context.recipe.source.commit, option="--from", offline=offline, tip=last)
    found = drifting.run(
        lineage.git,
        context.series,
        context.recipe,
        context.facts,
        first,
        last,
        fetch=lineage.fetch,
        all=all_patches,
    )
    if output is not None:
        files.write_atomic(output, driftview.page(found))
    if as_json:
        console.emit_json(found.to_json())
    else:
        for line in driftview.lines(found):
            console.emit(line)
    if (failure := found.failure()) is not None:
        raise failure


@click.command()
@click.argument("name")
@click.option("--to", metavar="COMMIT|BRANCH|DATE", help="where to carry series and recipe")
@click.option("--continue", "go_on", is_flag=True, help="after a conflict is resolved")
@click.option("--abort", is_flag=True, help="forget the rebase in progress")
@click.option("--skip", metavar="PATCH", help="leave one patch behind; say why")
@click.option("--why", metavar="TEXT", help="the reason for --skip, kept in the report")
@click.option("--series", "new_series", metavar="NAME", help="name of the new series (upstream's version)")
@override_option
@as_json
@failing_as(PatchError)
def rebase(
    name: str,
    to: str | None,
    go_on: bool,
    abort: bool,
    skip: str | None,
    why: str | None,
    new_series: str | None,
    overrides: tuple[str, ...],
    as_json: bool,
) -> None:
    """Carry the series, the pin and the locks of recipe NAME to another upstream commit.

    Stops at a conflict with the workspace ready, and goes on with --continue, also after a reboot.
    """
    from sglwheel import lockverb, pipeline
    from sglwheel import rebase as rebasing
    from sglwheel.drift.lineage import Lineage

    if (skip is None) != (why is None):
        raise UsageError("--skip PATCH and --why TEXT go together", next=f"sglwheel rebase {name} --help")
    if sum((to is not None, go_on or (skip is not None and to is None), abort)) != 1:
        raise UsageError(
            "give one of --to, --continue, --skip, --abort", next=f"sglwheel rebase {name} --help"
        )
    replaced = pairs(overrides, "--override")
    context = pipeline.Context.load(Layout.find(), name)
    if abort:
        rebasing.give_up(context.layout, context.recipe)
        return
    skips = {skip: why} if skip is not None and why is not None else {}
    relock = partial(lockverb.renew, context.layout, name, replaced)
    if to is not None:
        report = rebasing.start(
            context.layout,
            context.recipe,
            context.series,
            context.facts,
            Lineage.open(context.recipe, context.layout, context.mirrors),
            to,
            skips=skips,
            new_series=new_series,
            relock=relock,
        )
    else:
        report = rebasing.proceed(context.layout, context.recipe, skips=skips, relock=relock)
    if as_json:
        console.emit_json(
            {
                "series": report.series,
                "from": report.old,
                "to": report.new,
                "done": [vars(one) for one in report.done],
                "locks": report.locks[1:],
            }
        )
        return
    for line in (*report.lines, *report.locks):
        console.emit(line)


VERBS = (drift, rebase)
