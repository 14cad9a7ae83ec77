"""The command line: parses, calls one function, prints its value, and turns errors into exit codes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from sglwheel import __version__, console, recipe
from sglwheel.errors import Interrupted, SglwheelError, UsageError
from sglwheel.files import Layout

as_json = click.option("--json", "as_json", is_flag=True, help="the same facts for scripts, on stdout")
torch_option = click.option("--torch", metavar="VERSION", help="build against another torch; recipes/ is not changed")
override_option = click.option(
    "--override",
    "overrides",
    multiple=True,
    metavar="NAME=PATH|REV|PATH@REV",
    help="take one fetched source from elsewhere; the release is marked",
)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__)
def cli() -> None:
    """From a recipe to an installed, checked and explained sgl-kernel wheel."""


@cli.command()
@click.argument("name")
@torch_option
@override_option
@click.option("--jobs", type=click.IntRange(min=1), help="at most this many compilers; memory limits them anyway")
@click.option("--all", "all_patches", is_flag=True, help="apply patches that are not needed, too")
@as_json
def build(
    name: str, torch: str | None, overrides: tuple[str, ...], jobs: int | None, all_patches: bool, as_json: bool
) -> None:
    """Clone, patch, build, inspect, smoke-test, publish, and install recipe NAME."""
    from sglwheel import pipeline

    options = pipeline.Options(torch, _overrides(overrides), jobs, all_patches)
    done = pipeline.build(Layout.find(), name, options)
    if as_json:
        console.emit_json(done.facts)
    else:
        for line in done.summary:
            console.emit(line)


@cli.command()
@as_json
def recipes(as_json: bool) -> None:
    """List the recipes and what they build."""
    layout = Layout.find()
    loaded = [recipe.load(layout, name) for name in recipe.names(layout)]
    if as_json:
        console.emit_json({item.id: item.model_dump(mode="json", by_alias=True) for item in loaded})
        return
    width = max((len(item.id) for item in loaded), default=0)
    for item in loaded:
        console.emit(f"{item.id:<{width}}  {item.summary}")


@cli.command()
def schema() -> None:
    """Print the recipes' JSON schema (docs/recipe.schema.json)."""
    console.emit(recipe.json_schema())


def _overrides(texts: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name or not value:
            raise UsageError(
                f"--override {text!r} is not NAME=PATH, NAME=REV or NAME=PATH@REV",
                next="sglwheel build --help",
            )
        if name.lower() in {known.lower() for known in found}:
            raise UsageError(f"--override names {name} twice")
        found[name] = value
    return found


def wheel_path(text: str) -> Path:
    """A wheel named on the command line. Raises UsageError when it is not a file."""
    path = Path(text).absolute()
    if not path.is_file():
        raise UsageError(f"no such wheel: {text}", next="ls wheelhouse/*.whl")
    return path


def main(argv: list[str] | None = None) -> None:
    """Run the command line; the only place that catches the tool's errors."""
    try:
        result: Any = cli.main(args=argv, prog_name="sglwheel", standalone_mode=False)
    except SglwheelError as error:
        console.report(error)
        sys.exit(error.exit_code)
    except click.exceptions.Abort:
        console.report(Interrupted("interrupted"))
        sys.exit(Interrupted.exit_code)
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "sglwheel"
        console.report(UsageError(error.format_message(), next=f"{command} --help"))
        sys.exit(UsageError.exit_code)
    except KeyboardInterrupt:
        console.report(Interrupted("interrupted", next="run the same command again: it continues"))
        sys.exit(Interrupted.exit_code)
    except BrokenPipeError:
        # Our reader is gone (`| head`): the usual silent end.
        sys.stderr.close()
        sys.exit(141)
    sys.exit(result if isinstance(result, int) else 0)
