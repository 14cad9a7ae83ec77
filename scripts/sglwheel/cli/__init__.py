"""The command line: parses, calls one function, prints its value, and turns errors into exit codes."""

from __future__ import annotations

import sys
from typing import Any

import click

from sglwheel import __version__, console
from sglwheel.cli import doctor, inputs, looking, series, upstream, wheelhouse, wheels
from sglwheel.errors import Interrupted, SglwheelError, UsageError


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__)
def cli() -> None:
    """From a recipe to an installed, checked and explained sgl-kernel wheel."""


_MODULES = (wheels, looking, series, upstream, inputs, wheelhouse, doctor)
for _command in (command for module in _MODULES for command in module.VERBS):
    cli.add_command(_command)


def main(argv: list[str] | None = None) -> None:
    """Run the command line; the only place that prints the tool's errors.

    Who asked for JSON gets an error as JSON, unless there was a report before it, which then has the reasons.
    """
    words, before = argv if argv is not None else sys.argv[1:], console.emitted()
    try:
        outcome = _run(argv)
        if isinstance(outcome, SglwheelError):
            if "--json" in words and console.emitted() == before:
                console.emit_json(outcome.to_json())
            console.report(outcome)
            outcome = outcome.exit_code
    except BrokenPipeError:
        # Our reader is gone (`| head`): the usual silent end.
        console.hang_up()
        outcome = 141
    sys.exit(outcome)


def _run(argv: list[str] | None) -> int | SglwheelError:
    """What the command line ended with."""
    try:
        result: Any = cli.main(args=argv, prog_name="sglwheel", standalone_mode=False)
    except SglwheelError as error:
        return error
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "sglwheel"
        return UsageError(error.format_message(), next=f"{command} --help")
    except (click.exceptions.Abort, KeyboardInterrupt):
        return Interrupted("interrupted", next="run the same command again: it continues")
    return result if isinstance(result, int) else 0
