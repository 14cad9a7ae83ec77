"""How long a build still takes: what its units cost, by this host's pace, under the policy that runs them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from sglwheel.build.costs import Cost, Costs
from sglwheel.build.simulation import Job, Run, play
from sglwheel.build.units import State

_PRIOR = 120.0  # seconds of compiling that the table itself counts for
_AGAIN = 5.0  # seconds between schedules: one of 300 units takes some hundredths of a second
_OVERDUE = 0.15  # of the time that it took so far, that a unit is expected to take still at the least


def remaining(
    waiting: Iterable[Cost], running: Sequence[tuple[float, Cost]], *, slots: int, room: int
) -> float:
    """Seconds until the last unit ends. `running` holds (seconds so far, expected cost)."""
    active = [
        Run(-1, Job(cost), cost, -so_far, max(cost.seconds - so_far, so_far * _OVERDUE))
        for so_far, cost in running
    ]
    return play(map(Job, waiting), room=room, slots=slots, running=active, evict=False).seconds


class Forecast:
    """Turn expected costs and what was measured so far into an honest remaining time."""

    def __init__(self, units: Iterable[str], costs: Costs, *, slots: int) -> None:
        self._waiting = {unit: costs.expect(unit) for unit in units}
        self._all = dict(self._waiting)
        self._slots = slots
        self._seen = 0
        self._expected = self._taken = _PRIOR
        self.pace = 1.0  # seconds for an expected one, on this host as it is now
        self._counted = float("-inf")
        self._left = 0.0

    @property
    def total_seconds(self) -> float:
        """CPU seconds that all units together are expected to take on a quiet host."""
        return sum(cost.seconds for cost in self._all.values())

    @property
    def done_seconds(self) -> float:
        """Those of the units that are done."""
        return self.total_seconds - sum(cost.seconds for cost in self._waiting.values())

    def left(self, state: State) -> float:
        """Seconds until the last unit ends."""
        for done in state.finished[self._seen :]:
            cost = self._waiting.pop(done.unit, None)
            if cost is not None and done.code == 0 and not done.cached:
                self._expected += cost.seconds
                self._taken += done.seconds
        self._seen = len(state.finished)
        now = time.monotonic()
        if now - self._counted >= _AGAIN:
            # Believed as far as there is evidence; a unit that is overdue is some, too.
            late = [(now - since, cost.seconds) for _, since, cost, _ in state.running]
            late = [(spent, expected) for spent, expected in late if spent > expected]
            self.pace = (self._taken + sum(spent for spent, _ in late)) / (
                self._expected + sum(expected for _, expected in late)
            )
            names = {unit for unit, *_ in state.running}
            waiting = [self._here(cost) for unit, cost in self._waiting.items() if unit not in names]
            running = [(now - since, self._here(cost)) for _, since, cost, _ in state.running]
            self._left = remaining(waiting, running, slots=self._slots, room=state.room)
            self._counted = now
        return max(0.0, self._left - (now - self._counted))

    def _here(self, cost: Cost) -> Cost:
        return Cost(cost.seconds * self.pace, cost.peak, cost.measured)
