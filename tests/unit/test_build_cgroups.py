"""Limits of containers: recorded /proc and cgroup files, and a real cgroup where one can be made."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from sglwheel.build.limits import Host

GIB = 1 << 30


@pytest.fixture
def host(tmp_path: Path) -> Host:
    found = Host(tmp_path / "proc", tmp_path / "cgroup")
    write(
        tmp_path,
        {
            "proc/meminfo": f"MemTotal: {24 * GIB // 1024} kB\nMemFree: 1 kB\n"
            f"MemAvailable: {20 * GIB // 1024} kB\nSwapFree: 1024 kB\n",
            "proc/pressure/memory": "some avg10=9.00 avg60=0.00 avg300=0.00 total=1\n"
            "full avg10=4.50 avg60=0.36 avg300=0.52 total=1\n",
            "proc/vmstat": "nr_free_pages 1\noom_kill 3\n",
        },
    )
    return found


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_v2_counts_every_level_and_forgets_droppable_cache(host: Host, tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/jobs/one\n",
            "cgroup/jobs/memory.max": f"{GIB // 2}\n",
            "cgroup/jobs/memory.current": f"{GIB // 4}\n",
            "cgroup/jobs/memory.stat": f"anon 1\ninactive_file {GIB // 8}\n",
            "cgroup/jobs/one/memory.max": "max\n",
            "cgroup/jobs/one/memory.current": "1\n",
            "cgroup/jobs/one/memory.pressure": "some avg10=1.00 avg60=0 avg300=0 total=1\n"
            "full avg10=12.25 avg60=0 avg300=0 total=1\n",
            "cgroup/jobs/cpu.max": "100000 100000\n",
        },
    )
    assert host.memory_total() == GIB // 2
    assert host.memory_available() == GIB // 2 - GIB // 4 + GIB // 8
    assert host.reserve() == GIB // 8, "a twentieth is too little and 512 MiB would be all of it"
    assert host.cores() == 1
    assert host.stalled() == 12.25, "the cgroup's own stalls, not the machine's"


def test_v1_with_its_word_for_unlimited(host: Host, tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "proc/self/cgroup": "5:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n",
            # The container sees its own group as the root.
            "cgroup/memory/memory.limit_in_bytes": f"{GIB // 2}\n",
            "cgroup/memory/memory.usage_in_bytes": f"{GIB // 4}\n",
            "cgroup/memory/memory.stat": "total_inactive_file 1024\n",
            "cgroup/cpu/cpu.cfs_quota_us": "50000\n",
            "cgroup/cpu/cpu.cfs_period_us": "100000\n",
        },
    )
    assert host.memory_total() == GIB // 2
    assert host.memory_available() == GIB // 4 + 1024
    assert host.cores() == 1
    assert host.stalled() == 4.5, "v1 has no pressure of its own: the machine's"
    write(tmp_path, {"cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"})
    assert host.memory_total() == 24 * GIB


def test_without_cgroups_the_machine_counts(host: Host) -> None:
    assert host.memory_total() == 24 * GIB
    assert host.memory_available() == 20 * GIB
    assert host.swap_free() == 1 << 20
    assert host.kills() == 3
    assert host.cores() >= 1


def test_an_old_kernel_without_pressure(host: Host, tmp_path: Path) -> None:
    (tmp_path / "proc/pressure/memory").unlink()
    assert host.stalled() == 0.0


def test_a_host_with_one_core(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3}, raising=False)
    assert host.cores() == 1


def test_this_host_has_cores_and_memory() -> None:
    host = Host()
    assert host.cores() >= 1
    assert host.memory_total() <= psutil.virtual_memory().total
    assert 0 < host.memory_available() <= host.memory_total()
    assert 0 < host.reserve() < host.memory_total()


@pytest.fixture
def group() -> Iterator[Path]:
    """A real memory cgroup with a limit of 256 MiB, below the machine's memory."""
    own = next(
        (line for line in Path("/proc/self/cgroup").read_text().splitlines() if ":memory:" in line), None
    )
    if own is None:
        pytest.skip("no cgroup v1 memory controller on this host; v2 is covered by recorded files")
    path = Path(f"/sys/fs/cgroup/memory{own.rpartition(':')[2]}/sglwheel-{uuid.uuid4().hex[:8]}")
    try:
        path.mkdir()
    except OSError as error:
        pytest.skip(f"this user cannot make a cgroup: {error.strerror}")
    (path / "memory.limit_in_bytes").write_text(str(256 << 20))
    yield path
    path.rmdir()


def test_a_real_cgroup_below_the_machines_memory(group: Path) -> None:
    program = (
        "import sys, os; open(sys.argv[1] + '/cgroup.procs', 'w').write(str(os.getpid()));"
        "from sglwheel.build.limits import Host; h = Host(); kept = b'x' * (64 << 20);"
        "print(h.memory_total(), h.memory_available(), h.reserve())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, group], capture_output=True, text=True, check=True, timeout=60
    )
    total, available, reserve = map(int, done.stdout.split())
    assert total == 256 << 20
    assert available < total - (60 << 20)
    assert reserve == 64 << 20


@pytest.mark.parametrize(
    "group",
    [
        {"proc/self/cgroup": "0::/job\n", "cgroup/job/memory.swap.max": f"{GIB}\n"}
        | {"cgroup/job/memory.swap.current": f"{GIB // 4}\n"},
        {"proc/self/cgroup": "5:memory:/job\n", "cgroup/memory/job/memory.limit_in_bytes": f"{2 * GIB}\n"}
        | {"cgroup/memory/job/memory.usage_in_bytes": f"{GIB}\n"}
        | {"cgroup/memory/job/memory.memsw.limit_in_bytes": f"{3 * GIB}\n"}
        | {"cgroup/memory/job/memory.memsw.usage_in_bytes": f"{GIB + GIB // 4}\n"},
    ],
    ids=["v2", "v1"],
)
def test_swap_that_a_container_may_not_take_is_none(
    host: Host, tmp_path: Path, group: dict[str, str]
) -> None:
    write(tmp_path, {"proc/meminfo": f"MemTotal: {24 * GIB // 1024} kB\nSwapFree: {8 * GIB // 1024} kB\n"})
    assert host.swap_free() == 8 * GIB
    write(tmp_path, group)
    assert host.swap_free() == 3 * GIB // 4


def test_a_container_without_swap_has_none_of_the_hosts(host: Host, tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/job\n",
            "cgroup/job/memory.swap.max": "0\n",
            "cgroup/job/memory.swap.current": "0\n",
        },
    )
    assert host.swap_free() == 0
