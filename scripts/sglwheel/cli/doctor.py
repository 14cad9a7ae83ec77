"""What a host lacks: for building, or for running what was built."""

from __future__ import annotations

from pathlib import Path

import click

from sglwheel import console
from sglwheel.cli.options import as_json, failing_as
from sglwheel.errors import DoctorError, UsageError
from sglwheel.files import Layout


@click.command()
@click.option(
    "--role",
    type=click.Choice(["build", "node"]),
    default="build",
    show_default=True,
    help="what this host is to do: build wheels, or run SGLang on one",
)
@click.option("--recipe", "name", metavar="ID", help="build: only what this recipe needs")
@click.option(
    "--python",
    type=click.Path(path_type=Path),
    metavar="VENV|PYTHON",
    help="node: the environment that SGLang runs in (the python3 on PATH if not given)",
)
@click.option(
    "--wheel",
    type=click.Path(path_type=Path),
    help="node: judge this wheel instead of the kernels that are installed",
)
@click.option(
    "--checkpoint",
    type=click.Path(path_type=Path),
    metavar="DIRECTORY",
    help="node: a model's directory, for what its configuration switches on silently",
)
@as_json
@failing_as(DoctorError)
def doctor(
    role: str,
    name: str | None,
    python: Path | None,
    wheel: Path | None,
    checkpoint: Path | None,
    as_json: bool,
) -> None:
    """Say everything that this host lacks for building, or for running SGLang, at once."""
    nodes = {"--python": python, "--wheel": wheel, "--checkpoint": checkpoint}
    if role == "node":
        if name is not None:
            raise UsageError("--recipe is for --role build", next="name the wheel: --wheel wheelhouse/….whl")
        _node(python, wheel, checkpoint, as_json)
        return
    stray = [option for option, value in nodes.items() if value is not None]
    if stray:
        raise UsageError(f"{', '.join(stray)}: only with --role node")
    _build(name, as_json)


def _build(name: str | None, as_json: bool) -> None:
    from sglwheel import builddoctor, recipe
    from sglwheel.mirrors import Mirrors
    from sglwheel.nodedoctor import diagnosis

    layout = Layout.find()
    mirrors = Mirrors.load(layout)
    wanted = [name] if name else recipe.names(layout)
    found = {one: builddoctor.examine(recipe.load(layout, one), layout, mirrors) for one in wanted}
    if as_json:
        console.emit_json({one: [vars(finding) for finding in findings] for one, findings in found.items()})
    else:
        for one, findings in found.items():
            console.emit(f"{one}:")
            for line in diagnosis.render(findings):
                console.emit(f"  {line}".rstrip())
    failed = {
        f"{one}: {finding.check}": finding.detail + (f"\n→ {finding.remedy}" if finding.remedy else "")
        for one, findings in found.items()
        for finding in findings
        if finding.status == "failed"
    }
    if failed:
        raise DoctorError(
            f"this host cannot build {', '.join(found)} yet: {len(failed)} things are wrong", where=failed
        )


def _node(python: Path | None, wheel: Path | None, checkpoint: Path | None, as_json: bool) -> None:
    from sglwheel import nodedoctor

    found = nodedoctor.examine(python, wheel=wheel, checkpoint=checkpoint)
    if as_json:
        console.emit_json(found.to_json())
    else:
        for line in found.render():
            console.emit(line)
    failed = [finding for finding in found.findings if finding.status == "failed"]
    if failed:
        raise DoctorError(
            f"SGLang will not run well on this node: {len(failed)} things are wrong",
            where={
                finding.check: finding.detail + (f"\n→ {finding.remedy}" if finding.remedy else "")
                for finding in failed
            },
        )


VERBS = (doctor,)
