"""Where launchers knock: a unix socket in a directory of its own."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from pathlib import Path


class Door:
    """A listening socket; `address` is its path, of any length."""

    def __init__(self) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="sglwheel-"))
        self.address = str(self._directory / "admission")
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # A socket's path holds 107 bytes, so it is named by way of its directory's descriptor.
        descriptor = os.open(self._directory, os.O_PATH | os.O_CLOEXEC)
        try:
            self.socket.bind(f"/proc/self/fd/{descriptor}/admission")
        finally:
            os.close(descriptor)
        self.socket.listen(1024)
        self.socket.setblocking(False)

    def accept(self) -> socket.socket:
        """The next one who knocked."""
        channel, _ = self.socket.accept()
        channel.setblocking(False)
        return channel

    def close(self) -> None:
        """Let nobody in any more."""
        self.socket.close()
        shutil.rmtree(self._directory, ignore_errors=True)
