"""Read what ninja and the compilers say: how far, how long still, and what went wrong first."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from sglwheel.build.admission import State
from sglwheel.build.jobs import Cost, Costs
from sglwheel.console import format_bytes, format_seconds

NINJA_STATUS = "[%f/%t %e] "
_PRIOR = 300.0  # seconds of evidence that the table itself counts for

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07")
_STATUS = re.compile(r"\[(?P<done>\d+)/(?P<total>\d+) [\d.]+\] (?P<what>.*)")
_FAILED = re.compile(r"FAILED: (?:\[code=(?P<code>\d+)\] )?(?P<output>.*?)\s*")
_KILLED = re.compile(
    r"died due to signal 9|[Kk]illed signal terminated program|killed by SIGKILL|(^|: )Killed( |$)"
    r"|cannot allocate memory|virtual memory exhausted|std::bad_alloc|[Oo]ut of memory"
)
_LINKER = re.compile(
    r"undefined reference to|cannot find -l|multiple definition of|ld returned"
    r"|(ld|collect2|lld|mold)(\.\w+)?: (fatal )?error"
)
_ERRORS = (
    # gcc, clang and cicc/ptxas in their styles; the first match in a unit's output is its first error.
    re.compile(r"(?P<file>[^\s:()][^:()]*):(?P<line>\d+)(:\d+)?: (?:fatal )?error: (?P<message>.*)"),
    re.compile(
        r"(?P<file>[^\s:()][^:()]*)\((?P<line>\d+)\): (?:catastrophic |internal )?error(?: #[\w-]+)?: "
        r"(?P<message>.*)"
    ),
    re.compile(r"(?P<message>ptxas (?:\S+, line \d+; )?(?:fatal|error)\s*:.*)"),
    re.compile(r"(?P<message>nvcc (?:fatal|error)\s*:.*)"),
    re.compile(r"(?P<message>nvlink (?:fatal|error)\s*:.*)"),
    re.compile(r"(?P<message>[\w+.-]+: (?:fatal |internal compiler )?error: .*)"),
    re.compile(r"(?P<message>.*No space left on device.*)"),
)
_CMAKE_ERROR = re.compile(
    r"CMake Error(?: \(dev\))?(?: at (?P<file>[^:]+):(?P<line>\d+) \((?P<command>[^)]*)\))?:\s*(?P<rest>.*)"
)


@dataclass
class Failure:
    """One failed step: what ninja said and what the compiler printed."""

    output: str
    lines: list[str] = field(default_factory=list)

    @property
    def killed(self) -> bool:
        """Whether something from outside ended the compiler, in practice the kernel short of memory."""
        return any(_KILLED.search(line) for line in self.lines)

    def first_error(self) -> tuple[str, str]:
        """(`file:line` or "", message) of the first real error."""
        for line in self.lines:
            for pattern in _ERRORS:
                match = pattern.match(line)
                if match is not None:
                    named = match.groupdict()
                    place = f"{named['file']}:{named['line']}" if named.get("file") else ""
                    return place, named["message"].strip()
        for line in self.lines:
            if _LINKER.search(line) or _KILLED.search(line):
                return "", line.strip()
        return "", self.lines[-1].strip() if self.lines else ""


class Transcript:
    """Follow a build's output line by line."""

    def __init__(self) -> None:
        self.done = 0
        self.total = 0
        self.failures: list[Failure] = []
        self.cmake_error: list[str] = []
        self._failure: Failure | None = None
        self._in_cmake_error = False

    def feed(self, line: str) -> None:
        """Take one line, with or without colours."""
        line = plain(line)
        status = _STATUS.fullmatch(line)
        if status is not None:
            self.done, self.total = int(status["done"]), int(status["total"])
            self._failure = None
            return
        failed = _FAILED.fullmatch(line)
        if failed is not None:
            self._failure = Failure(failed["output"])
            self.failures.append(self._failure)
            return
        if self._failure is not None:
            if line.startswith(("ninja: build stopped", "ninja: fatal", "*** CMake build failed")):
                self._failure = None
            elif len(self._failure.lines) < 5000:
                self._failure.lines.append(line)
            return
        self._cmake(line)

    def configure_error(self) -> tuple[str, str] | None:
        """(`file:line`, message) of CMake's first error."""
        if not self.cmake_error:
            return None
        match = _CMAKE_ERROR.match(self.cmake_error[0])
        assert match is not None
        words = [match["rest"], *self.cmake_error[1:]]
        message = " ".join(word.strip() for word in words if word.strip())
        return (f"{match['file']}:{match['line']}" if match["file"] else ""), message

    def _cmake(self, line: str) -> None:
        if not self.cmake_error and _CMAKE_ERROR.match(line):
            self.cmake_error.append(line)
            self._in_cmake_error = True
        elif self._in_cmake_error:
            # The message is indented; the first line at the margin ends it.
            self._in_cmake_error = line == "" or line.startswith(" ")
            if self._in_cmake_error and len(self.cmake_error) < 20:
                self.cmake_error.append(line)


def plain(line: str) -> str:
    """`line` without terminal colours (CMAKE_COLOR_DIAGNOSTICS) and carriage returns."""
    return _ANSI.sub("", line).rsplit("\r", 1)[-1]


def remaining(
    waiting: Iterable[Cost], running: Sequence[tuple[float, Cost]], *, slots: int, room: int
) -> float:
    """Seconds until the last unit ends: the schedule played through, longest first, within memory.

    `running` holds (seconds so far, expected cost). Slots idle while memory is short count as idle.
    """
    active = [(max(cost.seconds - so_far, cost.seconds * 0.05), cost.peak) for so_far, cost in running]
    queue = sorted(waiting, key=lambda cost: -cost.seconds)
    clock = 0.0
    while queue or active:
        index = 0
        while index < len(queue) and len(active) < slots:
            if not active or queue[index].peak + sum(peak for _, peak in active) <= room:
                cost = queue.pop(index)
                active.append((cost.seconds, cost.peak))
            else:
                index += 1
        step = min(left for left, _ in active)
        clock += step
        active = [(left - step, peak) for left, peak in active if left > step]
    return clock


class Forecast:
    """Turn expected costs and what was measured so far into an honest remaining time."""

    def __init__(self, units: Iterable[str], costs: Costs, *, slots: int, room: int) -> None:
        self._waiting = {unit: costs.expect(unit) for unit in units}
        self._all = dict(self._waiting)
        self._slots = slots
        self._room = room
        self._seen = 0
        self._expected = 0.0
        self._taken = 0.0

    @property
    def total_seconds(self) -> float:
        return sum(cost.seconds for cost in self._all.values())

    def note(self, state: State) -> str:
        """One line: `ETA 12 min 03 s · fp8_gemm_kernel.cu 3 min 10 s · 14.2 GB`."""
        for done in state.finished[self._seen :]:
            cost = self._all.get(done.unit)
            self._waiting.pop(done.unit, None)
            if cost is not None and done.code == 0:
                self._expected += cost.seconds
                self._taken += done.seconds
        self._seen = len(state.finished)
        now = time.monotonic()
        # This host against the table: believed as far as there is evidence.
        factor = (self._taken + _PRIOR) / (self._expected + _PRIOR)
        names = {unit for unit, _, _ in state.running}
        waiting = [_scaled(cost, factor) for unit, cost in self._waiting.items() if unit not in names]
        running = [(now - since, _scaled(cost, factor)) for _, since, cost in state.running]
        left = remaining(waiting, running, slots=self._slots, room=self._room)
        parts = [f"ETA {format_seconds(left)}" if left >= 1 else "finishing"]
        if state.running:
            unit, since, _ = min(state.running, key=lambda item: item[1])
            more = f" +{len(state.running) - 1}" if len(state.running) > 1 else ""
            parts.append(f"{source_name(unit)} {format_seconds(round(now - since))}{more}")
        if state.resident:
            parts.append(format_bytes(state.resident))
        return " · ".join(parts)


def source_name(unit: str) -> str:
    """`CMakeFiles/x.dir/csrc/gemm/a.cu.o` → `a.cu`."""
    return unit.rsplit("/", 1)[-1].removesuffix(".o")


def source_path(unit: str) -> str:
    """`CMakeFiles/x.dir/csrc/gemm/a.cu.o` → `csrc/gemm/a.cu`, as far as CMake's naming shows it."""
    return re.sub(r"^.*?CMakeFiles/[^/]+\.dir/", "", unit).removesuffix(".o")


def _scaled(cost: Cost, factor: float) -> Cost:
    return Cost(cost.seconds * factor, cost.peak, cost.measured)
