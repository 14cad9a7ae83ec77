"""Options that several verbs share."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

import click

from sglwheel.errors import SglwheelError, UsageError

_P = ParamSpec("_P")
_T = TypeVar("_T")

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12} | {
    "ki": 1 << 10,
    "mi": 1 << 20,
    "gi": 1 << 30,
    "ti": 1 << 40,
}

_LEAST = 64 << 20


def size(text: str) -> int:
    """Bytes as people write them: `20GiB`, `20G`, `512M`."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?", text.strip().lower())
    if match is None or match[2] not in _UNITS:
        raise click.BadParameter(f"{text!r} is not a size such as 20GiB")
    return int(float(match[1]) * _UNITS[match[2]])


def limit(text: str) -> int:
    """A size for compilers; the smallest takes some thirty megabytes."""
    found = size(text)
    if found < _LEAST:
        raise click.BadParameter(f"no compiler fits into {text}; 20GiB is enough for the largest")
    return found


def failing_as(failure: type[SglwheelError]) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]:
    """End what the system refuses a verb (a full disk, say) as the error of its stage."""

    def decorate(verb: Callable[_P, _T]) -> Callable[_P, _T]:
        @functools.wraps(verb)
        def told(*args: _P.args, **options: _P.kwargs) -> _T:
            try:
                return verb(*args, **options)
            except BrokenPipeError:
                raise
            except OSError as error:
                raise failure(
                    f"{verb.__name__.replace('_', ' ')}: {error.strerror or error}",
                    where={"file": str(error.filename)} if error.filename else None,
                    next="make room or give access, then run the same command again: it continues",
                ) from error

        return told

    return decorate


as_json = click.option("--json", "as_json", is_flag=True, help="the same facts for scripts, on stdout")
torch_option = click.option("--torch", metavar="VERSION", help="another torch; recipes/ is not changed")


def torch_from_option(text: str) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]:
    """An environment that has torch already."""
    return click.option("--torch-from", type=click.Path(path_type=Path), metavar="VENV|PYTHON", help=text)


jobs_option = click.option(
    "--jobs",
    type=click.IntRange(min=1),
    help="at most so many compilers; memory limits them anyway",
)
memory_option = click.option(
    "--memory", type=limit, metavar="SIZE", help="at most so much for all compilers together, such as 20GiB"
)
provider_option = click.option(
    "--provider",
    type=click.Choice(["system", "pypi"]),
    help="the CUDA toolkit: this host's, or one that is put together",
)
override_option = click.option(
    "--override",
    "overrides",
    multiple=True,
    metavar="NAME=PATH|REV|PATH@REV",
    help="take one fetched source from elsewhere; the release is marked",
)


def pairs(texts: tuple[str, ...], option: str) -> dict[str, str]:
    """Read `NAME=VALUE` arguments of an option. Raises UsageError for others, and for a name twice."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name or not value:
            raise UsageError(
                f"{option} {text!r} is not NAME=VALUE", next="sglwheel build --help or sglwheel lock --help"
            )
        if name.lower() in {known.lower() for known in found}:
            raise UsageError(f"{option} names {name} twice")
        found[name] = value
    return found
