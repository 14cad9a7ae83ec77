"""Several publishers at once, killed at random: nothing lost, nothing torn, the index true.

`SGLWHEEL_SCALE=8x200` runs it at another size.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sglwheel.wheelhouse import Wheelhouse
from sglwheel.wheelhouse.verify import verify
from wheelworld import make_kernel

pytestmark = pytest.mark.integration

PUBLISHER = """
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


def test_killed_publishers_lose_and_tear_nothing(tmp_path: Path) -> None:
    publishers, each = map(int, os.environ.get("SGLWHEEL_SCALE", "3x6").split("x"))
    dice = random.Random(7)
    names = set()
    for one in range(publishers):
        for build in range(1, each + 1):
            # The last two come twice: two hosts built the same.
            line = 0 if build > each - 2 else one
            wheel = make_kernel(tmp_path / f"dist{one}", f"0.3.{line}+cu130.torch2.12.0.sm120a.{build}")
            names.add(wheel.name)
    script = PUBLISHER.format(tests=str(Path(__file__).parents[1]))
    deadline = time.monotonic() + 600 + publishers * each

    def start(one: int) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-c", script, str(tmp_path / f"dist{one}"), str(tmp_path)]
        return subprocess.Popen(argv, stderr=subprocess.DEVNULL)

    running = {one: start(one) for one in range(publishers)}
    killed, next_kill = 0, time.monotonic() + 1
    while running:
        assert time.monotonic() < deadline
        for one, process in list(running.items()):
            if process.poll() is None:
                continue
            if list((tmp_path / f"dist{one}").glob("*.whl")):
                assert process.returncode == -signal.SIGKILL, "it failed by itself"
                running[one] = start(one)
            else:
                del running[one]
        if running and time.monotonic() > next_kill and killed < publishers * each // 3:
            running[dice.choice(list(running))].kill()
            killed += 1
            next_kill = time.monotonic() + dice.uniform(0.2, 1.5)
        time.sleep(0.02)
    assert killed > 0
    house = Wheelhouse(tmp_path / "wheelhouse")
    assert {path.name for path in house.root.glob("*.whl")} == names
    found = {finding.rule for finding in verify(house).findings}
    assert found <= {"leftover"}, "what a killed one was copying is all that may be left"
    assert verify(house, repair=True).ok
    assert verify(house).findings == ()
