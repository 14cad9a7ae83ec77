"""What happened during a build, line by line, for looking at afterwards."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from sglwheel.build.lines import Lines
from sglwheel.build.units import Finished

_SAMPLE_SECONDS = 2.0  # between samples of memory, at most
_NOTABLE = 64 << 20  # bytes by which memory must have changed to be worth a line before _REPEAT
_REPEAT = 30.0


class Recording:
    """Append events as JSON lines; one that is torn is skipped by readers.

    A run's begin holds the time of day, all later times are seconds since then on the monotonic clock: a
    clock that jumps bends no picture. With `path` None nothing is kept.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._lines: Lines | None = None
        self._begun = time.monotonic()
        self._sampled = float("-inf")
        self._resident = 0

    def begin(self, **facts: int) -> None:
        """A run starts; `facts` are its limits."""
        if self._path is None:
            return
        self._lines = Lines(self._path)
        self._begun = time.monotonic()
        self._write(event="begin", date=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **facts)

    def compiled(self, done: Finished, outcome: str, started: float) -> None:
        """A compiler ended: "done", "failed", "requeued" or "killed"."""
        begin = round(max(0.0, started - self._begun), 3)
        cached = {"cached": done.cached} if done.cached else {}
        self._write(event="unit", start=begin, outcome=outcome, **done.costs(), **cached)

    def memory(self, resident: int, available: int) -> None:
        """Resident bytes of all our compilers and what the host has left, as often as it is worth a line."""
        now = time.monotonic()
        since = now - self._sampled
        if since < _SAMPLE_SECONDS or (abs(resident - self._resident) < _NOTABLE and since < _REPEAT):
            return
        self._sampled, self._resident = now, resident
        self._write(event="memory", at=round(now - self._begun, 1), resident=resident, available=available)

    def close(self, overhead: float = 0.0) -> None:
        """The run ends; `overhead` in CPU seconds of everything that is not a compiler's."""
        at = round(time.monotonic() - self._begun, 3)
        self._write(event="end", at=at, overhead=round(overhead, 3))
        if self._lines is not None:
            self._lines.close()
            self._lines = None

    def _write(self, **event: Any) -> None:
        if self._lines is not None:
            self._lines.add(json.dumps(event, separators=(",", ":")) + "\n")
