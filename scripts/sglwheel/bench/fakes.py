"""Builds of fake compilers: real ninja, processes and memory, and the real table of costs scaled down."""

from __future__ import annotations

import os
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from sglwheel import process
from sglwheel.build import meter
from sglwheel.build.admission import Governor
from sglwheel.build.budget import Budget
from sglwheel.build.costs import Cost, Costs
from sglwheel.build.ledger import Ledger
from sglwheel.build.limits import Host, memory_cgroup
from sglwheel.errors import BuildError

_MIB = 1 << 20
# What no scale applies to, beside a limit that is scaled: ninja, and launchers that wait.
_NINJA, _LAUNCHER = 64 * _MIB, 6 * _MIB
_WATCH = 0.05


@dataclass(frozen=True)
class Fake:
    """One unit of the table, scaled."""

    name: str
    seconds: float
    peak: int


@dataclass(frozen=True)
class Ran:
    """How one build went. `killed`: compilers that the kernel, or who stands for it, ended."""

    seconds: float
    killed: int
    requeued: int
    peak: int
    failed: bool


class _Table(Costs):
    """The fakes' own costs, as an earlier build would have measured them."""

    def __init__(self, fakes: Sequence[Fake]) -> None:
        super().__init__()
        self._fakes = {f"{fake.name}.o": Cost(fake.seconds, fake.peak, measured=True) for fake in fakes}

    def expect(self, unit: str) -> Cost:
        return self._fakes[unit]


def table(*, memory: float, time: float) -> list[Fake]:
    """The real wheel's units in their order, with bytes and seconds divided by what is given."""
    known = Costs()
    return [
        Fake(stem, cost.seconds / time, int(cost.peak / memory))
        for stem in known.stems
        if (cost := known.expect(f"{stem}.cu.o"))
    ]


def bound(fakes: Sequence[Fake], slots: int) -> float:
    """Seconds that no schedule can beat, memory permitting."""
    return max(sum(fake.seconds for fake in fakes) / slots, max(fake.seconds for fake in fakes))


def fixed(fakes: Sequence[Fake], directory: Path, *, width: int, limit: int | None) -> Ran:
    """Plain ninja with `-j width`; beyond `limit` bytes the kernel kills."""
    _write(fakes, directory, launcher=None)
    with _limited(limit, beside=_NINJA) as jail:
        return _ninja(directory, width, jail, {})


def governed(fakes: Sequence[Fake], directory: Path, *, slots: int, limit: int | None) -> Ran:
    """The same under the governor, which knows the limit, with the kernel behind it."""
    launcher = directory / "launch.py"
    directory.mkdir(parents=True, exist_ok=True)
    launcher.write_bytes((resources.files("sglwheel.build") / "data" / "launch.py").read_bytes())
    _write(fakes, directory, launcher=launcher)
    budget = Budget(
        slots, limit, None if limit is None else limit // 20, _Roomy() if limit is None else Host()
    )
    governor = Governor(
        _Table(fakes),
        budget,
        history=directory / "units.jsonl",
        expected=len(fakes),
        ledger=Ledger(directory / "ledger"),
    )
    with governor, _limited(limit, beside=_NINJA + _LAUNCHER * len(fakes)) as jail:
        ran = _ninja(directory, len(fakes), jail, {"SGLWHEEL_ADMISSION": governor.address})
    again = [why for _, why in governor.state.again]
    return Ran(
        ran.seconds,
        ran.killed + again.count("killed"),
        again.count("requeued"),
        governor.state.peak,
        ran.failed,
    )


class _Roomy(Host):
    """Where memory is not what is measured, what else runs here must not decide."""

    def memory_available(self) -> int:
        return 1 << 60

    def stalled(self) -> float:
        return 0.0


def _write(fakes: Sequence[Fake], directory: Path, *, launcher: Path | None) -> None:
    """A build.ninja, nothing built yet."""
    directory.mkdir(parents=True, exist_ok=True)
    for old in (*directory.glob("*.o"), directory / ".ninja_log"):
        old.unlink(missing_ok=True)
    compiler = resources.files("sglwheel.bench") / "data" / "fakecc.py"
    front = f"{sys.executable} -I -S {launcher} " if launcher else ""
    lines = ["rule cc", f"  command = {front}{sys.executable} -I -S {compiler} $seconds $mib -o $out"]
    for fake in fakes:
        lines += [
            f"build {fake.name}.o: cc",
            f"  seconds = {fake.seconds:.3f}",
            f"  mib = {fake.peak / _MIB:.3f}",
        ]
    (directory / "build.ninja").write_text("\n".join(lines) + "\n")


def _ninja(directory: Path, width: int, jail: _Jail, environment: dict[str, str]) -> Ran:
    ninja = Path(sys.executable).with_name("ninja")
    argv = [ninja if ninja.is_file() else "ninja", "-C", directory, "-j", str(width)]
    started = time.monotonic()
    done = process.stream(
        jail.wrap(argv),
        failure=BuildError,
        log=directory / "ninja.log",
        env={**os.environ, **environment},
        on_start=jail.watch,
    )
    seconds = time.monotonic() - started
    return Ran(seconds, jail.kills(), 0, jail.peak, done.returncode != 0)


class _Jail:
    """No limit at all."""

    peak = 0

    def wrap(self, argv: Sequence[str | Path]) -> Sequence[str | Path]:
        return argv

    def watch(self, root: int) -> None:
        """Told which process to look after."""

    def kills(self) -> int:
        return 0


class _Cgroup(_Jail):
    """The kernel itself: a cgroup of our own."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def wrap(self, argv: Sequence[str | Path]) -> Sequence[str | Path]:
        return ["/bin/sh", "-c", 'echo $$ > "$0/cgroup.procs"; exec "$@"', self._path, *argv]

    def kills(self) -> int:
        for name in ("memory.events", "memory.oom_control"):
            path = self._path / name
            if path.is_file():
                facts = dict(line.split() for line in path.read_text().splitlines())
                return int(facts.get("oom_kill", 0))
        return 0


class _Watchdog(_Jail):
    """Stands for the kernel where no cgroup can be made: beyond the limit the largest process is killed."""

    def __init__(self, limit: int) -> None:
        self._limit, self._killed = limit, 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def watch(self, root: int) -> None:
        self._thread = threading.Thread(target=self._look, args=(root,), daemon=True)
        self._thread.start()

    def _look(self, root: int) -> None:
        while not self._stop.wait(_WATCH):
            sizes = {each: meter.private_of(each) for each in meter.tree(root)}
            self.peak = max(self.peak, sum(sizes.values()))
            if sum(sizes.values()) > self._limit:
                meter.kill(max(sizes, key=lambda each: sizes[each]))
                self._killed += 1

    def kills(self) -> int:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        return self._killed


@contextmanager
def _limited(limit: int | None, *, beside: int) -> Iterator[_Jail]:
    if limit is None:
        yield _Jail()
        return
    group = memory_cgroup(f"sglwheel-bench-{uuid.uuid4().hex[:8]}", limit + beside)
    if group is None:
        yield _Watchdog(limit + beside)
        return
    try:
        yield _Cgroup(group)
    finally:
        for _ in range(50):
            try:
                group.rmdir()
                break
            except OSError:
                time.sleep(0.1)


def enforcement() -> str:
    """Who kills here, in words."""
    group = memory_cgroup(f"sglwheel-bench-{uuid.uuid4().hex[:8]}", 1 << 30)
    if group is None:
        return "a watchdog (no cgroup can be made here)"
    group.rmdir()
    return "the kernel, in a cgroup"
