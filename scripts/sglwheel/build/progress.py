"""Read what ninja and the compilers say: how far, and what went wrong first."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from sglwheel.build.units import KILLED

NINJA_STATUS = "[%f/%t %e] "

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07")
_STATUS = re.compile(r"\[(?P<done>\d+)/(?P<total>\d+) [\d.]+\] (?P<what>.*)")
_FAILED = re.compile(r"FAILED: (?:\[code=(?P<code>\d+)\] )?(?P<output>.*?)\s*")
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
        return any(KILLED.search(line) for line in self.lines)

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
            if _LINKER.search(line) or KILLED.search(line):
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
        self._indented = True

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
        if not self.cmake_error and (match := _CMAKE_ERROR.match(line)):
            self.cmake_error.append(line)
            self._in_cmake_error, self._indented = True, match["file"] is not None
        elif self._in_cmake_error:
            # The message of a line is indented, and the first line at the margin ends it. An error of no line
            # stands at the margin, with what was wrong below it, and an empty line ends it.
            self._in_cmake_error = (
                line == "" or line.startswith(" ")
                if self._indented
                else line != "" and not line.startswith(("CMake ", "-- "))
            )
            if self._in_cmake_error and len(self.cmake_error) < 20:
                self.cmake_error.append(line)


def plain(line: str) -> str:
    """`line` without terminal colours (CMAKE_COLOR_DIAGNOSTICS) and carriage returns."""
    return _ANSI.sub("", line).rsplit("\r", 1)[-1]


def source_name(unit: str) -> str:
    """`CMakeFiles/x.dir/csrc/gemm/a.cu.o` → `a.cu`."""
    return unit.rsplit("/", 1)[-1].removesuffix(".o")


def source_path(unit: str) -> str:
    """`CMakeFiles/x.dir/csrc/gemm/a.cu.o` → `csrc/gemm/a.cu`, as far as CMake's naming shows it."""
    return re.sub(r"^.*?CMakeFiles/[^/]+\.dir/", "", unit).removesuffix(".o")
