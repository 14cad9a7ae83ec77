"""Which unit starts next and which one has to go, as pure functions of costs and memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sglwheel.build.costs import Cost

GROWTH = 1.25  # how much more a unit is expected to take once it took more than it was expected to

_QUIET = 1.0  # seconds without a new launcher after which no more are expected
_GATHER = 15.0  # seconds to wait for launchers at most


@dataclass(frozen=True)
class Active:
    """A unit that runs: what it is expected to take, and for how many seconds still."""

    cost: Cost
    left: float


def choose(
    waiting: Sequence[Cost], running: Sequence[Active], *, room: int, slots: int, patient: bool = False
) -> int | None:
    """The index of the unit to start now, or None.

    `room` is the memory, in bytes, for all units of this build together. Longest first, as the last unit to
    end decides how long a build takes. Where that does not fit, a shorter one takes the place meanwhile, but
    only one that will not be in its way. One unit always runs, or nothing ever would, unless `patient`: then
    memory is expected to come back without our doing.
    """
    if not waiting or len(running) >= slots:
        return None
    order = sorted(range(len(waiting)), key=lambda i: (-waiting[i].seconds, -waiting[i].peak, i))
    first, free = waiting[order[0]], room - sum(active.cost.peak for active in running)
    if first.peak <= free:
        return order[0]
    if not running:
        fitting = next((index for index in order if waiting[index].peak <= free), None)
        if fitting is not None or patient:
            return fitting
        return min(order, key=lambda index: waiting[index].peak)
    # When the first can start, and what it leaves then: EASY backfilling, with memory in the place of nodes.
    start, spare = 0.0, free - first.peak
    for active in sorted(running, key=lambda active: active.left):
        if spare >= 0:
            break
        start, spare = active.left, spare + active.cost.peak
    for index in order[1:]:
        cost = waiting[index]
        if cost.peak <= free and (spare < 0 or cost.seconds <= start or cost.peak <= spare):
            return index
    return None


def victims(running: Sequence[tuple[float, int]], missing: int) -> list[int]:
    """Indices of the units to end and queue again, so that `missing` bytes come back: the youngest first.

    `running` holds when each started and what it has. The oldest is never ended: it comes to its end, so the
    build does.
    """
    found: list[int] = []
    for index in sorted(range(len(running)), key=lambda index: -running[index][0])[:-1]:
        if missing <= 0:
            break
        found.append(index)
        missing -= running[index][1]
    return found


def gathered(arrivals: Sequence[float], expected: int, now: float) -> bool:
    """Whether to make the first choice: else the first to ask would run, and not the longest.

    `arrivals` says when each waiting unit asked; `expected` units are going to, as far as is known.
    """
    if not arrivals:
        return False
    return len(arrivals) >= expected or now - max(arrivals) > _QUIET or now - min(arrivals) > _GATHER
