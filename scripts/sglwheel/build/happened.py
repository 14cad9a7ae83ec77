"""Read back what a build's recording says: runs, compiles, memory, and the sums over them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sglwheel.build.costs import amount, unit_key
from sglwheel.console import counted, format_bytes, format_seconds


@dataclass(frozen=True)
class Compile:
    """One run of one compiler. `start` in seconds since the build's first begin, runs laid end to end.

    `outcome`: "done", "failed", "requeued" (we ended it for want of memory) or "killed" (somebody else did).
    """

    unit: str
    start: float
    seconds: float
    cpu: float
    peak: int
    outcome: str
    cached: str = ""

    @property
    def end(self) -> float:
        return self.start + self.seconds


@dataclass(frozen=True)
class Session:
    """One run of the tool over a tree: when it began (UTC), and what it was allowed."""

    date: str
    start: float
    end: float
    slots: int
    memory: int
    total: int


@dataclass
class History:
    """Everything that happened to a tree, over all its runs.

    `samples` holds (seconds, resident bytes); `overhead` the CPU seconds of launchers, governor and view.
    """

    sessions: list[Session] = field(default_factory=list)
    compiles: list[Compile] = field(default_factory=list)
    samples: list[tuple[float, int]] = field(default_factory=list)
    overhead: float = 0.0

    @property
    def seconds(self) -> float:
        """Wall seconds of all runs together."""
        return sum(session.end - session.start for session in self.sessions)

    @property
    def cpu(self) -> float:
        return sum(item.cpu for item in self.compiles)

    @property
    def peak(self) -> int:
        """Bytes of all compilers at once, as sampled, and at least of the largest one."""
        largest = max((item.peak for item in self.compiles), default=0)
        return max(max((resident for _, resident in self.samples), default=0), largest)

    def count(self, outcome: str) -> int:
        return sum(1 for item in self.compiles if item.outcome == outcome)

    @property
    def hits(self) -> int:
        return sum(1 for item in self.compiles if item.cached)

    def slowest(self, count: int = 10) -> list[Compile]:
        """The units that took longest, by CPU."""
        done = [item for item in self.compiles if item.outcome == "done" and not item.cached]
        return sorted(done, key=lambda item: -item.cpu)[:count]

    def lanes(self) -> list[int]:
        """A lane for each compile, so that no two in one lane overlap and lanes are few."""
        free: list[float] = []
        found: dict[int, int] = {}
        for index in sorted(range(len(self.compiles)), key=lambda i: self.compiles[i].start):
            item = self.compiles[index]
            lane = next((lane for lane, end in enumerate(free) if end <= item.start + 0.05), len(free))
            free[lane : lane + 1] = [item.end]
            found[index] = lane
        return [found[index] for index in range(len(self.compiles))]

    def to_json(self) -> dict[str, Any]:
        """For scripts: sums, runs and compiles."""
        return {
            "seconds": round(self.seconds, 3),
            "cpu_seconds": round(self.cpu, 3),
            "overhead_cpu_seconds": round(self.overhead, 3),
            "peak_bytes": self.peak,
            "compiled": sum(1 for item in self.compiles if item.outcome == "done" and not item.cached),
            "cache_hits": self.hits,
            "requeued": self.count("requeued"),
            "killed": self.count("killed"),
            "failed": self.count("failed"),
            "runs": [vars(session) for session in self.sessions],
            "units": [vars(item) for item in self.compiles],
        }


def read(path: Path) -> History:
    """The history in a recording, empty when there is none; lines torn by a crash are skipped."""
    found = History()
    origin = last = 0.0
    begun: Session | None = None

    def end_session() -> None:
        if begun is not None:
            found.sessions.append(replace(begun, start=origin, end=last))

    for event in _events(path):
        try:
            kind = event["event"]
            if kind == "begin":
                end_session()
                limits = (int(amount(event.get(key, 0))) for key in ("slots", "memory", "total"))
                origin, begun = last, Session(str(event.get("date", "")), last, last, *limits)
            elif kind == "unit":
                item = Compile(
                    str(event["unit"]),
                    origin + amount(event["start"]),
                    amount(event["seconds"]),
                    amount(event["cpu"]),
                    int(amount(event["peak"])),
                    str(event["outcome"]),
                    str(event.get("cached", "")),
                )
                found.compiles.append(item)
                last = max(last, item.end)
            elif kind in ("memory", "end"):
                at = origin + amount(event["at"])
                last = max(last, at)
                if kind == "memory":
                    found.samples.append((at, int(amount(event["resident"]))))
                else:
                    found.overhead += amount(event.get("overhead", 0.0))
        except (KeyError, TypeError, ValueError):
            continue
    end_session()
    return found


def summary(history: History, *, slowest: int = 10) -> Iterator[str]:
    """What a person wants to know after a build."""
    done = [item for item in history.compiles if item.outcome == "done"]
    parts = [
        counted(len(done), "unit"),
        f"{format_seconds(history.cpu)} of CPU in {format_seconds(history.seconds)}",
        f"at most {format_bytes(history.peak)} at once",
    ]
    if history.hits:
        parts.append(f"{history.hits} from the cache")
    again = {"requeued": "started again for want of memory", "killed": "killed from outside"}
    parts += [f"{count} {words}" for outcome, words in again.items() if (count := history.count(outcome))]
    yield ", ".join(parts)
    yield from table(history.slowest(slowest))


def table(items: Sequence[Compile]) -> Iterator[str]:
    """One aligned line for each compile: unit, CPU, memory."""
    names = [short_name(item.unit) for item in items]
    width = max(map(len, names), default=0)
    for name, item in zip(names, items, strict=True):
        yield f"  {name:<{width}}  {format_seconds(item.cpu):>12}  {format_bytes(item.peak):>8}"


def short_name(unit: str) -> str:
    """`CMakeFiles/x.dir/csrc/gemm/a.cu.o` → `csrc/gemm/a.cu`; fetched sources by their own name."""
    path = unit_key(unit).partition(".dir/")[2] or unit
    return re.sub(r"^(dependencies|_deps)/", "", path).removesuffix(".o")


def _events(path: Path) -> Iterator[dict[str, Any]]:
    try:
        lines = path.read_text("utf-8", "replace").splitlines()
    except OSError:
        return
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict):
            yield event
