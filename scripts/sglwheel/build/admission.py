"""Admission of compilers: ninja runs wide, a unit starts when its expected memory fits.

`data/launch.py` stands in front of every compiler, asks here over a unix socket and waits. The connection is
the token: when the launcher ends, however it ends, its memory is free again.
"""

from __future__ import annotations

import json
import selectors
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from sglwheel.build import jobs
from sglwheel.build.jobs import Cost, Costs

_TICK = 1.0  # seconds between looks at memory
_NO_READER_LIMIT = 1 << 16


@dataclass(frozen=True)
class Active:
    """A unit that runs: what it is expected to take, and for how many seconds still."""

    cost: Cost
    left: float


def choose(waiting: Sequence[Cost], running: Sequence[Active], *, room: int, slots: int) -> int | None:
    """The index of the unit to start now, or None.

    Longest first, as the last unit to end decides how long a build takes. Where that does not fit, a shorter
    one takes the place meanwhile, but only one that will not be in its way. One unit always runs, or nothing
    ever would.
    """
    if not waiting or len(running) >= slots:
        return None
    order = sorted(range(len(waiting)), key=lambda i: (-waiting[i].seconds, -waiting[i].peak, i))
    first, free = waiting[order[0]], room - sum(active.cost.peak for active in running)
    if not running or first.peak <= free:
        return order[0]
    # When the first can start, and what it leaves then: EASY backfilling, with memory in the place of nodes.
    start, spare = 0.0, free - first.peak
    for active in sorted(running, key=lambda active: active.left):
        if spare >= 0:
            break
        start, spare = active.left, spare + active.cost.peak
    for index in order[1:]:
        cost = waiting[index]
        if cost.peak <= free and (cost.seconds <= start or cost.peak <= spare):
            return index
    return None


@dataclass
class Unit:
    """One unit between asking and its end."""

    unit: str
    pid: int
    cost: Cost
    since: float
    channel: socket.socket
    started: float | None = None
    peak: int = 0
    buffer: bytes = b""


@dataclass(frozen=True)
class Finished:
    """A compiler that ended."""

    unit: str
    code: int
    seconds: float
    cpu: float
    peak: int


@dataclass
class State:
    """What progress shows; read by another thread, so replaced rather than edited."""

    running: tuple[tuple[str, float, Cost], ...] = ()
    finished: list[Finished] = field(default_factory=list)
    resident: int = 0
    peak: int = 0


class Governor:
    """Serve admissions from a thread while a build runs (a context manager).

    `slots` compilers run at once at most; together they get what memory is available, less the reserve. Each
    finished unit becomes a line in `history`, from which the next build's expectations come.
    """

    def __init__(
        self,
        costs: Costs,
        *,
        slots: int,
        history: Path,
        on_tick: Callable[[State], None] | None = None,
        available: Callable[[], int] = jobs.memory_available,
    ) -> None:
        self._costs = costs
        self._slots = slots
        self._history_path = history
        self.on_tick = on_tick
        self._available = available
        self._units: dict[int, Unit] = {}
        self._stop = threading.Event()
        self.state = State()
        self.address = ""

    def __enter__(self) -> Governor:
        # A unix socket's path holds 107 bytes, which a build tree's own path may exceed.
        self._directory = Path(tempfile.mkdtemp(prefix="sglwheel-"))
        self.address = str(self._directory / "admission")
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._server.bind(self.address)
        self._server.listen(1024)
        self._server.setblocking(False)
        self._history_path.parent.mkdir(parents=True, exist_ok=True)
        self._history: IO[str] = self._history_path.open("a", encoding="utf-8")
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._server, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, name="admission", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        for unit in self._units.values():
            unit.channel.close()
        self._selector.close()
        self._server.close()
        self._history.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _serve(self) -> None:
        looked = 0.0
        while not self._stop.is_set():
            for key, _ in self._selector.select(timeout=_TICK / 4):
                if key.fileobj is self._server:
                    self._accept()
                else:
                    self._read(key.fd)
            now = time.monotonic()
            if now - looked >= _TICK:
                looked = now
                self._look()
            self._admit(now)

    def _accept(self) -> None:
        channel, _ = self._server.accept()
        channel.setblocking(False)
        self._units[channel.fileno()] = Unit("", 0, Cost(0, 0), time.monotonic(), channel)
        self._selector.register(channel, selectors.EVENT_READ)

    def _read(self, descriptor: int) -> None:
        unit = self._units[descriptor]
        try:
            data = unit.channel.recv(4096)
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
                unit.cost = self._costs.expect(unit.unit)
                return
            peak = max(unit.peak, int(message["peak_kib"]) * 1024)
            done = Finished(
                unit.unit, int(message["code"]), float(message["seconds"]), float(message["cpu"]), peak
            )
        except (ValueError, KeyError, TypeError):
            return  # not one of our launchers: it never gets in
        self.state.finished.append(done)
        self._history.write(json.dumps(done.__dict__) + "\n")
        self._history.flush()

    def _look(self) -> None:
        """Measure what runs."""
        running = [unit for unit in self._units.values() if unit.started is not None]
        sizes = jobs.resident(unit.pid for unit in running) if running else {}
        for unit in running:
            unit.peak = max(unit.peak, sizes.get(unit.pid, 0))
        total = sum(sizes.values())
        self.state.resident = total
        self.state.peak = max(self.state.peak, total)
        self.state.running = tuple((u.unit, u.started, u.cost) for u in running if u.started is not None)
        if self.on_tick is not None:
            self.on_tick(self.state)

    def _admit(self, now: float) -> None:
        while True:
            waiting = [u for u in self._units.values() if u.unit and u.started is None]
            if not waiting:
                return
            running = [u for u in self._units.values() if u.started is not None]
            if len(running) >= self._slots:
                return
            sizes = jobs.resident(u.pid for u in running) if running else {}
            index = choose(
                [u.cost for u in waiting],
                [self._active(u, now) for u in running],
                room=self._available() + sum(sizes.values()) - jobs.reserve(),
                slots=self._slots,
            )
            if index is None:
                return
            chosen = waiting[index]
            chosen.started = time.monotonic()
            try:
                chosen.channel.sendall(b"go\n")
            except OSError:
                chosen.started = None
                chosen.unit = ""  # its end arrives as an empty read

    def _active(self, unit: Unit, now: float) -> Active:
        """What a running unit is in the way of; one that outgrew its estimate counts with what it has."""
        assert unit.started is not None
        left = max(0.0, unit.cost.seconds * self._pace() - (now - unit.started))
        return Active(Cost(unit.cost.seconds, max(unit.cost.peak, unit.peak)), left)

    def _pace(self) -> float:
        """Seconds that this host takes for an expected one, believed as far as there is evidence."""
        done = [item for item in self.state.finished if item.code == 0]
        expected = sum(self._costs.expect(item.unit).seconds for item in done)
        return (sum(item.seconds for item in done) + 60) / (expected + 60)
