"""Compile many sources, several at once and never more than memory allows, and meter each."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

from sglwheel import console, process
from sglwheel.build import policy
from sglwheel.build.budget import Budget
from sglwheel.build.costs import Cost
from sglwheel.errors import BuildError


@dataclass(frozen=True)
class Compile:
    """One compile command as CMake lists it; `cost` is what it is expected to take."""

    target: str
    stem: str
    words: tuple[str, ...]
    directory: Path
    cost: Cost

    @property
    def cuda(self) -> bool:
        """Whether nvcc compiles it."""
        return Path(self.words[0]).name == "nvcc"

    def into(self, path: Path) -> tuple[str, ...]:
        """The words, with another file for the object."""
        words = list(self.words)
        words[words.index("-o") + 1] = str(path)
        return tuple(words)


def metered(compiles: Sequence[Compile], scratch: Path, budget: Budget) -> Mapping[Compile, float]:
    """CPU seconds of each, by the policy that a build has: longest first, those that fit beside the others.

    Seconds of one grow with what runs beside it on shared hardware threads, so what is to be compared belongs
    into one call. Raises BuildError with what the compiler says, once those that run beside it have ended.
    """
    # What is free once the first of them runs is no longer free, so it is asked before.
    room, waiting = budget.room(), list(compiles)
    running: dict[Future[float], tuple[Compile, float]] = {}
    spent: dict[Compile, float] = {}
    with ThreadPoolExecutor(budget.slots) as pool:
        while waiting or running:
            now = time.monotonic()
            active = [
                policy.Active(item.cost, max(0.0, begun + item.cost.seconds - now))
                for item, begun in running.values()
            ]
            costs = [item.cost for item in waiting]
            chosen = policy.choose(costs, active, room=room, slots=budget.slots)
            if chosen is not None:
                item = waiting.pop(chosen)
                running[pool.submit(_compile, item, scratch / f"unit-{len(waiting)}.o")] = (item, now)
                continue
            for done in wait(running, return_when=FIRST_COMPLETED).done:
                item, begun = running.pop(done)
                spent[item] = done.result()
                took = console.format_seconds(time.monotonic() - begun)
                left = f"{len(waiting)} wait, {len(running)} run"
                console.detail(f"{item.stem} of {item.target}: {spent[item]:.1f} CPU-s in {took}; {left}")
    return spent


def _compile(item: Compile, into: Path) -> float:
    try:
        return process.metered(
            item.into(into),
            failure=BuildError,
            cwd=item.directory,
            what=f"compiling {item.stem} of {item.target}",
        )
    finally:
        into.unlink(missing_ok=True)
