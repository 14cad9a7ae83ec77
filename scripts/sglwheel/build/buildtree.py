"""The directory of one build: its own sources, CMake's tree, what it produced, and whether it is finished."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from sglwheel import files

_MADE = (".o", ".obj", ".a", ".so")
_UNSYNCED_SECONDS = 120.0
TREE_VARIABLE = "SGLWHEEL_TREE"  # in the environment of every process of a build


@dataclass(frozen=True)
class Result:
    """What a finished tree remembers of its builds; costs are summed over interrupted runs."""

    packing: str
    wheel: str
    sha256: str
    seconds: float
    cpu_seconds: float
    peak_bytes: int
    steps: int


@dataclass(frozen=True)
class BuildTree:
    """`.work/<recipe>/build-<fingerprint[:12]>/`."""

    path: Path

    @property
    def source(self) -> Path:
        """A copy of the patched tree, which nobody edits while it compiles."""
        return self.path / "source"

    @property
    def dependencies(self) -> Path:
        """A copy of every fetched source, as upstream's CMake rewrites some."""
        return self.path / "dependencies"

    @property
    def cmake(self) -> Path:
        return self.path / "cmake"

    @property
    def raw(self) -> Path:
        """Where scikit-build-core's wheel is."""
        return self.path / "raw"

    @property
    def launcher(self) -> Path:
        """Part of every compile command, so at a path that stays."""
        return self.path / "launch.py"

    @property
    def reproducible(self) -> Path:
        """What runs nvcc; below the launcher in the commands that compile CUDA."""
        return self.path / "reproducible.py"

    @property
    def cached(self) -> Path:
        """What asks the compiler cache; above the launcher in every compile command."""
        return self.path / "cached.py"

    @property
    def lock(self) -> Path:
        return self.path.with_name(self.path.name + ".lock")

    def previous(self) -> BuildTree | None:
        """The tree of the same recipe that was begun last, or None."""
        others = [note for note in self.path.parent.glob("build-*/inputs.json") if note.parent != self.path]
        newest = max(others, key=lambda note: note.stat().st_mtime_ns, default=None)
        return None if newest is None else BuildTree(newest.parent)

    def copy_source(self, patched: Path) -> None:
        """Copy the patched tree once."""
        if self.source.is_dir():
            return
        with files.directory_atomic(self.source) as new:
            shutil.copytree(patched, new, symlinks=True, dirs_exist_ok=True)

    def copy_programs(self) -> None:
        """Put what stands in front of the compilers into the tree; the same bytes keep their time stamp."""
        for path in (self.cached, self.launcher, self.reproducible):
            text = (resources.files("sglwheel.build") / "data" / path.name).read_bytes()
            if not path.is_file() or path.read_bytes() != text:
                files.write_atomic(path, text)

    def missing(self, units: Sequence[str]) -> list[str]:
        """Those of `units` that ninja will compile: it counts an object once its log has it."""
        try:
            lines = (self.cmake / ".ninja_log").read_text("utf-8", "replace").splitlines()
        except OSError:
            lines = []
        logged = {fields[3] for line in lines if len(fields := line.split("\t")) == 5}
        return [unit for unit in units if unit not in logged or not (self.cmake / unit).is_file()]

    def read(self, name: str) -> dict[str, Any]:
        """One of the tree's JSON notes, empty when it is missing or torn."""
        try:
            value = json.loads((self.path / name).read_text("utf-8"))
        except (OSError, ValueError):
            return {}
        return value if isinstance(value, dict) else {}

    def write(self, name: str, value: Mapping[str, Any]) -> None:
        files.write_atomic(self.path / name, json.dumps(value, indent=2, sort_keys=True) + "\n")

    def finished(self, packing: str) -> Result | None:
        """The result of an earlier run, if its wheel is still what it was and was packed the same way."""
        try:
            result = Result(**self.read("result.json"))
        except TypeError:
            return None
        wheel = self.raw / result.wheel
        if result.packing != packing or not wheel.is_file() or files.sha256(wheel) != result.sha256:
            return None
        return result

    def finish(self, result: Result) -> None:
        self.write("result.json", asdict(result))

    def new_configuration(self) -> None:
        """Start CMake's tree afresh: for other definitions, or as half a cache is not trusted."""
        (self.path / "configured.json").unlink(missing_ok=True)
        shutil.rmtree(self.cmake, ignore_errors=True)
        # CMake's File API: which targets there are, for proofs of patches.
        query = self.cmake / ".cmake" / "api" / "v1" / "query" / "codemodel-v2"
        query.parent.mkdir(parents=True)
        query.touch()

    def distrust_unsynced(self) -> int:
        """After a reboot in mid-build: drop what may never have reached the disk; how much that was.

        The kernel writes a file's bytes half a minute after they were written to it (dirty_expire_centisecs),
        in no promised order: ninja's log may speak of an object of which only the name is there.
        """
        boot, before = boot_id(), str(self.read("boot.json").get("boot", ""))
        doubtful: list[Path] = []
        if before not in ("", boot):
            made = [path for path in self.cmake.rglob("*") if path.suffix in _MADE and path.is_file()]
            times = {path: path.stat().st_mtime for path in made}
            last = max(times.values(), default=0.0)
            doubtful = [path for path, when in times.items() if when > last - _UNSYNCED_SECONDS]
            for path in doubtful:
                path.unlink()
            # Copies of what is kept elsewhere, with the same times: to make them again costs no compile.
            shutil.rmtree(self.source, ignore_errors=True)
            shutil.rmtree(self.dependencies, ignore_errors=True)
        if before != boot:
            self.write("boot.json", {"boot": boot})
        return len(doubtful)

    def end_leftovers(self) -> int:
        """End compilers that outlived a killed run; return how many there were.

        ninja gives every command a process group of its own, so the variable in their environment finds them.
        """
        mark = f"{TREE_VARIABLE}={self.path}".encode()
        found = [process for process in _processes(mark) if process != os.getpid()]
        for number in (signal.SIGTERM, signal.SIGKILL):
            for process in found:
                try:
                    os.kill(process, number)
                except (ProcessLookupError, PermissionError):
                    continue
            deadline = time.monotonic() + 5
            while time.monotonic() < deadline and _processes(mark):
                time.sleep(0.05)
            if not _processes(mark):
                break
        return len(found)


def boot_id() -> str:
    """What is another after each boot; empty where the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _processes(mark: bytes) -> list[int]:
    """Ids of processes with `mark` in their environment."""
    found = []
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            if mark in Path(entry.path, "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            continue  # ended meanwhile, or somebody else's
    return found
