"""Builds of this tool on one host know of each other: a ledger that a crash leaves in order.

Each build holds a lock on a file of its own and writes there what it has promised to compilers that have not
taken it yet. The system drops the lock when the build dies, however it dies, and with it what the file says.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType

DIRECTORY = Path("/tmp/sglwheel-builds")  # one for all users: memory is the host's
VARIABLE = "SGLWHEEL_LEDGER"


@dataclass(frozen=True)
class Claim:
    """What one build says to the others.

    `promised`: bytes that running compilers are expected to take beyond what they have. `wanted`: bytes that
    a build with nothing running waits for, since `since` (CLOCK_MONOTONIC, which is the host's).
    """

    running: int = 0
    promised: int = 0
    wanted: int = 0
    since: float = 0.0


@dataclass(frozen=True)
class Others:
    """What all other builds leave to us."""

    builds: int = 0
    running: int = 0
    promised: int = 0
    wanted: int = 0  # by builds that have waited longer than we have


class Ledger:
    """This build's place among all builds of the host (a context manager).

    Where the directory cannot be used the build is alone: `Others()`.
    """

    def __init__(self, directory: Path | None = None) -> None:
        self._directory = directory or Path(os.environ.get(VARIABLE) or DIRECTORY)
        self._stack = ExitStack()
        self._own: int | None = None
        self._mutex: int | None = None
        self._path = self._directory / f"{os.getpid()}-{time.monotonic_ns()}.json"
        self._said = Claim()

    def __enter__(self) -> Ledger:
        with suppress(OSError):
            if not self._directory.is_dir():
                self._directory.mkdir(parents=True, exist_ok=True)
                self._directory.chmod(0o1777)
            self._mutex = self._open(self._directory / "mutex", 0o666)
            with self.turn():
                self._own = self._open(self._path, 0o644)
                fcntl.flock(self._own, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._write(Claim())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._own is not None:
            with suppress(OSError):
                self._path.unlink()
        self._stack.close()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """No other build decides meanwhile: between reading the others and saying what we take."""
        if self._mutex is None:
            yield
            return
        fcntl.flock(self._mutex, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._mutex, fcntl.LOCK_UN)

    def others(self, *, since: float) -> Others:
        """What the other builds have and want; `since` is when we began to wait. Only within a turn."""
        if self._own is None:
            return Others()
        claims = [claim for path in self._directory.glob("*.json") if (claim := self._read(path)) is not None]
        return Others(
            builds=len(claims),
            running=sum(claim.running for claim in claims),
            promised=sum(claim.promised for claim in claims),
            wanted=sum(claim.wanted for claim in claims if claim.since < since),
        )

    def say(self, claim: Claim) -> None:
        """Tell the others. Only within a turn, or for what makes nothing scarcer."""
        if self._own is not None and claim != self._said:
            # A full disk: then the others go by what was said before.
            with suppress(OSError):
                self._write(claim)

    def _open(self, path: Path, mode: int) -> int:
        # Not with O_CREAT first: Linux refuses that for another user's file in a sticky directory.
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)
            os.fchmod(descriptor, mode)
        self._stack.callback(os.close, descriptor)
        return descriptor

    def _write(self, claim: Claim) -> None:
        assert self._own is not None
        text = json.dumps(asdict(claim)).encode()
        # One write that is never shorter than the last one: a reader outside a turn sees no torn line.
        os.pwrite(self._own, text.ljust(200), 0)
        self._said = claim

    def _read(self, path: Path) -> Claim | None:
        """Another build's claim; the file of one that has died is removed."""
        if path == self._path:
            return None
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            with suppress(ValueError, TypeError, OSError):
                return Claim(**json.loads(os.pread(descriptor, 4096, 0)))
            return Claim()
        else:
            with suppress(OSError):
                path.unlink()
            return None
        finally:
            os.close(descriptor)
