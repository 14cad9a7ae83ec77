"""Compile many sources, several at once and never more than memory allows, and meter each."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
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


@dataclass(frozen=True)
class _Place:
    """A compile, and where in the groups it is."""

    group: int
    index: int
    item: Compile


def metered(
    groups: Sequence[Sequence[Compile]], scratch: Path, budget: Budget
) -> Iterator[tuple[int, list[float]]]:
    """CPU seconds of every compile of a group, with the group's index, as soon as the whole group is done.

    By the policy that a build has: longest first, those that fit beside the others. Seconds of one grow with
    what runs beside it on shared hardware threads, so what is to be compared belongs into one group: no more
    groups are opened at a time than fill the slots. Raises BuildError with what the compiler says, once those
    that run beside it have ended.
    """
    # What is free once the first of them runs is no longer free, so it is asked before.
    room, batches = budget.room(), _batches(groups, budget.slots)
    waiting = next(batches, [])
    running: dict[Future[float], tuple[_Place, float]] = {}
    spent: dict[int, dict[int, float]] = {}
    with ThreadPoolExecutor(budget.slots) as pool:
        while waiting or running:
            now = time.monotonic()
            active = [
                policy.Active(place.item.cost, max(0.0, begun + place.item.cost.seconds - now))
                for place, begun in running.values()
            ]
            costs = [place.item.cost for place in waiting]
            chosen = policy.choose(costs, active, room=room, slots=budget.slots)
            if chosen is not None:
                place = waiting.pop(chosen)
                into = scratch / f"{place.group}-{place.index}.o"
                running[pool.submit(_compile, place.item, into)] = (place, now)
                waiting = waiting or next(batches, [])
                continue
            for done in wait(running, return_when=FIRST_COMPLETED).done:
                place, begun = running.pop(done)
                of_group = spent.setdefault(place.group, {})
                of_group[place.index] = done.result()
                took = console.format_seconds(time.monotonic() - begun)
                console.detail(
                    f"{place.item.stem} of {place.item.target}: {done.result():.1f} CPU-s in {took}; "
                    f"{len(running)} run"
                )
                if len(of_group) == len(groups[place.group]):
                    yield place.group, [of_group[index] for index in range(len(of_group))]


def _batches(groups: Sequence[Sequence[Compile]], slots: int) -> Iterator[list[_Place]]:
    """As many groups at a time as fill the slots."""
    batch: list[_Place] = []
    for number, group in enumerate(groups):
        batch += [_Place(number, index, item) for index, item in enumerate(group)]
        if len(batch) >= slots:
            yield batch
            batch = []
    if batch:
        yield batch


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
