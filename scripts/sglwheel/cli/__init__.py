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
    """Run the command line; the only place that catches the tool's errors."""
    try:
        result: Any = cli.main(args=argv, prog_name="sglwheel", standalone_mode=False)
    except SglwheelError as error:
        console.report(error)
        sys.exit(error.exit_code)
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "sglwheel"
        console.report(UsageError(error.format_message(), next=f"{command} --help"))
        sys.exit(UsageError.exit_code)
    except (click.exceptions.Abort, KeyboardInterrupt):
        console.report(Interrupted("interrupted", next="run the same command again: it continues"))
        sys.exit(Interrupted.exit_code)
    except BrokenPipeError:
        # Our reader is gone (`| head`): the usual silent end.
        console.hang_up()
        sys.exit(141)
    sys.exit(result if isinstance(result, int) else 0)
