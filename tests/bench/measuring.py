"""One run's lines, each with its spread, and the bars that it missed."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path


class Seconds(float):
    """By the clock; `cpu` is what this process and its children spent, which a busy host changes less."""

    cpu: float


def seconds(run: Callable[[], object]) -> Seconds:
    """How long `run` takes."""
    start, spent = time.perf_counter(), _spent()
    run()
    taken = Seconds(time.perf_counter() - start)
    taken.cpu = _spent() - spent
    return taken


def _spent() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def turn_by_turn(
    runs: dict[str, Callable[[], object]], rounds: int, before: Callable[[], object] = lambda: None
) -> dict[str, list[Seconds]]:
    """Seconds of each, all of them once in each round: what slows the host for a while slows all.

    Every other round goes backwards, so that none always follows the same. `before` each is not counted.
    """
    taken: dict[str, list[Seconds]] = {name: [] for name in runs}
    for number in range(rounds):
        for name, run in list(runs.items())[:: -1 if number % 2 else 1]:
            before()
            taken[name].append(seconds(run))
    return taken


@dataclass
class Report:
    """Prints as it goes; ends nonzero when a bar was missed."""

    missed: list[str] = field(default_factory=list)

    def say(self, what: str, value: str, note: str = "") -> None:
        print(f"{what:<52} {value:>10}  {note}".rstrip(), flush=True)

    def times(self, what: str, taken: Sequence[Seconds], *, bar: float | None = None) -> float:
        """Median and spread of seconds, and what they may be; return the median."""
        median = statistics.median(taken)
        cpu = statistics.median(each.cpu for each in taken)
        note = f"{min(taken):.2f} to {max(taken):.2f}, {len(taken)} runs"
        # Otherwise a server did the work.
        note += f", {cpu:.2f} CPU-s" if cpu > median / 10 else ""
        if bar is not None:
            note += self._judged(what, median <= bar, f"{bar:g} s")
        self.say(what, f"{median:.2f} s", note)
        return median

    def ratio(
        self, what: str, mine: Sequence[float], other: Sequence[float], *, bar: float | None = None
    ) -> None:
        """The median of the single rounds' ratios, and what the middle half of them and all lie between."""
        each = sorted(one / two for one, two in zip(mine, other, strict=True))
        value = statistics.median(each)
        low, _, high = statistics.quantiles(each, n=4, method="inclusive")
        note = f"middle half {low:.2f} to {high:.2f}, all {each[0]:.2f} to {each[-1]:.2f}"
        if bar is not None:
            note += self._judged(what, value <= bar, f"{bar:g}")
        self.say(what, f"{value:.2f}", note)

    def count(self, what: str, value: int, *, bar: int, detail: str = "") -> None:
        """A number that must be `bar`."""
        self.say(what, str(value), f"{detail}{self._judged(what, value == bar, str(bar))}".lstrip(", "))

    def _judged(self, what: str, good: bool, bar: str) -> str:
        if not good:
            self.missed.append(what)
        return f", bar: {bar}{'' if good else ' MISSED'}"


def machine() -> str:
    """What the numbers hold for."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    load = " ".join(f"{item:.1f}" for item in os.getloadavg())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{os.cpu_count()} x {model}, {memory:.0f} GiB, Linux {platform.release()}, "
        f"Python {platform.python_version()}, load {load}"
    )
