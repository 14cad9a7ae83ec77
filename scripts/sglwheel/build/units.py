"""What is known of a unit on its way through the governor, and what others may see of it."""

from __future__ import annotations

import re
import signal
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sglwheel.build.costs import Cost
from sglwheel.build.policy import Active

KILLED = re.compile(
    r"died due to signal 9|[Kk]illed signal terminated program|killed by SIGKILL|(^|: )Killed( |$)"
    r"|cannot allocate memory|virtual memory exhausted|std::bad_alloc|[Oo]ut of memory",
    re.MULTILINE,
)


@dataclass
class Unit:
    """One unit between asking and its end."""

    unit: str
    pid: int
    cost: Cost
    since: float
    channel: socket.socket
    started: float | None = None
    peak: int = 0
    resident: int = 0
    buffer: bytes = b""
    learned: Cost | None = None  # what it showed before it was ended, in place of what was expected
    alone: bool = False  # it was killed from outside: nothing runs beside it any more
    ended: bool = False  # we are ending its compiler
    kills: int = 0  # how often the kernel had killed when it started
    own: float = 0.0  # CPU seconds of its launcher

    def send(self, line: bytes) -> bool:
        """Tell its launcher; False when that has gone, which an empty read will say, too."""
        try:
            self.channel.sendall(line)
        except OSError:
            return False
        return True

    def active(self, pace: float, now: float) -> Active:
        """What it is in the way of while it runs; one that outgrew its estimate counts with what it has."""
        assert self.started is not None
        left = max(0.0, self.cost.seconds * pace - (now - self.started))
        return Active(Cost(self.cost.seconds, max(self.cost.peak, self.peak)), left)


@dataclass(frozen=True)
class Finished:
    """A compiler that ended; `cached` says which cache had the object, empty when it was compiled."""

    unit: str
    code: int
    seconds: float
    cpu: float
    peak: int
    cached: str = ""

    @classmethod
    def parse(cls, unit: str, message: Mapping[str, Any], *, peak: int) -> Finished:
        """A launcher's report; `peak` was seen from outside. Raises KeyError, TypeError and ValueError."""
        return cls(
            unit,
            int(message["code"]),
            float(message["seconds"]),
            float(message["cpu"]),
            max(peak, int(message["peak_kib"]) * 1024),
            str(message.get("cached", "")),
        )

    def costs(self) -> dict[str, Any]:
        """What the history keeps."""
        return {
            "unit": self.unit,
            "code": self.code,
            "seconds": self.seconds,
            "cpu": self.cpu,
            "peak": self.peak,
        }


@dataclass
class State:
    """What progress shows; read by another thread, so replaced rather than edited.

    `running` holds (unit, start on the monotonic clock, expected cost, resident bytes). `again` holds the
    units that had to start again and why: "requeued" by us, "killed" by somebody else.
    """

    running: tuple[tuple[str, float, Cost, int], ...] = ()
    finished: list[Finished] = field(default_factory=list)
    again: list[tuple[str, str]] = field(default_factory=list)
    waiting: int = 0
    resident: int = 0
    peak: int = 0
    room: int = 0
    overhead: float = 0.0  # CPU seconds of the launchers and of our own process, which meters and shows
    builds: int = 0  # other builds on this host


def starved(code: int, said: str, kernel_killed: bool) -> bool:
    """Whether a compiler ended for want of memory, or was killed, rather than for what it compiled.

    A driver (nvcc, g++) outlives its killed child and only says so.
    """
    return code == -signal.SIGKILL or kernel_killed or KILLED.search(said) is not None
