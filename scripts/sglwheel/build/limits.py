"""What this host can give to a build: cores and memory, as the machine and every cgroup above us allow."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_MIB = 1 << 20
_UNLIMITED = 1 << 60  # cgroup v1 writes "no limit" as a huge page-aligned number
# Names of a memory cgroup's files: limit, use, and what of the use can be dropped; v2, then v1.
_MEMORY = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


@dataclass(frozen=True)
class Host:
    """Reads /proc and the cgroup file systems, v1 and v2; both roots can be recorded fixtures."""

    proc: Path = Path("/proc")
    cgroup: Path = Path("/sys/fs/cgroup")

    def cores(self) -> int:
        """Cores that this process may use: affinity and cgroup quota, at least 1."""
        count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        for directory in self._cgroups("cpu"):
            quota = _cpu_quota(directory)
            if quota is not None:
                count = min(count, max(1, int(quota + 0.5)))
        return max(1, count)

    def memory_total(self) -> int:
        """Bytes that this process could ever have: the machine's memory or the tightest cgroup limit."""
        return min([self._meminfo("MemTotal"), *(limit for limit, _ in self._cgroup_memory())])

    def memory_available(self) -> int:
        """Bytes that can be taken now without swapping: MemAvailable, and what every cgroup has left."""
        left = [limit - used for limit, used in self._cgroup_memory()]
        return max(0, min([self._meminfo("MemAvailable"), *left]))

    def swap_free(self) -> int:
        """Bytes of swap that we may take: slow, but enough to bring one giant unit to its end."""
        left = [swap for group in self._cgroups("memory") if (swap := _swap_left(group)) is not None]
        return max(0, min([self._meminfo("SwapFree"), *left]))

    def reserve(self) -> int:
        """Bytes left to the rest of the system: a twentieth, at least 512 MiB, at most a quarter."""
        total = self.memory_total()
        return min(max(512 * _MIB, total // 20), total // 4)

    def stalled(self) -> float:
        """Percent of the last 10 s in which everything here waited for memory (PSI `full`); 0 if unknown."""
        names = [directory / "memory.pressure" for directory in self._cgroups("memory")]
        for path in (*names, self.proc / "pressure" / "memory"):
            try:
                lines = path.read_text().splitlines()
            except OSError:
                continue
            for line in lines:
                if line.startswith("full "):
                    return float(line.split("avg10=", 1)[1].split()[0])
        return 0.0

    def kills(self) -> int:
        """How many processes the kernel has killed for want of memory, as far as it tells."""
        return _statistic(self.proc / "vmstat", "oom_kill")

    def _meminfo(self, key: str) -> int:
        return _statistic(self.proc / "meminfo", f"{key}:") * 1024

    def _cgroups(self, controller: str) -> list[Path]:
        """Directories of our cgroup and all above it, v1 (`controller`) or v2."""
        try:
            lines = (self.proc / "self" / "cgroup").read_text().splitlines()
        except OSError:
            return []
        found: list[Path] = []
        for line in lines:
            _, names, path = line.split(":", 2)
            if names == "":
                base = self.cgroup
            elif controller in names.split(","):
                base = self.cgroup / controller
            else:
                continue
            # In a container the path may be the host's, which is not mounted: the base itself is ours then.
            here = base / path.strip("/")
            found += [p for p in (here, *here.parents) if p.is_relative_to(base) and p.is_dir()]
        return found

    def _cgroup_memory(self) -> list[tuple[int, int]]:
        """(limit, use) of each memory cgroup above us; page cache that can be dropped is not use."""
        found = []
        for directory in self._cgroups("memory"):
            for limit_name, used_name, cache_key in _MEMORY:
                limit = _number(directory / limit_name)
                used = _number(directory / used_name)
                if limit is None or used is None or limit >= _UNLIMITED:
                    continue
                found.append((limit, max(0, used - _statistic(directory / "memory.stat", cache_key))))
        return found


def memory_cgroup(name: str, limit: int) -> Path | None:
    """A new cgroup beside us with a limit of `limit` bytes, or None where this process may make none.

    Swap is no way out of it, where the kernel counts swap: what is over the limit is killed, not slow.
    """
    for directory in Host()._cgroups("memory")[:1]:
        path = directory / name
        try:
            path.mkdir()
        except OSError:
            return None
        for key, swap, most in (
            ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes", limit),
            ("memory.max", "memory.swap.max", 0),
        ):
            try:
                if (path / key).exists():
                    (path / key).write_text(str(limit))
                    if (path / swap).exists():
                        (path / swap).write_text(str(most))
                    return path
            except OSError:
                continue
        path.rmdir()
    return None


def _swap_left(directory: Path) -> int | None:
    """Bytes of swap that a memory cgroup still allows, v2 or v1; None where it does not say."""
    limit, used = _number(directory / "memory.swap.max"), _number(directory / "memory.swap.current")
    if limit is not None and used is not None:
        return limit - used
    # v1 limits memory and swap together, and memory by itself.
    both, memory = (
        [_number(directory / f"memory.{kind}{name}_in_bytes") for name in ("limit", "usage")]
        for kind in ("memsw.", "")
    )
    if both[0] is None or both[1] is None or memory[0] is None or memory[1] is None:
        return None
    if both[0] >= _UNLIMITED:
        return None
    return (both[0] - memory[0]) - (both[1] - memory[1])


def _cpu_quota(directory: Path) -> float | None:
    try:
        quota, period = (directory / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        pass
    limit = _number(directory / "cpu.cfs_quota_us")
    span = _number(directory / "cpu.cfs_period_us")
    return limit / span if limit and limit > 0 and span else None


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _statistic(path: Path, key: str) -> int:
    """The number behind `key` in a file of such lines, 0 when it is not there."""
    try:
        for line in path.read_text().splitlines():
            name, *values = line.split()
            if name == key:
                return int(values[0])
    except (OSError, ValueError, IndexError):
        pass
    return 0
