"""Limits of containers, from recorded cgroup files."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from sglwheel.build import jobs

GIB = 1 << 30


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(jobs, "_PROC", tmp_path / "proc")
    monkeypatch.setattr(jobs, "_CGROUP", tmp_path / "cgroup")
    return tmp_path


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_v2_counts_every_level_and_forgets_droppable_cache(host: Path) -> None:
    write(
        host,
        {
            "proc/self/cgroup": "0::/jobs/one\n",
            "cgroup/jobs/memory.max": f"{GIB // 2}\n",
            "cgroup/jobs/memory.current": f"{GIB // 4}\n",
            "cgroup/jobs/memory.stat": f"anon 1\ninactive_file {GIB // 8}\n",
            "cgroup/jobs/one/memory.max": "max\n",
            "cgroup/jobs/one/memory.current": "1\n",
            "cgroup/jobs/cpu.max": "100000 100000\n",
        },
    )
    assert jobs.memory_total() == GIB // 2
    assert jobs.memory_available() == GIB // 2 - GIB // 4 + GIB // 8
    assert jobs.cores() == 1


def test_v1_with_its_word_for_unlimited(host: Path) -> None:
    write(
        host,
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
    assert jobs.memory_total() == GIB // 2
    assert jobs.memory_available() == GIB // 4 + 1024
    assert jobs.cores() == 1
    write(host, {"cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"})
    assert jobs.memory_total() == psutil.virtual_memory().total


def test_without_cgroups_the_machine_counts(host: Path) -> None:
    assert jobs.memory_total() == psutil.virtual_memory().total
    assert jobs.cores() >= 1
