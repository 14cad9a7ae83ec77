"""Make room: remove old wheels that nobody needs, and keep their names and reports."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from sglwheel.errors import WheelhouseError
from sglwheel.wheelhouse import linerecord
from sglwheel.wheelhouse.house import Wheelhouse
from sglwheel.wheelhouse.linerecord import Generation, generation
from sglwheel.wheelhouse.record import Record, now
from sglwheel.wheelhouse.settle import settle


@dataclass(frozen=True)
class Policy:
    """What is old: a release goes when every one of these lets it go."""

    keep_days: int = 90
    # Newest generations (public version and build number) of each line.
    keep_generations: int = 3
    # Requirements files, lock files, inventories: whatever names a release in them keeps it.
    pins: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """Why a release stays or goes."""

    record: Record
    remove: bool
    because: str


@dataclass(frozen=True)
class Collection:
    """What was, or would be, removed."""

    verdicts: tuple[Verdict, ...]
    done: bool

    @property
    def removed(self) -> tuple[Record, ...]:
        return tuple(verdict.record for verdict in self.verdicts if verdict.remove)

    @property
    def bytes(self) -> int:
        return sum(record.size for record in self.removed)


def collect(
    house: Wheelhouse, policy: Policy, *, dry_run: bool = True, today: datetime | None = None
) -> Collection:
    """Remove wheels by policy, never one that a line or a pin file needs; a dry run only says which.

    Names of removed wheels stay taken. Raises WheelhouseError for a pin file that cannot be read: rather
    nothing is removed than something that is needed.
    """
    pinned = _pins(policy.pins)
    with house.locked():
        records = [record for record in house.records().values() if not record.removed]
        needed = _needed(linerecord.load_all(house).values())
        ranks = _ranks(records)
        verdicts = []
        for record in sorted(records, key=Record.order):
            age = (today or now()) - record.published
            because = _keeps(record, age, policy, needed, ranks, pinned)
            verdicts.append(
                Verdict(record, because is None, because or f"{age.days} days old and not needed")
            )
        result = Collection(tuple(verdicts), done=not dry_run)
        if result.removed and not dry_run:
            # The record first: from then on nothing links to the wheel, and settling deletes it.
            with house.transaction(*(record.id for record in result.removed)):
                for verdict in verdicts:
                    if verdict.remove:
                        house.write(verdict.record.with_event("removed", verdict.because, removed=True))
                settle(house)
    return result


def _keeps(
    record: Record,
    age: timedelta,
    policy: Policy,
    needed: dict[str, str],
    ranks: dict[str, int],
    pinned: Sequence[tuple[Path, str]],
) -> str | None:
    if record.id in needed:
        return f"needed by line {needed[record.id]}"
    for path, text in pinned:
        # A version ends where the file goes on with something else: `.1` is not a pin of `.12`.
        words = (record.filename.replace("+", "%2B"), record.filename, record.id, record.sha256)
        if any(word in text for word in words) or _names_version(record.version, text):
            return f"pinned in {path}"
    if age < timedelta(days=policy.keep_days):
        return f"younger than {policy.keep_days} days"
    if record.yanked is None and ranks[record.id] < policy.keep_generations:
        return f"among the newest {policy.keep_generations} of its line"
    return None


def _names_version(version: str, text: str) -> bool:
    start = text.find(version)
    while start >= 0:
        after = text[start + len(version) : start + len(version) + 2]
        if not after[:1].isalnum() and not (after[:1] == "." and after[1:].isalnum()):
            return True
        start = text.find(version, start + 1)
    return False


def _needed(lines: Iterable[linerecord.Pointer]) -> dict[str, str]:
    """What lines point to, and what they would go back to."""
    needed: dict[str, str] = {}
    for line in lines:
        steps = [move.members for move in line.history]
        for members in (line.members, *steps[-3:]):
            needed.update(dict.fromkeys(members, line.name))
    return needed


def _ranks(records: Iterable[Record]) -> dict[str, int]:
    """How many newer generations a release's line has; yanked ones make nothing old."""
    listed = list(records)
    lines: dict[tuple[str, str | None], set[Generation]] = {}
    for record in listed:
        if record.available:
            lines.setdefault((record.project, record.line), set()).add(generation(record))
    ladders = {line: sorted(generations) for line, generations in lines.items()}
    return {
        record.id: len(ladder) - bisect.bisect_right(ladder, generation(record))
        for record in listed
        for ladder in [ladders.get((record.project, record.line), [])]
    }


def _pins(paths: Iterable[Path]) -> list[tuple[Path, str]]:
    texts = []
    for path in paths:
        try:
            texts.append((path, path.read_text("utf-8")))
        except (OSError, UnicodeDecodeError) as error:
            raise WheelhouseError(
                f"a pin file cannot be read, so nothing was removed: {error}", where={"file": str(path)}
            ) from error
    return texts
