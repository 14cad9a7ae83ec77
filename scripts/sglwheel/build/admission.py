"""Admission of compilers: ninja runs wide, a unit starts when its expected memory fits.

`data/launch.py` stands in front of every compiler, asks here over a unix socket and waits. The connection is
the token: when the launcher ends, however it ends, its memory is free again. A launcher also reports its
compiler's end and is told to start it again when we, or somebody else, killed it.
"""

from __future__ import annotations

import json
import selectors
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sglwheel.build import meter, policy
from sglwheel.build.budget import Budget
from sglwheel.build.costs import Cost, Costs
from sglwheel.build.door import Door
from sglwheel.build.ledger import Claim, Ledger
from sglwheel.build.lines import Lines
from sglwheel.build.recording import Recording
from sglwheel.build.units import Finished, State, Unit, starved

_TICK = 0.25  # seconds between looks at memory
_SHOW = 1.0  # seconds between calls of `on_tick`
_NO_READER_LIMIT = 1 << 16
_SETTLE = 2.0  # seconds in which an ended compiler gives its memory back
_PATIENCE = 60.0  # seconds to wait for memory that others hold, before the smallest unit starts regardless


class Governor:
    """Serve admissions from a thread while a build runs (a context manager).

    Nothing starts before `expected` launchers ask, or no more come. Each finished unit becomes a line in
    `history`, from which the next build's expectations come; all that happens goes into `recording`.
    """

    def __init__(
        self,
        costs: Costs,
        budget: Budget,
        *,
        history: Path,
        expected: int = 1,
        ledger: Ledger | None = None,
        recording: Recording | None = None,
        on_tick: Callable[[State], None] | None = None,
    ) -> None:
        self._costs = costs
        self._budget = budget
        self._history_path = history
        self._ledger = ledger or Ledger()
        self._recording = recording or Recording(None)
        self.on_tick = on_tick
        self._units: dict[int, Unit] = {}
        self._stop = threading.Event()
        self._launchers = 0.0  # CPU seconds
        self._cpu = time.process_time()
        self._idle_since = time.monotonic()
        self._ended_at = float("-inf")
        self._expected_units = expected  # 0 once they are there
        self._expected = self._taken = 60.0  # seconds that what finished should have taken, and did
        self._failure: BaseException | None = None
        self.state = State()
        self.address = ""

    def __enter__(self) -> Governor:
        self._door = Door()
        self.address = self._door.address
        self._history = Lines(self._history_path)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._door.socket, selectors.EVENT_READ)
        self._ledger.__enter__()
        budget = self._budget
        self._recording.begin(slots=budget.slots, memory=budget.room(), total=budget.host.memory_total())
        self._thread = threading.Thread(target=self._work, name="admission", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self.state.overhead = self._launchers + time.process_time() - self._cpu
        self._hang_up()
        self._recording.close(self.state.overhead)
        self._ledger.__exit__(None, None, None)
        self._selector.close()
        self._history.close()
        if self._failure is not None and kind is None:
            raise self._failure

    def served(self, unit: str, cache: str) -> None:
        """A cache had the object of `unit`: nothing was admitted. For any thread."""
        done = Finished(unit, 0, 0.0, 0.0, 0, cache)
        self._recording.compiled(done, "done", time.monotonic())
        self.state.finished.append(done)

    def _work(self) -> None:
        """Serve; if that fails, let go of the launchers, so that ninja ends and `__exit__` says why."""
        try:
            self._serve()
        except BaseException as error:
            self._failure = error
            self._hang_up()

    def _hang_up(self) -> None:
        for unit in self._units.values():
            unit.channel.close()
        self._door.close()

    def _serve(self) -> None:
        looked = shown = 0.0
        while not self._stop.is_set():
            changed = False
            for key, _ in self._selector.select(timeout=_TICK):
                changed = True
                if key.fileobj is self._door.socket:
                    self._accept()
                else:
                    self._read(key.fd)
            now = time.monotonic()
            if now - looked >= _TICK:
                looked = now
                self._look(now)
                changed = True
            if changed:
                self._admit(now)
            if self.on_tick is not None and now - shown >= _SHOW:
                shown = now
                self.on_tick(self.state)

    def _running(self) -> list[Unit]:
        return [unit for unit in self._units.values() if unit.started is not None]

    def _accept(self) -> None:
        channel = self._door.accept()
        self._units[channel.fileno()] = Unit("", 0, Cost(0, 0), time.monotonic(), channel)
        self._selector.register(channel, selectors.EVENT_READ)

    def _read(self, descriptor: int) -> None:
        unit = self._units[descriptor]
        try:
            data = unit.channel.recv(1 << 14)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        unit.buffer += data
        while b"\n" in unit.buffer:
            line, unit.buffer = unit.buffer.split(b"\n", 1)
            self._message(unit, line)
        if not data or len(unit.buffer) > _NO_READER_LIMIT:
            self._selector.unregister(unit.channel)
            unit.channel.close()
            del self._units[descriptor]

    def _message(self, unit: Unit, line: bytes) -> None:
        try:
            message: dict[str, Any] = json.loads(line)
            if unit.started is None:
                unit.unit, unit.pid = str(message["unit"]), int(message["pid"])
                unit.cost = unit.learned or self._costs.expect(unit.unit)
                unit.since, unit.kills = time.monotonic(), self._budget.host.kills()
                return
            done = Finished.parse(unit.unit, message, peak=unit.peak)
            said = str(message.get("said", ""))
            launcher = float(message.get("own", 0.0))
        except (ValueError, KeyError, TypeError):
            return  # not one of our launchers: it never gets in
        self._launchers += launcher - unit.own
        unit.own = launcher  # of the whole process, so a second report holds the first
        self._end(unit, done, said)

    def _end(self, unit: Unit, done: Finished, said: str) -> None:
        """Take a compiler's end: it is done, or it starts again."""
        assert unit.started is not None
        outcome = "done" if done.code == 0 else "failed"
        if done.code and unit.ended:
            # It was in the way of another, which had outgrown what was expected of it.
            outcome, unit.learned = "requeued", replace(unit.cost, peak=max(unit.cost.peak, done.peak))
        elif done.code and not unit.alone and starved(done.code, said, self._kernel_killed(unit)):
            # Killed by somebody else, in practice by the kernel: once more, with all the memory there is.
            outcome, unit.alone = "killed", True
            unit.learned = replace(unit.cost, peak=max(unit.cost.peak, int(done.peak * policy.GROWTH)))
        self._recording.compiled(done, outcome, unit.started)
        if outcome in ("done", "failed"):
            self.state.finished.append(done)
            if not done.cached:
                self._expected += unit.cost.seconds if done.code == 0 else 0.0
                self._taken += done.seconds if done.code == 0 else 0.0
                self._history.add(self._costs.line(**done.costs()))
        else:
            self.state.again.append((done.unit, outcome))
        unit.started, unit.ended, unit.unit = None, False, ""
        unit.peak = unit.resident = 0
        unit.send(b"again\n" if outcome in ("requeued", "killed") else b"done\n")

    def _kernel_killed(self, unit: Unit) -> bool:
        return self._budget.host.kills() > unit.kills

    def _look(self, now: float) -> None:
        """Measure what runs, and end the youngest when memory runs short."""
        running = self._running()
        for unit in running:
            unit.resident = meter.resident(unit.pid)
            unit.peak = max(unit.peak, unit.resident)
        total = sum(unit.resident for unit in running)
        state = self.state
        state.resident, state.peak, state.room = total, max(state.peak, total), self._budget.room(total)
        state.builds = self._budget.others.builds
        state.running = tuple(
            (u.unit, u.started, u.cost, u.resident) for u in running if u.started is not None
        )
        state.waiting = sum(1 for unit in self._units.values() if unit.unit and unit.started is None)
        self._recording.memory(total, state.room)
        missing = self._budget.missing(total)
        if not missing or now - self._ended_at < _SETTLE:
            return
        for index in policy.victims([(unit.started or 0.0, unit.resident) for unit in running], missing):
            running[index].ended = meter.end_below(running[index].pid) > 0
            self._ended_at = now
        for unit in running:
            if unit.peak > unit.cost.peak:
                unit.cost = replace(unit.cost, peak=int(unit.peak * policy.GROWTH))

    def _admit(self, now: float) -> None:
        waiting = [unit for unit in self._units.values() if unit.unit and unit.started is None]
        running = self._running()
        if running:
            self._idle_since = now
        with self._ledger.turn():
            self._budget.others = self._ledger.others(since=self._waiting_since(running, waiting))
            while (
                self._gathered(waiting, now)
                and waiting
                and (chosen := self._next(waiting, running, now)) is not None
            ):
                waiting.remove(chosen)
                if self._start(chosen):
                    running.append(chosen)
            self._ledger.say(self._claim(running, waiting))

    def _gathered(self, waiting: Sequence[Unit], now: float) -> bool:
        """Whether the first choice can be made; once it was, every later one can."""
        if self._expected_units and policy.gathered([u.since for u in waiting], self._expected_units, now):
            self._expected_units = 0
        return not self._expected_units

    def _next(self, waiting: Sequence[Unit], running: Sequence[Unit], now: float) -> Unit | None:
        """The waiting unit to start now, if any."""
        if not waiting:
            return None
        budget = self._budget
        room = budget.room(sum(unit.resident for unit in running))
        if running:
            if any(unit.alone for unit in running) or now - self._ended_at < _SETTLE or budget.uneasy:
                return None
        elif now - self._idle_since > _PATIENCE and not (budget.others.running or budget.others.wanted):
            # Somebody else's work has the memory, and may have it for ever.
            room = max(room, min(unit.cost.peak for unit in waiting))
        pace = self._taken / self._expected
        index = policy.choose(
            [replace(u.cost, peak=max(u.cost.peak, room)) if u.alone else u.cost for u in waiting],
            [unit.active(pace, now) for unit in running],
            room=room,
            slots=budget.slots_beside(),
            patient=True,
        )
        return None if index is None else waiting[index]

    def _start(self, unit: Unit) -> bool:
        unit.started = time.monotonic()
        if unit.send(b"go\n"):
            return True
        unit.started, unit.unit = None, ""
        return False

    def _waiting_since(self, running: Sequence[Unit], waiting: Sequence[Unit]) -> float:
        """Since when we have had nothing while something waits: others go first that waited longer."""
        if running or not waiting:
            return time.monotonic()
        return max(self._idle_since, min(unit.since for unit in waiting))

    def _claim(self, running: Sequence[Unit], waiting: Sequence[Unit]) -> Claim:
        promised = sum(max(0, unit.cost.peak - unit.resident) for unit in running)
        if running or not waiting:
            return Claim(len(running), promised)
        wanted = min(unit.cost.peak for unit in waiting)
        return Claim(0, 0, wanted, self._waiting_since(running, waiting))
