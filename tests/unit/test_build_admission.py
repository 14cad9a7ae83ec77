"""Admission as policy (pure), and the governor with real launchers that run real commands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglwheel.build import jobs
from sglwheel.build.admission import Active, Governor, choose
from sglwheel.build.jobs import Cost, Costs
from sglwheel.build.progress import remaining

LAUNCHER = Path(jobs.__file__).parent / "data" / "launch.py"
GIB = 1 << 30

costs = st.builds(
    Cost,
    seconds=st.floats(min_value=0.1, max_value=300, allow_nan=False),
    peak=st.integers(min_value=1, max_value=20 * GIB),
)


def test_two_of_the_largest_never_run_together_on_24_gb() -> None:
    first, second, small = Cost(265, 15 * GIB), Cost(175, 14 * GIB), Cost(45, 3 * GIB)
    room = 22 * GIB
    assert choose([second, small, first], [], room=room, slots=8) == 2
    assert choose([second, small], [Active(first, 265)], room=room, slots=8) == 1


def test_no_slot_idles_beside_a_large_unit_that_is_overdue() -> None:
    large, next_large, small = Cost(265, 15 * GIB), Cost(175, 14 * GIB), Cost(45, 3 * GIB)
    assert choose([next_large, small], [Active(large, 0)], room=22 * GIB, slots=2) == 1


def test_small_units_do_not_starve_a_large_one() -> None:
    large, small = Cost(265, 15 * GIB), Cost(45, 3 * GIB)
    running = [Active(small, 10 + index) for index in range(6)]
    # 20 GB: room for one more small one, but the large one could start in 13 s and leave 2 GB.
    assert choose([large, small], running, room=20 * GIB, slots=8) is None
    quick, little = Cost(5, 2 * GIB), Cost(45, 1 * GIB)
    assert choose([large, quick], running, room=20 * GIB, slots=8) == 1
    assert choose([large, little], running, room=20 * GIB, slots=8) == 1


def test_a_unit_that_exceeds_the_host_runs_alone() -> None:
    giant = Cost(10, 100 * GIB)
    assert choose([giant], [], room=GIB, slots=8) == 0
    assert choose([giant], [Active(Cost(1, 1), 1)], room=GIB, slots=8) is None


@given(
    units=st.lists(costs, min_size=1, max_size=30),
    room=st.integers(min_value=1, max_value=64 * GIB),
    slots=st.integers(min_value=1, max_value=16),
)
def test_every_unit_ends_and_memory_is_kept(units: list[Cost], room: int, slots: int) -> None:
    queue = list(units)
    running: list[tuple[float, Cost]] = []
    clock, ended = 0.0, 0
    while queue or running:
        while True:
            active = [Active(cost, end - clock) for end, cost in running]
            index = choose(queue, active, room=room, slots=slots)
            if index is None:
                break
            running.append((clock + queue[index].seconds, queue.pop(index)))
            assert len(running) <= slots
            assert len(running) == 1 or sum(cost.peak for _, cost in running) <= room
        assert running, "nothing runs although something waits"
        clock = min(end for end, _ in running)
        ended += sum(1 for end, _ in running if end <= clock)
        running = [(end, cost) for end, cost in running if end > clock]
    assert ended == len(units)


@given(units=st.lists(costs, max_size=30), slots=st.integers(min_value=1, max_value=16))
def test_forecast_lies_between_its_bounds(units: list[Cost], slots: int) -> None:
    left = remaining(units, [], slots=slots, room=1 << 60)
    work, longest = sum(cost.seconds for cost in units), max((cost.seconds for cost in units), default=0)
    assert max(longest, work / slots) - 1e-6 <= left <= work + 1e-6


def launch(address: str | None, *command: str, tree: Path) -> subprocess.Popen[str]:
    script = tree / "launch.py"
    script.write_bytes(LAUNCHER.read_bytes())
    environment = dict(os.environ)
    environment.pop("SGLWHEEL_ADMISSION", None)
    if address is not None:
        environment["SGLWHEEL_ADMISSION"] = address
    return subprocess.Popen(
        [sys.executable, "-I", "-S", script, *command],
        env=environment,
        cwd=tree,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_slots_limit_and_history_is_kept(tmp_path: Path) -> None:
    history = tmp_path / "units.jsonl"
    program = "import sys,time; time.sleep(0.6)"
    with Governor(Costs(), slots=1, history=history) as governor:
        started = time.monotonic()
        children = [
            launch(governor.address, sys.executable, "-c", program, "-o", f"{n}.cu.o", tree=tmp_path)
            for n in range(3)
        ]
        for child in children:
            child.communicate()
            assert child.returncode == 0
        elapsed = time.monotonic() - started
        deadline = time.monotonic() + 5
        while len(governor.state.finished) < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
    assert elapsed >= 1.8
    records = [json.loads(line) for line in history.read_text().splitlines()]
    assert sorted(record["unit"] for record in records) == ["0.cu.o", "1.cu.o", "2.cu.o"]
    assert all(record["code"] == 0 and record["peak"] > 0 for record in records)
    learned = Costs(history).expect("1.cu.o")
    assert learned.measured and learned.peak < GIB


def test_exit_status_passes_through_and_death_is_named(tmp_path: Path) -> None:
    with Governor(Costs(), slots=2, history=tmp_path / "units.jsonl") as governor:
        failed = launch(governor.address, sys.executable, "-c", "raise SystemExit(3)", tree=tmp_path)
        killed = launch(
            governor.address,
            *(sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"),
            tree=tmp_path,
        )
        failed.communicate()
        _, words = killed.communicate()
    assert failed.returncode == 3
    assert killed.returncode == 137
    assert "killed by SIGKILL" in words


def test_a_killed_launcher_gives_its_slot_back(tmp_path: Path) -> None:
    with Governor(Costs(), slots=1, history=tmp_path / "units.jsonl") as governor:
        stuck = launch(governor.address, "sleep", "60", tree=tmp_path)
        deadline = time.monotonic() + 5
        while not governor.state.running and time.monotonic() < deadline:
            time.sleep(0.02)
        assert governor.state.running
        compiler = jobs.resident([stuck.pid])
        assert compiler[stuck.pid] > 0
        sleep = psutil.Process(stuck.pid).children()
        stuck.kill()
        stuck.communicate()
        for child in sleep:
            child.kill()
        after = launch(governor.address, "true", tree=tmp_path)
        after.communicate(timeout=10)
    assert after.returncode == 0


def test_without_a_governor_compilers_run_one_after_another(tmp_path: Path) -> None:
    started = time.monotonic()
    children = [launch(None, "sleep", "0.5", tree=tmp_path) for _ in range(2)]
    for child in children:
        child.communicate()
        assert child.returncode == 0
    assert time.monotonic() - started >= 1.0


def test_a_waiting_launcher_ends_with_its_governor(tmp_path: Path) -> None:
    with Governor(Costs(), slots=1, history=tmp_path / "units.jsonl") as governor:
        running = launch(governor.address, "sleep", "60", tree=tmp_path)
        deadline = time.monotonic() + 5
        while not governor.state.running and time.monotonic() < deadline:
            time.sleep(0.02)
        orphan = launch(governor.address, "true", tree=tmp_path)
        time.sleep(0.5)
    _, words = orphan.communicate(timeout=30)
    for child in psutil.Process(running.pid).children():
        child.kill()
    running.communicate()
    assert orphan.returncode == 1
    assert "has ended" in words


@pytest.mark.parametrize(
    ("unit", "seconds"),
    [
        ("CMakeFiles/common_ops_sm100_build.dir/csrc/gemm/fp8_gemm_kernel.cu.o", 252),
        ("CMakeFiles/x.dir/csrc/unknown.cu.o", 45),
        ("CMakeFiles/x.dir/csrc/unknown.cc.o", 15),
    ],
)
def test_expectations_of_a_first_build(unit: str, seconds: float) -> None:
    assert Costs().expect(unit).seconds == seconds


def test_history_survives_a_torn_line(tmp_path: Path) -> None:
    history = tmp_path / "units.jsonl"
    history.write_text('{"unit": "a.o", "code": 0, "seconds": 2, "cpu": 1.5, "peak": 7}\n{"unit": "b.o", "co')
    assert Costs(history).expect("a.o") == Cost(1.5, 7, measured=True)
    assert not Costs(history).expect("b.o").measured


def test_this_host_has_cores_and_memory() -> None:
    assert jobs.cores() >= 1
    assert 0 < jobs.memory_available() <= jobs.memory_total()
    assert 0 < jobs.reserve() < jobs.memory_total()
