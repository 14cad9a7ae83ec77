"""Several publishers at once, killed at random moments and started again until all is published."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from sglwheel.wheelhouse import Wheelhouse
from wheelworld import make_kernel

_PUBLISHER = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from wheelworld import reports
from sglwheel.files import Layout
from sglwheel.wheelhouse import publish
for wheel in sorted(Path(sys.argv[1]).glob("*.whl")):
    publish(*reports(wheel), Layout(Path(sys.argv[2])))
    wheel.rename(wheel.with_suffix(".done"))
"""


@dataclass(frozen=True)
class Outcome:
    """What was to be published, and how often somebody died of it."""

    house: Wheelhouse
    names: frozenset[str]
    kills: int
    # How many of the kills left a release in the journal or a copy half made: they hit something.
    hits: int


def publish_and_kill(base: Path, publishers: int, each: int) -> Outcome:
    """Let `publishers` processes publish `each` wheels into `base`/wheelhouse.

    AssertionError if one fails by itself.
    """
    dice = random.Random(7)
    names = set()
    for one in range(publishers):
        for build in range(1, each + 1):
            # The last two come twice: two hosts built the same.
            line = 0 if build > each - 2 else one
            wheel = make_kernel(base / f"dist{one}", f"0.3.{line}+cu130.torch2.12.0.sm120a.{build}")
            names.add(wheel.name)
    script = _PUBLISHER.format(tests=str(Path(__file__).parent))
    deadline = time.monotonic() + 600 + publishers * each
    house = Wheelhouse(base / "wheelhouse")

    def start(one: int) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-c", script, str(base / f"dist{one}"), str(base)]
        return subprocess.Popen(argv, stderr=subprocess.DEVNULL)

    running = {one: start(one) for one in range(publishers)}
    killed, hits, enough, moment = 0, 0, 1, 0.0
    while running:
        assert time.monotonic() < deadline
        for one, process in list(running.items()):
            if process.poll() is None:
                continue
            if list((base / f"dist{one}").glob("*.whl")):
                assert process.returncode == -signal.SIGKILL, "it failed by itself"
                running[one] = start(one)
            else:
                del running[one]
        there = len(list(house.builds.glob("[!.]*")))
        if there >= enough and not moment:
            moment = time.monotonic() + dice.uniform(0, 0.5)
        if running and moment and time.monotonic() > moment:
            victim = running[dice.choice(list(running))]
            victim.kill()
            victim.wait()
            hits += bool(list(house.builds.glob(f".*.{victim.pid}.*")))
            # By progress: on a slow host, kills by the clock would let nobody come to publishing.
            killed, enough, moment = killed + 1, there + dice.randint(1, 5), 0.0
        time.sleep(0.02)
    return Outcome(house, frozenset(names), killed, hits)
