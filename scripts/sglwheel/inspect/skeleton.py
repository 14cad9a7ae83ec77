"""Copy a library without its GPU code.

Nine tenths of a large kernel library are cubins, of which only the headers say anything here. Leaving them
out as holes of a sparse file makes inspecting a 536 MB wheel a matter of inflating and hashing, and keeps 1.6
GB off the disk.
"""

from __future__ import annotations

from typing import BinaryIO

from sglwheel.inspect import fatbin


class SkeletonWriter:
    """Takes a file's bytes in order, writes all but the payloads of fat binaries, and notes what it left out.

    What looks like a fat binary may be something else, or a trap that hides a symbol table: readers of the
    copy must not touch `holes` (`Elf` refuses to). A container whose headers contradict each other is copied
    whole.
    """

    def __init__(self, sink: BinaryIO, *, whole: bool = False) -> None:
        self._sink = sink
        self._whole = whole
        self._buffer = bytearray()
        self._position = 0
        self._container_end = 0
        self._containers = 0
        self.holes: list[tuple[int, int]] = []
        self._skip_to = 0

    def write(self, data: bytes) -> None:
        """Take the next bytes."""
        if self._whole:
            self._sink.write(data)
            self._position += len(data)
            return
        view = memoryview(data)
        if self._skip_to > self._position:
            skipped = min(len(view), self._skip_to - self._position)
            self._position += skipped
            view = view[skipped:]
        if view:
            self._buffer += view
            self._drain(final=False)

    def finish(self) -> None:
        """Write what is left and give the copy its full length."""
        self._drain(final=True)
        self._sink.truncate(self._position)

    def _drain(self, *, final: bool) -> None:
        while self._buffer:
            if self._position >= self._container_end:
                if not self._find_container(final):
                    return
            elif not self._step_entry(final):
                return

    def _find_container(self, final: bool) -> bool:
        """Copy up to the next container and past its header; False when more bytes are needed."""
        start = -self._position % 8
        found = self._buffer.find(fatbin.MAGIC, start)
        while found >= 0 and (self._position + found) % 8:
            found = self._buffer.find(fatbin.MAGIC, found + 1)
        if self._containers > fatbin.MAX_CONTAINERS:
            found = -1  # nothing that a compiler writes: its reader refuses it, too
        if found < 0:
            keep = 0 if final else len(fatbin.MAGIC) - 1
            self._copy(max(0, len(self._buffer) - keep))
            return False
        self._copy(found)
        if len(self._buffer) < fatbin.CONTAINER.size:
            if final:
                self._copy(len(self._buffer))
            return False
        _magic, _version, header, size = fatbin.CONTAINER.unpack_from(self._buffer)
        self._containers += 1
        self._container_end = self._position + header + size
        self._copy(fatbin.CONTAINER.size)
        return True

    def _step_entry(self, final: bool) -> bool:
        """Copy an entry's header and leave its payload out; False when more bytes are needed."""
        room = self._container_end - self._position
        if len(self._buffer) < fatbin.ENTRY.size:
            if final:
                self._copy(len(self._buffer))
            return False
        _kind, _version, header, size, *_rest = fatbin.ENTRY.unpack_from(self._buffer)
        if header < fatbin.ENTRY.size or header > 1 << 16 or header + size > room:
            self._container_end = self._position
            # One byte on, so that the search does not find this place again.
            self._copy(1)
            return True
        if len(self._buffer) < header:
            if final:
                self._copy(len(self._buffer))
            return False
        self._copy(header)
        self.holes.append((self._position, self._position + size))
        self._skip_to = self._position + size
        skipped = min(size, len(self._buffer))
        del self._buffer[:skipped]
        self._position += skipped
        return True

    def _copy(self, count: int) -> None:
        if count:
            self._sink.seek(self._position)
            self._sink.write(self._buffer[:count])
            del self._buffer[:count]
            self._position += count
