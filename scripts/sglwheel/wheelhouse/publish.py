"""Put a checked wheel into the wheelhouse: completely, once, and never over other bytes."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from sglwheel import files
from sglwheel.errors import WheelhouseError
from sglwheel.files import Layout
from sglwheel.wheelhouse import subindexes
from sglwheel.wheelhouse.facts import facts
from sglwheel.wheelhouse.house import Wheelhouse, unusable
from sglwheel.wheelhouse.links import copy_synced
from sglwheel.wheelhouse.record import Record, Release
from sglwheel.wheelhouse.settle import settle
from sglwheel.wheelhouse.wheelfile import WheelFile


class Finished(Protocol):
    """What publishing needs of a finished wheel."""

    @property
    def path(self) -> Path: ...
    @property
    def requires_torch(self) -> str: ...
    @property
    def marked(self) -> tuple[str, ...]: ...


class Report(Protocol):
    """What publishing needs of an inspection or a smoke report."""

    @property
    def wheel_sha256(self) -> str: ...
    @property
    def ok(self) -> bool: ...
    def to_json(self) -> Any: ...


class SmokeReport(Report, Protocol):
    """A smoke report also says whether a GPU took part."""

    @property
    def gpu_checked(self) -> bool: ...


def publish(
    finished: Finished,
    inspection: Report,
    smoke: SmokeReport,
    layout: Layout,
    *,
    root: Path | None = None,
    provenance: Mapping[str, Any] | None = None,
) -> Release:
    """Publish a wheel that was inspected and smoked; the same bytes again change nothing.

    `provenance` is what the inputs inside the wheel cannot say: who built it, when, how long it took. A wheel
    that no GPU has checked, or that has an overridden source, becomes a candidate. Raises WheelhouseError for
    reports of another wheel, failed ones, a name that is taken by other bytes, and a wheelhouse that cannot
    be written.
    """
    house = Wheelhouse(root or layout.wheelhouse)
    wheel = WheelFile.read(finished.path)
    for what, report in (("inspection", inspection), ("smoke", smoke)):
        _demand(what, report, wheel)
    if finished.requires_torch not in wheel.requires_dist:
        raise WheelhouseError(
            f"the wheel does not require {finished.requires_torch}: a node's torch would not be checked",
            where={"file": str(wheel.path), "Requires-Dist": ", ".join(wheel.requires_dist) or "none"},
            next="build it again: the finishing stage writes Requires-Dist",
        )
    record = Record.of(
        wheel,
        metadata_sha256=hashlib.sha256(wheel.metadata).hexdigest(),
        gpu_checked=smoke.gpu_checked,
        requires_torch=finished.requires_torch,
        marked=finished.marked,
        **facts(wheel, inspection.to_json(), smoke.to_json()),
    )
    results = {
        "inspection": inspection.to_json(),
        "smoke": smoke.to_json(),
        "provenance": dict(provenance or {}),
    }
    try:
        return _publish(house, wheel, record, results)
    except OSError as error:
        raise unusable(house.root, error) from error


def _publish(house: Wheelhouse, wheel: WheelFile, record: Record, results: Mapping[str, Any]) -> Release:
    # The slow part (copying, hashing) needs no lock.
    with house.staging(record.id) as staged:
        _fill(staged, wheel, record, results)
        with house.locked():
            home = house.builds / record.id
            if home.is_dir():
                record = _already(house, record)
            with house.transaction(record.id):
                if not home.is_dir():
                    record = record.model_copy(update={"serial": house.next_serial()})
                    _write(staged / "release.json", record.to_json().encode())
                    staged.rename(home)
                    files.sync_directory(house.builds)
                settle(house)
    release = Release(house.root, record)
    shown = [release.path, *([house.flat(record)] if record.available else [])]
    if any(files.sha256(path) != record.sha256 for path in shown):
        raise WheelhouseError(
            "the wheel read back is not the wheel written: the disk or file system is damaged",
            where={"file": str(release.path)},
            next="sglwheel wheelhouse verify",
        )
    return release


def _fill(staged: Path, wheel: WheelFile, record: Record, results: Mapping[str, Any]) -> None:
    target = staged / wheel.filename
    copy_synced(wheel.path, target)
    # What was checked is what is published, also if somebody swaps the source file meanwhile.
    if files.sha256(target) != record.sha256:
        raise WheelhouseError(
            "the wheel changed while it was published",
            where={"file": str(wheel.path)},
            next="run the same command again when nobody writes there",
        )
    _write(staged / f"{wheel.filename}.metadata", wheel.metadata)
    for kind, value in results.items():
        text = json.dumps({"wheel_sha256": record.sha256, kind: _plain(value)}, indent=1, sort_keys=True)
        _write(staged / f"{wheel.filename}.{kind}.json", text.encode() + b"\n")
    for path, text in subindexes.subindex(record).items():
        _write(staged / path, text.encode())
    files.sync_directory(staged)


def _already(house: Wheelhouse, record: Record) -> Record:
    there = house.read(record.id)
    if there.sha256 != record.sha256:
        raise WheelhouseError(
            f"{record.filename} is already published with other bytes",
            where={"published": f"sha256 {there.sha256}", "this one": f"sha256 {record.sha256}"},
            next="raise `wheel.build` in the recipe, then build again: a published name never changes",
        )
    if there.removed:
        raise WheelhouseError(
            f"{record.filename} was removed from this wheelhouse on purpose",
            where={"why": there.events[-1].detail},
            next="raise `wheel.build` in the recipe, then build again",
        )
    return there


def _demand(what: str, report: Report, wheel: WheelFile) -> None:
    if report.wheel_sha256 != wheel.sha256:
        raise WheelhouseError(
            f"the {what} report is about another wheel",
            where={
                "report": f"sha256 {report.wheel_sha256}",
                "wheel": f"sha256 {wheel.sha256}",
                "file": str(wheel.path),
            },
            next="inspect and smoke this very file, then publish it",
        )
    if not report.ok:
        raise WheelhouseError(
            f"not published: the {what} report of {wheel.filename} has failures",
            where={"file": str(wheel.path)},
            next=f"sglwheel {'inspect' if what == 'inspection' else 'smoke'} {wheel.path} --recipe <id>",
        )


def _plain(value: Any) -> Any:
    """Reports give JSON as text or as plain values."""
    return json.loads(value) if isinstance(value, str) else value


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
