"""The governor with real launchers, that run real commands and take real memory."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from governorworld import LAUNCHER, MIB, Known, Quiet, governing, launch, slots, wait_for
from sglwheel import bench
from sglwheel.build import happened, meter
from sglwheel.build import units as units_module
from sglwheel.build.admission import Governor
from sglwheel.build.budget import Budget
from sglwheel.build.costs import Costs
from sglwheel.build.ledger import Claim, Ledger, Others
from sglwheel.build.recording import Recording

FAKECC = Path(bench.__file__).parent / "data" / "fakecc.py"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "launch.py").write_bytes(LAUNCHER.read_bytes())
    return tmp_path


def fake(address: str, name: str, seconds: float, mib: int, tree: Path) -> subprocess.Popen[str]:
    command = (sys.executable, "-I", "-S", FAKECC, str(seconds), str(mib), "-o", f"{name}.o")
    return launch(address, *command, tree=tree)


def outcomes(tree: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for item in happened.read(tree / "recording.jsonl").compiles:
        found.setdefault(item.unit, []).append(item.outcome)
    return found


def test_slots_limit_and_history_is_kept(tree: Path) -> None:
    program = "import sys,time; time.sleep(0.6)"
    with governing(tree, slots(1)) as governor:
        started = time.monotonic()
        children = [
            launch(governor.address, sys.executable, "-c", program, "-o", f"{n}.cu.o", tree=tree)
            for n in range(3)
        ]
        for child in children:
            child.communicate()
            assert child.returncode == 0
        elapsed = time.monotonic() - started
    assert elapsed >= 1.8
    records = [json.loads(line) for line in (tree / "units.jsonl").read_text().splitlines()]
    assert sorted(record["unit"] for record in records) == ["0.cu.o", "1.cu.o", "2.cu.o"]
    assert all(record["code"] == 0 and record["peak"] > 0 for record in records)
    learned = Costs(tree / "units.jsonl").expect("1.cu.o")
    assert learned.measured and learned.peak < 1024 * MIB


def test_output_and_exit_status_pass_through(tree: Path) -> None:
    program = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"
    with governing(tree, slots(2)) as governor:
        failed = launch(governor.address, sys.executable, "-u", "-c", program, tree=tree)
        said, _ = failed.communicate()
    assert failed.returncode == 3
    assert said == "out\nerr\n"


def test_an_estimate_that_is_wrong_ends_the_youngest_and_ninja_never_notices(tree: Path) -> None:
    # Both are expected to take 20 MiB; the elder takes 150, and both together more than the limit.
    with governing(tree, slots(2, memory=200 * MIB), Known()) as governor:
        elder = fake(governor.address, "elder", 4, 150, tree)
        wait_for(lambda: len(governor.state.running) == 1)
        younger = fake(governor.address, "younger", 2, 90, tree)
        said = [child.communicate(timeout=60) for child in (elder, younger)]
        peak = governor.state.peak
    assert [child.returncode for child in (elder, younger)] == [0, 0]
    assert said == [("", ""), ("", "")]
    assert (tree / "elder.o").is_file() and (tree / "younger.o").is_file()
    assert outcomes(tree) == {"elder.o": ["done"], "younger.o": ["requeued", "done"]}
    assert peak < 300 * MIB


def test_memory_that_others_take_ends_the_youngest_too(tree: Path) -> None:
    budget = slots(2)
    with governing(tree, budget, Known()) as governor:
        first = fake(governor.address, "first", 4, 20, tree)
        wait_for(lambda: len(governor.state.running) == 1)
        second = fake(governor.address, "second", 2, 20, tree)
        wait_for(lambda: len(governor.state.running) == 2)
        Quiet.free = 8 * MIB  # somebody else took the rest
        try:
            wait_for(lambda: len(governor.state.running) == 1)
        finally:
            Quiet.free = 4096 * MIB
        for child in (first, second):
            child.communicate(timeout=60)
    assert [first.returncode, second.returncode] == [0, 0]
    assert outcomes(tree)["second.o"] == ["requeued", "done"]


def test_a_compiler_killed_from_outside_is_tried_once_more_alone(tree: Path) -> None:
    with governing(tree, slots(2)) as governor:
        victim = fake(governor.address, "victim", 3, 20, tree)
        wait_for(lambda: psutil.Process(victim.pid).children())
        psutil.Process(victim.pid).children()[0].kill()
        beside = fake(governor.address, "beside", 1, 20, tree)
        alone = []
        while victim.poll() is None:
            names = [unit for unit, *_ in governor.state.running]
            alone.append(names)
            time.sleep(0.1)
        beside.communicate(timeout=60)
        words = victim.communicate()
    assert victim.returncode == 0 and words == ("", "")
    assert ["victim.o"] in alone
    assert outcomes(tree) == {"victim.o": ["killed", "done"], "beside.o": ["done"]}


def test_a_compiler_killed_twice_fails_and_says_so(tree: Path) -> None:
    program = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    with governing(tree, slots(2)) as governor:
        killed = launch(governor.address, sys.executable, "-c", program, "-o", "x.o", tree=tree)
        _, words = killed.communicate()
        assert governor.state.again == [("x.o", "killed")]
    assert killed.returncode == 137
    assert "killed by SIGKILL" in words
    assert outcomes(tree) == {"x.o": ["killed", "failed"]}


@pytest.mark.parametrize(
    ("code", "said", "kernel", "starved"),
    [
        (-9, "", False, True),
        (1, "g++: fatal error: Killed signal terminated program cc1plus", False, True),
        (9, "nvcc error   : 'cicc' died due to signal 9 (Kill signal)", False, True),
        (1, "cc1plus: out of memory allocating 65536 bytes", False, True),
        (1, 'a.cu(3): error: expected a ";"', True, True),
        (1, 'a.cu(3): error: expected a ";"', False, False),
        (-signal.SIGSEGV, "", False, False),
    ],
)
def test_what_counts_as_killed(code: int, said: str, kernel: bool, starved: bool) -> None:
    assert units_module.starved(code, said, kernel) is starved


def test_a_killed_launcher_gives_its_slot_back(tree: Path) -> None:
    with governing(tree, slots(1)) as governor:
        stuck = launch(governor.address, "sleep", "60", tree=tree)
        wait_for(lambda: governor.state.running and psutil.Process(stuck.pid).children())
        assert meter.resident(stuck.pid) > 0
        sleep = psutil.Process(stuck.pid).children()
        stuck.kill()
        stuck.communicate()
        for child in sleep:
            child.kill()
        after = launch(governor.address, "true", tree=tree)
        after.communicate(timeout=10)
    assert after.returncode == 0


def test_without_a_governor_compilers_run_one_after_another(tree: Path) -> None:
    started = time.monotonic()
    children = [launch(None, "sleep", "0.5", tree=tree) for _ in range(2)]
    for child in children:
        child.communicate()
        assert child.returncode == 0
    assert time.monotonic() - started >= 1.0


def test_a_waiting_launcher_ends_with_its_governor(tree: Path) -> None:
    with governing(tree, slots(1)) as governor:
        running = launch(governor.address, "sleep", "60", tree=tree)
        wait_for(lambda: governor.state.running)
        orphan = launch(governor.address, "true", tree=tree)
        wait_for(lambda: governor.state.waiting == 1)
    _, words = orphan.communicate(timeout=30)
    for child in psutil.Process(running.pid).children():
        child.kill()
    running.communicate()
    assert orphan.returncode == 1
    assert "has ended" in words


def test_two_builds_on_one_host_share_cores_and_memory(tree: Path) -> None:
    """Each expects 90 of 100 MiB for its unit: one waits for the other, and both end."""
    Quiet.free = 100 * MIB
    try:
        with (
            governing(tree, Budget(4, None, 0, Quiet()), Known(a=90)) as one,
            governing(tree, Budget(4, None, 0, Quiet()), Known(b=90)) as two,
        ):
            started = time.monotonic()
            children = [fake(one.address, "a", 1.5, 30, tree), fake(two.address, "b", 1.5, 30, tree)]
            for child in children:
                child.communicate(timeout=60)
            elapsed = time.monotonic() - started
    finally:
        Quiet.free = 4096 * MIB
    assert [child.returncode for child in children] == [0, 0]
    assert elapsed >= 3.0


def test_the_ledger_forgets_a_build_that_was_killed(tmp_path: Path) -> None:
    program = (
        "import sys, time, pathlib; from sglwheel.build.ledger import *;"
        "l = Ledger(pathlib.Path(sys.argv[1])).__enter__();"
        "l.say(Claim(2, 7, 0, 0.0)); print('said', flush=True); time.sleep(60)"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", program, tmp_path], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert other.stdout is not None and other.stdout.readline() == "said\n"
    with Ledger(tmp_path) as ledger:
        with ledger.turn():
            assert ledger.others(since=time.monotonic()) == Others(builds=1, running=2, promised=7)
        other.kill()
        other.communicate()
        with ledger.turn():
            assert ledger.others(since=time.monotonic()) == Others()
    assert [path.name for path in tmp_path.iterdir()] == ["mutex"]


def test_who_waits_longer_goes_first(tmp_path: Path) -> None:
    with Ledger(tmp_path) as early, Ledger(tmp_path) as late:
        early.say(Claim(wanted=5, since=10.0))
        late.say(Claim(wanted=3, since=20.0))
        assert late.others(since=20.0).wanted == 5
        assert early.others(since=10.0).wanted == 0


def test_without_a_directory_for_the_ledger_a_build_is_alone(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with Ledger(tmp_path / "file" / "below") as ledger, ledger.turn():
        ledger.say(Claim(1, 1))
        assert ledger.others(since=0.0) == Others()


def test_a_clock_that_jumps_bends_no_recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recording = Recording(tmp_path / "r.jsonl")
    recording.begin(slots=1, memory=2, total=3)
    started = time.monotonic()
    monkeypatch.setattr(time, "time", lambda: 0.0)
    recording.compiled(units_module.Finished("a.o", 0, 2.0, 1.0, 5), "done", started)
    recording.close()
    with (tmp_path / "r.jsonl").open("a") as torn:
        torn.write('{"event":"begin","da')
    recording.begin(slots=1, memory=2, total=3)
    recording.compiled(units_module.Finished("b.o", 0, 2.0, 1.0, 5), "done", time.monotonic())
    recording.close()
    found = happened.read(tmp_path / "r.jsonl")
    assert [session.slots for session in found.sessions] == [1, 1]
    first, second = found.compiles
    assert 0 <= first.start < 1 and 2 <= second.start < 4
    assert found.cpu == 2.0


def test_the_longest_starts_first_although_it_asks_last(tree: Path) -> None:
    with Governor(
        Known(small=10, large=900),
        slots(1),
        history=tree / "units.jsonl",
        expected=2,
        ledger=Ledger(tree / "ledger"),
    ) as governor:
        channels = []
        for name in ("small", "large"):
            channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            channel.connect(governor.address)
            channel.sendall(json.dumps({"unit": f"{name}.o", "pid": os.getpid()}).encode() + b"\n")
            channels.append(channel)
            time.sleep(0.3)
        channels[1].settimeout(20)
        assert channels[1].recv(16) == b"go\n"
        for channel in channels:
            channel.close()


def test_three_hundred_launchers_may_wait(tree: Path) -> None:
    """Sockets stand for launchers here: 300 interpreters would be a test of this host's memory."""
    with governing(tree, slots(2)) as governor:
        channels = []
        for number in range(300):
            channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            channel.connect(governor.address)
            channel.settimeout(20)
            channel.sendall(json.dumps({"unit": f"{number}.o", "pid": os.getpid()}).encode() + b"\n")
            channels.append(channel)
        left = set(range(300))
        report = json.dumps({"code": 0, "seconds": 0.1, "cpu": 0.1, "peak_kib": 1}).encode() + b"\n"
        while left:
            for number in list(left):
                channels[number].settimeout(0.0)
                with suppress(BlockingIOError):
                    if channels[number].recv(16) == b"go\n":
                        channels[number].settimeout(20)
                        channels[number].sendall(report)
                        assert channels[number].recv(16) == b"done\n"
                        channels[number].close()
                        left.discard(number)
        wait_for(lambda: len(governor.state.finished) == 300)
