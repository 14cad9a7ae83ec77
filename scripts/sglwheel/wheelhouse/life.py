"""What may happen to a release after it was published: promote, yank, unyank."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sglwheel import files
from sglwheel.errors import WheelhouseError
from sglwheel.wheelhouse import linerecord
from sglwheel.wheelhouse.facts import checks
from sglwheel.wheelhouse.house import Wheelhouse
from sglwheel.wheelhouse.record import Record, Release
from sglwheel.wheelhouse.settle import settle


@dataclass(frozen=True)
class GpuReport:
    """A smoke report that a node with a GPU wrote."""

    wheel_sha256: str
    ok: bool
    gpu_checked: bool
    value: Mapping[str, Any]

    @classmethod
    def load(cls, path: Path) -> GpuReport:
        """Read the JSON that `sglwheel smoke --json` or a node's check wrote. Raises WheelhouseError."""
        try:
            value = json.loads(path.read_bytes())
            value = value.get("smoke", value)
            return cls(str(value["wheel_sha256"]), value["ok"] is True, value["gpu_checked"] is True, value)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise WheelhouseError(
                f"not a GPU report: {error or type(error).__name__}",
                where={"file": str(path)},
                next="on the node: python gpu-check.pyz --wheel <wheel> -o report.json",
            ) from error


def promote(house: Wheelhouse, text: str, report: GpuReport) -> Release:
    """Make a candidate a release, on the word of a GPU that ran this very wheel."""
    with house.locked():
        record = _changeable(house, house.find(text).id)
        why = _no_promotion(record, report)
        if why:
            raise WheelhouseError(
                f"{record.id} stays a candidate: {why}",
                next="on the node: python gpu-check.pyz --wheel <wheel> -o report.json",
            )
        # The report lies there before the status that rests on it.
        target = house.builds / record.id / f"{record.filename}.gpu.json"
        files.write_atomic(
            target, json.dumps({"wheel_sha256": record.sha256, "gpu": report.value}, indent=1) + "\n"
        )
        seen = dict(record.checks) | dict(checks("gpu", report.value))
        return _change(house, record.with_event("promoted", status="release", checks=tuple(seen.items())))


def yank(house: Wheelhouse, text: str, reason: str, *, force: bool = False) -> Release:
    """Take a release out of every resolver's sight; who pinned it still gets it.

    A line that points to it goes back by `force` only.
    """
    if not reason.strip():
        raise WheelhouseError("a yank needs a reason: people who pinned the release read it")
    with house.locked():
        record = _changeable(house, house.find(text).id)
        lines = linerecord.load_all(house)
        holders = [name for name, pointer in lines.items() if record.id in pointer.members]
        if holders and not force:
            raise WheelhouseError(
                f"{record.id} cannot be yanked: {', '.join(holders)} points to it",
                next=f"sglwheel wheelhouse rollback {holders[0]}, or yank --force",
            )
        return _change(house, record.with_event("yanked", reason.strip(), yanked=reason.strip()))


def unyank(house: Wheelhouse, text: str, reason: str = "") -> Release:
    """Show a release to resolvers again."""
    with house.locked():
        record = _changeable(house, house.find(text).id)
        if record.yanked is None:
            raise WheelhouseError(f"{record.id} is not yanked")
        return _change(house, record.with_event("unyanked", reason.strip(), yanked=None))


def _changeable(house: Wheelhouse, id: str) -> Record:
    record = house.read(id)
    if record.removed:
        raise WheelhouseError(
            f"{id} was removed: only its name is left", where={"why": record.events[-1].detail}
        )
    return record


def _change(house: Wheelhouse, record: Record) -> Release:
    with house.transaction(record.id):
        house.write(record)
        settle(house)
    return Release(house.root, record)


def _no_promotion(record: Record, report: GpuReport) -> str | None:
    if report.wheel_sha256 != record.sha256:
        return f"the report is about another wheel, sha256 {report.wheel_sha256[:12]}…"
    if not report.gpu_checked:
        return "no GPU took part in the report"
    if not report.ok:
        return "the report has failures"
    if record.marked:
        return f"it was built from a changed source ({', '.join(record.marked)})"
    return None
