"""Looking at builds: where the time went, and what the build is worth."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Literal

import click

from sglwheel import console, files
from sglwheel.cli.options import (
    as_json,
    failing_as,
    jobs_option,
    memory_option,
    override_option,
    pairs,
    provider_option,
    torch_from_option,
    torch_option,
)
from sglwheel.errors import BuildError, UsageError
from sglwheel.files import Layout


@click.command()
@click.argument("name")
@click.option("--tree", metavar="FINGERPRINT", help="another tree than the one that was built last")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE.html|FILE.json",
    help="write a page to look at, or a trace for https://ui.perfetto.dev",
)
@as_json
@failing_as(UsageError)
def timeline(name: str, tree: str | None, output: Path | None, as_json: bool) -> None:
    """Say where the time of a build of recipe NAME went: which compiler ran when, in how much memory."""
    from sglwheel import recipe
    from sglwheel import timeline as timelines
    from sglwheel.timeline import page

    layout = Layout.find()
    found = timelines.load(layout, recipe.load(layout, name).id, tree)
    if output is not None:
        if output.suffix not in (".html", ".json"):
            raise UsageError(f"-o {output}: a page ends with .html, a trace with .json")
        text = page.render(found) if output.suffix == ".html" else json.dumps(found.trace(), indent=1) + "\n"
        files.write_atomic(output, text)
        console.say(f"wrote {output}")
    if as_json:
        console.emit_json(found.to_json())
    elif output is None:
        for line in found.lines():
            console.emit(line)


@click.command()
@click.argument("parts", nargs=-1)
@click.option("--repeat", type=click.IntRange(min=1), default=3, show_default=True, help="measure so often")
@click.option("--memory-scale", type=float, default=16.0, show_default=True, help="fakes take 1/N of memory")
@click.option("--time-scale", type=float, default=16.0, show_default=True, help="and 1/N of the time")
@click.option("--slots", type=click.IntRange(min=2), default=8, show_default=True, help="of the scaled build")
@click.option("--unit", "units", multiple=True, metavar="NAME", help="only these of the real upstream's")
@click.option("--recipe", "recipes", multiple=True, metavar="NAME", help="only this one's recorded build")
@click.option(
    "--keep",
    type=click.Path(path_type=Path, dir_okay=False),
    help="go on from what this file has, and add to it",
)
@torch_option
@override_option
@torch_from_option("compile the real upstream's against the torch that is installed there")
@provider_option
@jobs_option
@memory_option
@as_json
@failing_as(BuildError)
def bench(
    parts: tuple[str, ...],
    repeat: int,
    memory_scale: float,
    time_scale: float,
    slots: int,
    units: tuple[str, ...],
    recipes: tuple[str, ...],
    keep: Path | None,
    torch: str | None,
    overrides: tuple[str, ...],
    torch_from: Path | None,
    provider: Literal["system", "pypi"] | None,
    jobs: int | None,
    memory: int | None,
    as_json: bool,
) -> None:
    """Measure what building is worth and costs, as ratios of one run: PARTS, or all that take minutes."""
    from sglwheel import bench as benching
    from sglwheel.build.budget import Allowance
    from sglwheel.pipeline import Options

    known = benching.parts()
    unknown = [part for part in parts if part not in known]
    if unknown:
        raise UsageError(f"no such part of the bench: {unknown[0]}", where={"there are": ", ".join(known)})
    layout = Layout.find()
    ratios: list[benching.Ratio] = []
    with tempfile.TemporaryDirectory(prefix="sglwheel-bench-") as scratch:
        options = Options(
            torch,
            pairs(overrides, "--override"),
            Allowance(jobs, memory),
            torch_from=torch_from,
            provider=provider,
        )
        setting = benching.Setting(
            layout,
            Path(scratch),
            repeat,
            memory_scale,
            time_scale,
            slots,
            units=units,
            options=options,
            keep=keep,
            recipes=recipes,
        )
        for name in parts or benching.USUAL:
            for ratio in known[name](setting):
                ratios.append(ratio)
                if not as_json:
                    console.emit(ratio.line())
    if as_json:
        console.emit_json([ratio.to_json() for ratio in ratios])
    missed = [ratio.what for ratio in ratios if ratio.met is False]
    if missed:
        raise BuildError(
            f"{len(missed)} of {len(ratios)} bars are missed", where={"missed": "\n".join(missed)}
        )


VERBS = (timeline, bench)
