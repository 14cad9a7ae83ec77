"""A governor with real launchers, on a host that has as much memory as a test says."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sglwheel.build import units as units_module
from sglwheel.build.admission import Governor
from sglwheel.build.budget import Budget
from sglwheel.build.costs import Cost, Costs
from sglwheel.build.ledger import Ledger
from sglwheel.build.limits import Host
from sglwheel.build.recording import Recording

LAUNCHER = Path(units_module.__file__).parent / "data" / "launch.py"
MIB = 1 << 20


class Known(Costs):
    """Costs that a test says."""

    def __init__(self, **peaks_mib: int) -> None:
        super().__init__()
        self._peaks = peaks_mib

    def expect(self, unit: str) -> Cost:
        return Cost(1.0, self._peaks.get(unit.split(".")[0], 20) * MIB)


class Quiet(Host):
    """This host, with nothing else on it: as much memory free as a test says, no stalls."""

    free = 4096 * MIB

    def memory_available(self) -> int:
        return self.free

    def stalled(self) -> float:
        return 0.0


@contextmanager
def governing(tree: Path, budget: Budget, costs: Costs | None = None) -> Iterator[Governor]:
    governor = Governor(
        costs or Known(),
        budget,
        history=tree / "units.jsonl",
        ledger=Ledger(tree / "ledger"),
        recording=Recording(tree / "recording.jsonl"),
    )
    with governor:
        yield governor


def slots(count: int, *, memory: int | None = None) -> Budget:
    return Budget(count, memory, 64 * MIB, Quiet())


def launch(address: str | None, *command: str | Path, tree: Path) -> subprocess.Popen[str]:
    environment = dict(os.environ)
    environment.pop("SGLWHEEL_ADMISSION", None)
    if address is not None:
        environment["SGLWHEEL_ADMISSION"] = address
    return subprocess.Popen(
        [sys.executable, "-I", "-S", tree / "launch.py", *command],
        env=environment,
        cwd=tree,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def wait_for(condition: Callable[[], object], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "what was waited for never came"
        time.sleep(0.02)
