"""Say what failed in a build: which unit, which line, why, and what to do."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from sglwheel.build.buildtree import BuildTree
from sglwheel.build.costs import Cost
from sglwheel.build.progress import Transcript, plain, source_path
from sglwheel.console import format_bytes
from sglwheel.errors import BuildError
from sglwheel.process import Completed, describe_status

_LINES = 12
_FULL_BYTES = 1 << 20


def configure_error(said: Transcript, done: Completed, log: Path, tree: BuildTree) -> BuildError:
    """What CMake, or scikit-build-core before it, stopped at."""
    found = said.configure_error()
    if found is None:
        return _unexplained("configuring failed", done, log, tree)
    place, message = found
    where = {"file": _short(place, tree)} if place else {}
    return BuildError(f"CMake cannot configure: {message}", where=where, next=_room(tree), log=log)


def exceeds_host(giants: Sequence[tuple[str, Cost]], limit: int) -> BuildError:
    """Units that no compiler on this host could bring to an end, before anything starts."""
    unit, cost = giants[0]
    found = [f"{source_path(unit)}: {format_bytes(cost.peak)}" for unit, cost in giants]
    known = "needed" if cost.measured else "is expected to need"
    return BuildError(
        f"the compiler of {source_path(unit)} {known} {format_bytes(cost.peak)}, this build may have"
        f" {format_bytes(limit)}",
        where={"units": "\n".join(found)},
        next="build where there is more memory (docs/build-farm.md), add swap, or raise --memory",
    )


def compile_error(
    said: Transcript, done: Completed, log: Path, tree: BuildTree, *, again: Sequence[tuple[str, str]] = ()
) -> BuildError:
    """The first failed unit with its first real error; `again` are the units that were started again."""
    if not said.failures:
        found = said.configure_error()
        return (
            configure_error(said, done, log, tree)
            if found
            else _unexplained("the build failed", done, log, tree)
        )
    # One unit's own error says more than another's death: when memory runs out, every compiler suffers.
    failure = next((item for item in said.failures if not item.killed), said.failures[0])
    place, message = failure.first_error()
    unit = source_path(failure.output)
    where = {"unit": unit}
    if place:
        where["error"] = f"{_short(place, tree)}: {_short(message, tree)}"
    others = [source_path(item.output) for item in said.failures if item is not failure]
    if others:
        where["also failed"] = ", ".join(others)
    if failure.killed:
        where["said"] = _short(message, tree)
        twice = (failure.output, "killed") in again
        return BuildError(
            f"the compiler of {unit} was killed"
            + (" twice, the second time while nothing ran beside it," if twice else ",")
            + " most likely by the kernel for want of memory",
            where=where,
            next="run the same command again, with --jobs 1 or more memory free: finished objects are kept",
            log=log,
        )
    tail = [line for line in failure.lines if line.strip()][:_LINES]
    if tail:
        where["output"] = "\n".join(_short(line[:300], tree) for line in tail)
    verb = "does not link" if not failure.output.endswith((".o", ".obj")) else "does not compile"
    return BuildError(f"{unit} {verb}: {_short(message, tree)}", where=where, next=_room(tree), log=log)


def _unexplained(what: str, done: Completed, log: Path, tree: BuildTree) -> BuildError:
    lines = [plain(line) for line in done.stdout.splitlines() if line.strip()][-_LINES:]
    return BuildError(
        f"{what} ({describe_status(done.returncode)})",
        where={"output": _short("\n".join(lines), tree)},
        next=_room(tree),
        log=log,
    )


def _room(tree: BuildTree) -> str | None:
    """What to do first where the disk is full: tools then fail in many words that do not say so."""
    try:
        if shutil.disk_usage(tree.path).free >= _FULL_BYTES:
            return None
    except OSError:  # somebody took the tree away meanwhile: its own error says so better
        return None
    return f"the disk of {tree.path} is full: free some of it, then run the same command again"


def _short(text: str, tree: BuildTree) -> str:
    """`text` with paths relative to the tree's sources."""
    for directory in (tree.source, tree.dependencies, tree.cmake, tree.path):
        text = text.replace(f"{directory}/", "")
    return text
