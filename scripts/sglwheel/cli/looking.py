"""Looking at builds: where the time went, and what the build is worth."""

from __future__ import annotations

import json
from pathlib import Path

import click

from sglwheel import console, files, recipe
from sglwheel.cli.options import as_json
from sglwheel.errors import UsageError
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
def timeline(name: str, tree: str | None, output: Path | None, as_json: bool) -> None:
    """Say where the time of a build of recipe NAME went: which compiler ran when, in how much memory."""
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


VERBS = (timeline,)
