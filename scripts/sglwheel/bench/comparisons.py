"""Units under two sets of flags; what was compared stays so when a run of hours ends early or moves on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import zip_longest
from pathlib import Path
from typing import Any

from sglwheel import console
from sglwheel.bench.together import Compile, metered
from sglwheel.build.budget import Budget
from sglwheel.errors import UsageError


@dataclass(frozen=True)
class Measured:
    """CPU seconds of both sides of one comparison, compiled in one run at about the same time.

    `commands` is a digest of what was compiled, without paths; `began` tells runs apart.
    """

    name: str
    commands: str
    ours: float
    theirs: float
    began: str

    @property
    def factor(self) -> float:
        """How many times ours theirs take, which another host's speed does not change."""
        return self.theirs / self.ours


@dataclass(frozen=True)
class Comparison:
    """What is compiled together: units of ours, and the same, or samples of more, of theirs."""

    name: str
    ours: Sequence[Compile]
    theirs: Sequence[Compile]
    versions: str

    @property
    def compiles(self) -> Sequence[Compile]:
        return (*self.ours, *self.theirs)

    @property
    def expected(self) -> float:
        """CPU seconds of ours on a quiet host."""
        return sum(item.cost.seconds for item in self.ours)

    @property
    def peak(self) -> int:
        """Bytes that the largest of its compilers is expected to need."""
        return max(item.cost.peak for item in self.compiles)

    @property
    def commands(self) -> str:
        """Digest of all that decides what is compiled, but no path: the same in another checkout."""
        words = [[item.target, *(word for word in item.words if "/" not in word)] for item in self.compiles]
        return hashlib.sha256(json.dumps([self.versions, words]).encode()).hexdigest()


class Kept:
    """Comparisons in a file of JSON lines; without a file, of this run alone.

    Raises UsageError for a file that cannot be read or written.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._known = {(item.name, item.commands): item for item in _read(path)} if path is not None else {}
        if path is not None:
            _append(path, "")  # said now, and not after an hour

    def find(self, name: str, commands: str) -> Measured | None:
        """What an earlier run measured with the same commands."""
        return self._known.get((name, commands))

    def otherwise(self, name: str) -> bool:
        """Whether earlier runs measured it with other commands only."""
        return any(known == name for known, _ in self._known)

    def add(self, measured: Measured) -> None:
        """Keep it."""
        self._known[measured.name, measured.commands] = measured
        if self._path is not None:
            # A line that a crash tore ends here.
            _append(self._path, f"\n{json.dumps(vars(measured))}\n")


def measure(
    wanted: Sequence[Comparison], kept: Kept, scratch: Path, budget: Budget
) -> Mapping[str, Measured]:
    """What each takes on both sides, by name, from `kept` where it is there. Raises as `metered` does."""
    known = {item.name: kept.find(item.name, item.commands) for item in wanted}
    found = {name: measured for name, measured in known.items() if measured is not None}
    missing = _mixed([item for item in wanted if item.name not in found])
    if found:
        console.say(f"measured before, so not again: {', '.join(found)}")
    changed = [item.name for item in missing if kept.otherwise(item.name)]
    if changed:
        console.say(f"kept, but of other commands or versions, so again: {', '.join(changed)}")
    began = datetime.now(UTC).isoformat(timespec="seconds")
    for index, spent in metered([item.compiles for item in missing], scratch, budget):
        one = missing[index]
        split = len(one.ours)
        measured = Measured(one.name, one.commands, sum(spent[:split]), sum(spent[split:]), began)
        kept.add(measured)
        found[one.name] = measured
        console.say(f"{one.name}: 1/{measured.factor:.2f}, {len(found)} of {len(wanted)}")
    return found


def _mixed(wanted: Sequence[Comparison]) -> list[Comparison]:
    """Large and small ones in turn: a batch of large ones alone fills memory and leaves slots empty."""
    by_peak = sorted(wanted, key=lambda item: -item.peak)
    half = (len(by_peak) + 1) // 2
    pairs = zip_longest(by_peak[:half], by_peak[half:])
    return [item for pair in pairs for item in pair if item is not None]


def _append(path: Path, text: str) -> None:
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise _unusable(path, error) from error


def _read(path: Path) -> Iterator[Measured]:
    try:
        lines = path.read_text("utf-8", "replace").splitlines() if path.exists() else []
    except OSError as error:
        raise _unusable(path, error) from error
    for line in lines:
        try:
            record: dict[str, Any] = json.loads(line)
            item = Measured(**record)
            if item.ours > 0 and item.theirs > 0:
                yield item
        except (ValueError, TypeError):
            continue  # torn by a crash


def _unusable(path: Path, error: OSError) -> UsageError:
    return UsageError(
        f"cannot keep measurements in {path}: {error.strerror}",
        next="give --keep a file in a directory that exists and can be written",
    )
