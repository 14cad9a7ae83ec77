"""Notes that a build makes as it goes: worth keeping, not worth a build."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from sglwheel import console


class Lines:
    """Append lines to a file, each at once, for any thread.

    What the system refuses (a full disk) is lost and said once at the end; the next line starts anew, as it
    does after one that a crash has torn.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        size = os.fstat(self._descriptor).st_size
        self._torn = size > 0 and os.pread(self._descriptor, 1, size - 1) != b"\n"
        self._refused = ""

    def add(self, line: str) -> None:
        """Write one line, its end included."""
        data = line.encode()
        if self._torn:
            data = b"\n" + data
        try:
            written = os.write(self._descriptor, data)
        except OSError as error:
            self._refused = error.strerror or str(error)
            return
        self._torn = written < len(data)
        if self._torn:
            self._refused = os.strerror(errno.ENOSPC)

    def close(self) -> None:
        os.close(self._descriptor)
        if self._refused:
            console.warn(f"{self._path} lacks part of this build: {self._refused}")
