"""Read which GPU targets a library holds code for, from the fat binaries that nvcc embeds.

Only headers are read, so compressed code costs nothing. Layout of a container, checked against cuobjdump by
the tests (NVIDIA documents it nowhere): 16 bytes (magic, version, header size, size), then entries of a
header and a payload each. Of an entry's header: kind at 0, header size at 4, payload size at 8, the same
without padding at 16, architecture number at 28, flags at 40, size before compression at 56.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Self

from sglwheel.inspect.elf import Elf, Section

SECTIONS = (".nv_fatbin", "__nv_relfatbin")
_MAGIC = 0xBA55ED50
# Magic, version 1, header of 16 bytes: how every container begins.
MAGIC = struct.pack("<IHH", _MAGIC, 1, 16)
CONTAINER = struct.Struct("<IHHQ")
ENTRY = struct.Struct("<HHIQI8xI8xQ8xQ")
_KINDS = {1: "ptx", 2: "sass", 16: "lto"}
MAX_CONTAINERS = 100_000  # some thousands in the largest library that is published
_MAX_ENTRIES = 100_000
_ARCH_SPECIFIC, _FAMILY_SPECIFIC = 1 << 20, 1 << 21
_LZ4, _ZSTD = 1 << 13, 1 << 15
_TARGET = re.compile(r"(?P<kind>sm|compute|lto)_(?P<number>\d{2,3})(?P<suffix>[af]?)")


class FatbinError(ValueError):
    """A fat binary whose headers contradict each other; the text says where."""


@dataclass(frozen=True, order=True)
class Target:
    """A GPU target as nvcc names it: `sm_120a` (machine code), `compute_90` (PTX)."""

    kind: str
    number: int
    suffix: str

    def __str__(self) -> str:
        prefix = {"sass": "sm", "ptx": "compute", "lto": "lto"}[self.kind]
        return f"{prefix}_{self.number}{self.suffix}"

    @classmethod
    def parse(cls, text: str) -> Self:
        match = _TARGET.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is not a GPU target")
        kind = {"sm": "sass", "compute": "ptx", "lto": "lto"}[match["kind"]]
        return cls(kind, int(match["number"]), match["suffix"])

    @property
    def capability(self) -> tuple[int, int]:
        return divmod(self.number, 10)

    def runs_on(self, capability: tuple[int, int]) -> bool:
        """Whether a GPU of this compute capability can run the code.

        `a` means exactly this GPU; `f` the same major with an equal or higher minor; plain SASS likewise;
        plain PTX is compiled by the driver for anything newer.
        """
        if self.suffix == "a":
            return capability == self.capability
        if self.suffix == "f" or self.kind == "sass":
            return capability[0] == self.capability[0] and capability[1] >= self.capability[1]
        return self.kind == "ptx" and capability >= self.capability


@dataclass(frozen=True)
class Entry:
    """One cubin, PTX text or LTO blob."""

    target: Target
    offset: int
    stored: int
    size: int
    packed: int
    """Of the stored bytes, those that are not padding."""
    compressed: Literal["", "lz4", "zstd"]


def entries(elf: Elf) -> Iterator[Entry]:
    """Every entry of every fat binary in the library, in file order. Raises FatbinError and ElfError."""
    count = 0
    for section in elf.sections:
        if section.name in SECTIONS and section.size:
            for entry in _section_entries(elf, section):
                count += 1
                if count > _MAX_ENTRIES:
                    raise FatbinError(f"{section.name}: more than {_MAX_ENTRIES} entries")
                yield entry


def _section_entries(elf: Elf, section: Section) -> Iterator[Entry]:
    offset, end = section.offset, section.offset + section.size
    count = 0
    while (offset := _next_container(elf, offset, end)) < end:
        count += 1
        if count > MAX_CONTAINERS:
            raise FatbinError(f"{section.name}: more than {MAX_CONTAINERS} containers")
        where = f"{section.name}+{offset - section.offset:#x}"
        if offset + CONTAINER.size > end:
            raise FatbinError(f"{where}: truncated container")
        magic, version, header, size = CONTAINER.unpack(elf.read(offset, CONTAINER.size))
        if magic != _MAGIC or version != 1 or header != CONTAINER.size:
            raise FatbinError(f"{where}: unknown container (magic {magic:#x}, version {version})")
        stop = offset + header + size
        if stop > end:
            raise FatbinError(f"{where}: container of {size} bytes passes the section's end")
        position = offset + header
        while position < stop:
            entry, position = _entry(elf, section, position, stop)
            yield entry
        offset = stop


def _next_container(elf: Elf, offset: int, end: int) -> int:
    """Skip the zero padding between containers; anything else there is an error that the caller reports."""
    while offset < end:
        chunk = elf.read(offset, min(4096, end - offset, elf.present(offset) or 1))
        rest = chunk.lstrip(b"\0")
        if rest:
            return offset + len(chunk) - len(rest)
        offset += len(chunk)
    return end


def _entry(elf: Elf, section: Section, position: int, stop: int) -> tuple[Entry, int]:
    where = f"{section.name}+{position - section.offset:#x}"
    if position + ENTRY.size > stop:
        raise FatbinError(f"{where}: truncated entry")
    kind, _version, header, size, packed, number, flags, unpacked = ENTRY.unpack(
        elf.read(position, ENTRY.size)
    )
    if kind not in _KINDS:
        raise FatbinError(f"{where}: entry of unknown kind {kind}")
    if not 10 <= number <= 999:
        raise FatbinError(f"{where}: architecture number {number}")
    if header < ENTRY.size or position + header + size > stop:
        raise FatbinError(f"{where}: entry of {header}+{size} bytes passes its container's end")
    suffix = "a" if flags & _ARCH_SPECIFIC else "f" if flags & _FAMILY_SPECIFIC else ""
    entry = Entry(
        target=Target(_KINDS[kind], number, suffix),
        offset=position + header,
        stored=size,
        size=unpacked if flags & (_LZ4 | _ZSTD) else size,
        packed=min(packed, size),
        compressed="zstd" if flags & _ZSTD else "lz4" if flags & _LZ4 else "",
    )
    return entry, position + header + size
