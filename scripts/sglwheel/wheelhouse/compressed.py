"""Pages compressed once for all who ask: one of ten thousand releases takes long to compress."""

from __future__ import annotations

import threading
from collections import OrderedDict
from pathlib import Path

from isal import igzip
from starlette.responses import FileResponse, Response

# A smaller one fits into one packet anyway.
SMALLEST = 2048
_ROOM = 64 << 20


class Compressed:
    """The newest answers, in at most 64 MiB; a file that changed is another one. Safe for threads."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, bytes] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()
        self._turn = threading.Lock()

    def answer(self, plain: FileResponse) -> Response:
        """The same as `plain` in gzip; reads the file. Raises OSError."""
        # Its tag is of time and size.
        data = self._data(f"{plain.path} {plain.headers['etag']}", Path(plain.path))
        headers = {
            name: value
            for name, value in plain.headers.items()
            if name not in ("content-length", "accept-ranges")
        }
        return Response(data, headers={**headers, "content-encoding": "gzip"})

    def _data(self, key: str, path: Path) -> bytes:
        known = self._find(key)
        if known is not None:
            return known
        # One at a time: who asks for the same meanwhile finds it.
        with self._turn:
            known = self._find(key)
            if known is None:
                known = igzip.compress(path.read_bytes(), compresslevel=2)
                self._keep(key, known)
        return known

    def _find(self, key: str) -> bytes | None:
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def _keep(self, key: str, data: bytes) -> None:
        with self._lock:
            self._kept[key] = data
            self._size += len(data)
            while self._size > _ROOM:
                self._size -= len(self._kept.popitem(last=False)[1])
