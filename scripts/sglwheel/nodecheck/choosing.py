"""Which release is right for a node, and the line that brings it there."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from typing import Any, NamedTuple

from sglwheel.nodecheck.catalogue import (
    Signers,
    StopError,
    alone,
    available,
    install_line,
    members,
    pointed,
    release_id,
    releases,
    replacing_line,
    subindex,
)
from sglwheel.nodecheck.fits import fits
from sglwheel.nodecheck.needs import lacking
from sglwheel.nodecheck.node import KERNELS, Node, Result
from sglwheel.nodecheck.reading import shown


class Choice(NamedTuple):
    """The release that fits, or the nearest miss, with every reason."""

    release: dict[str, Any]
    results: list[Result]
    # None where nothing fits.
    line: str | None


def choose(
    node: Node, wheelhouse: str, *, release: str | None, line: str | None, signers: Signers | None = None
) -> Choice:
    """Judge all that may be recommended, or one `release`, or what one `line` points to.

    Raises StopError where there is nothing to judge, or nobody of `signers` said where a line points.
    """
    choices = _choices(wheelhouse, release=release, line=line, signers=signers)
    judged = [(item, fits(node, item)) for item in choices]
    good = [pair for pair in judged if all(result.status != "failed" for result in pair[1])]
    # The nearest miss explains most.
    chosen, results = (
        good[0] if good else min(judged, key=lambda pair: sum(r.status == "failed" for r in pair[1]))
    )
    if not good:
        return Choice(chosen, results, None)
    missing = [] if alone(chosen) else lacking("torch")
    if missing:
        said = ", ".join(missing[:4]) + (f" and {len(missing) - 4} more" if len(missing) > 4 else "")
        detail = f"torch's own are not all here: {said}; so the line leaves them alone (--no-deps)"
        results = [*results, Result("needs", "unknown", detail)]
    others = [other for other in _rivals(chosen) if other in node.kernels]
    for other in others:
        detail = f"{other} {node.kernels[other]} owns the same files: the line replaces it"
        results = [*results, Result("rival", "passed", detail)]
    return Choice(chosen, results, _line(wheelhouse, chosen, others, alone=bool(missing) or alone(chosen)))


def _choices(
    wheelhouse: str, *, release: str | None, line: str | None, signers: Signers | None
) -> list[dict[str, Any]]:
    found = releases(wheelhouse)
    wanted = members(wheelhouse, line, signers) if line else None
    free = wanted is None and not release
    choices = available(found, pointed(wheelhouse, found, signers) if free else ())
    if wanted is not None:
        choices = [item for item in choices if release_id(item) in wanted]
    if release:
        choices = [
            item for item in choices if release in (release_id(item), item["version"], item["filename"])
        ]
    else:
        # What is right for a GPU is the question; a wheel of Python alone fits any.
        choices = [item for item in choices if not alone(item)] or choices
    if not choices:
        said = " ".join(filter(None, ("no release", release, f"in line {line} of" if line else "in")))
        raise StopError(f"{said} {shown(wheelhouse)}")
    return choices


def _rivals(release: dict[str, Any]) -> list[str]:
    return [name for name in KERNELS if release["name"] in KERNELS and name != release["name"]]


def _line(wheelhouse: str, release: dict[str, Any], others: list[str], *, alone: bool) -> str:
    """For uv, or for pip where there is no uv, and for the very Python that was looked at."""
    where = subindex(wheelhouse, release_id(release))
    name = str(release["name"])
    pin = f"{name}=={release['version']}"
    here, client = "", "uv pip"
    if not shutil.which("uv"):
        found = shutil.which("python") == sys.executable
        client = f"{'python' if found else shlex.quote(sys.executable)} -m pip"
    elif os.environ.get("VIRTUAL_ENV") != sys.prefix:
        # uv would take another environment, or find none, as in images whose Python is the system's.
        here = f"export UV_PYTHON={shlex.quote(sys.executable)}; "
    if others:
        return here + replacing_line(client, where, pin, [*others, name], alone=alone)
    return here + install_line(client, where, pin, alone=alone)
