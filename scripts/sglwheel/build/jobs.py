"""What this host can give to a build: cores, memory, and what each translation unit is expected to take."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import psutil

_MIB = 1 << 20
_PROC = Path("/proc")
_CGROUP = Path("/sys/fs/cgroup")
_UNLIMITED = 1 << 60  # cgroup v1 writes "no limit" as a huge page-aligned number


@dataclass(frozen=True)
class Cost:
    """What compiling one unit takes; `peak` in bytes for its whole process tree."""

    seconds: float
    peak: int
    measured: bool = False


class Costs:
    """Expected cost by object file: measured on this host where possible, else from the shipped table."""

    def __init__(self, history: Path | None = None) -> None:
        table = tomllib.loads((resources.files("sglwheel.build") / "data" / "units.toml").read_text("utf-8"))
        self._stems = {stem: _cost(entry) for stem, entry in table["units"].items()}
        self._defaults = {kind: _cost(entry) for kind, entry in table["default"].items()}
        self._measured = _read_history(history) if history is not None else {}

    def expect(self, unit: str) -> Cost:
        """The cost of `unit`, an object file's path as ninja prints it (`…/csrc/gemm/x.cu.o`)."""
        if unit in self._measured:
            return self._measured[unit]
        name = unit.rsplit("/", 1)[-1]
        stem = name.split(".", 1)[0]
        if stem in self._stems:
            return self._stems[stem]
        return self._defaults["cuda" if ".cu." in name else "cxx"]


def cores() -> int:
    """Cores that this process may use: affinity and cgroup quota, at least 1."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for directory in _cgroups("cpu"):
        quota = _cpu_quota(directory)
        if quota is not None:
            count = min(count, max(1, int(quota + 0.5)))
    return max(1, count)


def memory_total() -> int:
    """Bytes that this process could ever have: the machine's memory or the tightest cgroup limit."""
    limits = [limit for limit, _ in _cgroup_memory()]
    return min([psutil.virtual_memory().total, *limits])


def memory_available() -> int:
    """Bytes that can be taken now without swapping: MemAvailable and what every cgroup above us has left."""
    left = [limit - used for limit, used in _cgroup_memory()]
    return max(0, min([psutil.virtual_memory().available, *left]))


def reserve() -> int:
    """Bytes left to the rest of the system: a twentieth, at least 512 MiB."""
    return max(512 * _MIB, memory_total() // 20)


def too_large(units: Iterable[str], costs: Costs) -> list[tuple[str, Cost]]:
    """Units that are expected to need more than this host can ever give, largest first."""
    limit = memory_total() - reserve()
    found = [(unit, cost) for unit in units if (cost := costs.expect(unit)).peak > limit]
    return sorted(found, key=lambda item: -item[1].peak)


def resident(roots: Iterable[int]) -> dict[int, int]:
    """Resident bytes of each root process with all its descendants, from one pass over /proc."""
    page = os.sysconf("SC_PAGE_SIZE")
    children: dict[int, list[int]] = {}
    pages: dict[int, int] = {}
    for entry in os.scandir(_PROC):
        if not entry.name.isdigit():
            continue
        try:
            text = Path(entry.path, "stat").read_text("utf-8", "replace")
        except OSError:
            continue  # it ended while we looked
        fields = text.rpartition(")")[2].split()
        children.setdefault(int(fields[1]), []).append(int(entry.name))
        pages[int(entry.name)] = int(fields[21])
    totals: dict[int, int] = {}
    for root in roots:
        total, stack = 0, [root]
        while stack:
            process = stack.pop()
            total += pages.get(process, 0)
            stack.extend(children.get(process, ()))
        totals[root] = total * page
    return totals


def _cost(entry: dict[str, float]) -> Cost:
    return Cost(float(entry["seconds"]), int(entry["peak-mib"]) * _MIB)


def _read_history(path: Path) -> dict[str, Cost]:
    """Later lines win; a line torn by a crash is skipped."""
    found: dict[str, Cost] = {}
    if not path.is_file():
        return found
    for line in path.read_text("utf-8", "replace").splitlines():
        try:
            record = json.loads(line)
            if record["code"] == 0:
                # A compiler has one thread that works: CPU time is what it takes where nothing competes.
                seconds = min(float(record["seconds"]), float(record["cpu"]))
                found[record["unit"]] = Cost(seconds, int(record["peak"]), measured=True)
        except (ValueError, KeyError, TypeError):
            continue
    return found


def _cgroups(controller: str) -> list[Path]:
    """Directories of our cgroup and all above it, v1 (`controller`) or v2."""
    try:
        lines = (_PROC / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return []
    found: list[Path] = []
    for line in lines:
        _, names, path = line.split(":", 2)
        if names == "":
            base = _CGROUP
        elif controller in names.split(","):
            base = _CGROUP / controller
        else:
            continue
        # Inside a container the path may be the host's, which is not mounted: the base itself is ours then.
        here = base / path.strip("/")
        found += [p for p in (here, *here.parents) if p.is_relative_to(base) and p.is_dir()]
    return found


def _cgroup_memory() -> list[tuple[int, int]]:
    """(limit, use) of each memory cgroup above us; page cache that can be dropped does not count as use."""
    found = []
    for directory in _cgroups("memory"):
        for limit_name, used_name, cache_key in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            limit = _number(directory / limit_name)
            used = _number(directory / used_name)
            if limit is None or used is None or limit >= _UNLIMITED:
                continue
            found.append((limit, max(0, used - _statistic(directory / "memory.stat", cache_key))))
    return found


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
    try:
        for line in path.read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == key:
                return int(value)
    except (OSError, ValueError):
        pass
    return 0
