"""The policy played through without processes: how long a build still takes, and what the policy is worth."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from sglwheel.build import policy
from sglwheel.build.costs import Cost
from sglwheel.build.policy import Active

# Chooses like policy.choose: (waiting, running, room, slots) → index or None.
Choose = Callable[[Sequence[Cost], Sequence[Active], int, int], int | None]
# (fraction of the run, fraction of the peak): what a unit has from then on.
Profile = tuple[tuple[float, float], ...]

WHOLE: Profile = ((0.0, 1.0),)


@dataclass(frozen=True)
class Job:
    """A unit as it really is, and as it is expected to be (None: just so)."""

    true: Cost
    expected: Cost | None = None
    profile: Profile = WHOLE


@dataclass
class Run:
    """A unit that runs in the simulation."""

    index: int
    job: Job
    cost: Cost
    start: float
    left: float

    @property
    def memory(self) -> int:
        """What it has now."""
        done = 1.0 - self.left / self.job.true.seconds if self.job.true.seconds > 0 else 1.0
        share = max((part for since, part in self.job.profile if since <= done + 1e-9), default=0.0)
        return int(self.job.true.peak * share)

    def until(self) -> float:
        """Seconds to the next change of what it has, or to its end."""
        total = self.job.true.seconds
        done = 1.0 - self.left / total if total > 0 else 1.0
        later = [since for since, _ in self.job.profile if since > done + 1e-9]
        return min([self.left, *((since - done) * total for since in later)])

    def active(self, clock: float) -> Active:
        """What the policy knows of it."""
        peak = max(self.cost.peak, self.memory)
        return Active(Cost(self.cost.seconds, peak), max(0.0, self.cost.seconds - (clock - self.start)))


@dataclass
class Outcome:
    """How a simulated build went: `most` bytes at once, `over` of them beyond the room that there was."""

    seconds: float = 0.0
    most: int = 0
    over: int = 0
    requeued: int = 0
    spans: list[tuple[int, float, float]] = field(default_factory=list)


def choose(waiting: Sequence[Cost], running: Sequence[Active], room: int, slots: int) -> int | None:
    """The governor's own choice."""
    return policy.choose(waiting, running, room=room, slots=slots)


def in_order(waiting: Sequence[Cost], running: Sequence[Active], room: int, slots: int) -> int | None:
    """A fixed `-j`: the next one as soon as a slot is free, whatever it takes."""
    return 0 if waiting and len(running) < slots else None


def play(
    jobs: Iterable[Job],
    *,
    room: int,
    slots: int,
    running: Iterable[Run] = (),
    choose: Choose = choose,
    evict: bool = True,
) -> Outcome:
    """Play a build through to its end. Time passes from one change to the next, so it costs no time."""
    found = Outcome()
    waiting = [(index, job, job.expected or job.true) for index, job in enumerate(jobs)]
    active = list(running)
    clock = 0.0
    while waiting or active:
        while True:
            index = choose([w[2] for w in waiting], [run.active(clock) for run in active], room, slots)
            if index is None:
                break
            number, job, cost = waiting.pop(index)
            active.append(Run(number, job, cost, clock, job.true.seconds))
        if not active:
            raise AssertionError(f"a deadlock: {len(waiting)} units wait and nothing runs")
        total = sum(run.memory for run in active)
        found.most = max(found.most, total)
        if evict and total > room:
            queued = _evict(active, total - room)
            waiting += queued
            found.requeued += len(queued)
            total = sum(run.memory for run in active)
        found.over = max(found.over, total - room)
        step = min(run.until() for run in active)
        clock += step
        for run in active:
            run.left -= step
        found.spans += [(run.index, run.start, clock) for run in active if run.left <= 1e-9]
        active = [run for run in active if run.left > 1e-9]
    found.seconds = clock
    return found


def _evict(active: list[Run], missing: int) -> list[tuple[int, Job, Cost]]:
    """End the youngest, as the governor does, and learn from those that outgrew what was expected."""
    chosen = {
        index: active[index] for index in policy.victims([(r.start, r.memory) for r in active], missing)
    }
    for run in active:
        if run.memory > run.cost.peak:
            run.cost = replace(run.cost, peak=int(run.memory * policy.GROWTH))
    active[:] = [run for index, run in enumerate(active) if index not in chosen]
    return [(run.index, run.job, run.cost) for run in chosen.values()]
