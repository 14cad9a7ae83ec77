"""Which kernels make a library large: their names and sizes, read out of the cubins."""

from __future__ import annotations

from dataclasses import dataclass

from sglwheel.inspect import fatbin
from sglwheel.inspect.elf import Elf, ElfError

_TEXT = ".text."
_MAX_CUBIN = 256 << 20


@dataclass(frozen=True, order=True)
class Kernel:
    """Machine code of one kernel for one GPU target."""

    size: int
    name: str
    target: str
    library: str


def read(elf: Elf, library: str) -> list[Kernel]:
    """Every kernel of a library that was copied whole. What cannot be decompressed or read is left out."""
    found: list[Kernel] = []
    for entry in fatbin.entries(elf):
        if entry.target.kind != "sass" or entry.size > _MAX_CUBIN:
            continue
        content = _unpack(elf.read(entry.offset, entry.stored), entry)
        if content is None:
            continue
        try:
            with Elf(content) as cubin:
                found += [
                    Kernel(section.size, section.name.removeprefix(_TEXT), str(entry.target), library)
                    for section in cubin.sections
                    if section.name.startswith(_TEXT)
                ]
        except ElfError:
            continue
    return found


def _unpack(stored: bytes, entry: fatbin.Entry) -> bytes | None:
    """Undo what fatbinary's --compress-mode did: LZ4 up to CUDA 12.8, zstd since."""
    if not entry.compressed:
        return stored
    # Only --kernels needs them.
    import lz4.block
    import zstandard

    packed = stored[: entry.packed]
    try:
        if entry.compressed == "zstd":
            # A frame that names its size is given that much, whatever else is asked for.
            if zstandard.frame_content_size(packed) > entry.size:
                return None
            return zstandard.ZstdDecompressor().decompress(packed, max_output_size=entry.size)
        content: bytes = lz4.block.decompress(packed, uncompressed_size=entry.size)
    except (zstandard.ZstdError, lz4.block.LZ4BlockError):
        return None
    return content
