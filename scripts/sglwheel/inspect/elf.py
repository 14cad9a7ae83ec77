"""Read the parts of an ELF shared library that a dynamic loader looks at.

pyelftools builds one object per symbol: 5 s for the 100,000 exports of a torch build, where one
`struct.iter_unpack` takes 0.2 s. The tests hold this reader against pyelftools on real libraries.
"""

from __future__ import annotations

import bisect
import io
import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

_EHDR = struct.Struct("<HHIQQQIHHHHHH")
_SHDR = struct.Struct("<IIQQQQIIQQ")
_SYM = struct.Struct("<IBBHQQ")
_DYN = struct.Struct("<qQ")
_VERNEED = struct.Struct("<HHIII")
_VERNAUX = struct.Struct("<IHHII")

_SHT_DYNAMIC, _SHT_NOBITS, _SHT_DYNSYM = 6, 8, 11
_SHT_VERNEED, _SHT_VERSYM = 0x6FFFFFFE, 0x6FFFFFFF
_DT_NEEDED, _DT_SONAME, _DT_RPATH, _DT_RUNPATH = 1, 14, 15, 29
_STB_LOCAL, _STB_WEAK = 0, 2

MACHINES = {
    62: "x86_64",
    183: "aarch64",
    190: "cuda",
    3: "i686",
    40: "armv7l",
    21: "ppc64le",
    22: "s390x",
    243: "riscv64",
}

# Far above what a linker writes (torch: 80,000 symbols, 6 MB of names), far below what
# would exhaust a host: a file of zeros costs an archive next to nothing.
_MAX_SYMBOLS = 1_000_000
_MAX_NAME_BYTES = 128 << 20
_MAX_NAME = 1 << 16
_MAX_SECTION_NAME_BYTES = 16 << 20
_MAX_READ = 256 << 20


class ElfError(ValueError):
    """The file is not an ELF shared library that a loader could read; the text says where it breaks."""


@dataclass(frozen=True)
class Section:
    """One section header."""

    name: str
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int


@dataclass(frozen=True, slots=True)
class Undefined:
    """A symbol that the library expects from elsewhere, with the version and library it asks for, if any."""

    name: str
    weak: bool
    version: str | None
    library: str | None


class Elf:
    """A little-endian ELF64 file, read on demand; use it as a context.

    `holes` are ranges that the copy at `path` does not have; reading there is an error.
    """

    def __init__(self, path: Path | bytes, *, holes: Sequence[tuple[int, int]] = ()) -> None:
        self._holes = tuple(holes)
        self._starts = [start for start, _ in self._holes]
        try:
            self._stream = io.BytesIO(path) if isinstance(path, bytes) else path.open("rb", buffering=0)
        except OSError as error:
            raise ElfError(f"cannot read: {error.strerror}") from error
        try:
            self.size = self._stream.seek(0, os.SEEK_END)
            self._read_headers()
        except BaseException:
            self._stream.close()
            raise

    def __enter__(self) -> Elf:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()

    def _read_headers(self) -> None:
        ident = self.read(0, min(16, self.size))
        if ident[:4] != b"\x7fELF":
            raise ElfError("not an ELF file")
        if len(ident) < 16 or ident[4] != 2 or ident[5] != 1:
            raise ElfError("not a 64-bit little-endian ELF file")
        (
            self.type,
            number,
            _version,
            _entry,
            _phoff,
            shoff,
            _flags,
            _ehsize,
            _phentsize,
            _phnum,
            shentsize,
            shnum,
            shstrndx,
        ) = _EHDR.unpack(self.read(16, _EHDR.size))
        self.machine = MACHINES.get(number, f"machine {number}")
        if shoff == 0 or shnum == 0:
            raise ElfError("no section headers")
        if shentsize != _SHDR.size:
            raise ElfError(f"section headers of {shentsize} bytes")
        table = self.read(shoff, shnum * _SHDR.size)
        headers = list(_SHDR.iter_unpack(table))
        if shstrndx >= len(headers):
            raise ElfError("section names are missing")
        names = self.read(headers[shstrndx][4], headers[shstrndx][5])
        sections: list[Section] = []
        total = 0
        for name, kind, flags, address, offset, size, link, _info, _align, _entsize in headers:
            text = _text(names, name)
            total += len(text)
            if total > _MAX_SECTION_NAME_BYTES:
                raise ElfError("section names overlap: more text than the file has")
            sections.append(Section(text, kind, flags, address, offset, size, link))
        self.sections = tuple(sections)

    def read(self, offset: int, size: int) -> bytes:
        """Exactly `size` bytes. Raises ElfError past the end: a lying header cannot ask for more."""
        if size < 0 or offset + size > self.size:
            raise ElfError(f"truncated: bytes {offset} to {offset + size} of {self.size}")
        if size > _MAX_READ:
            raise ElfError(f"a table of {size} bytes: more than any library has")
        index = bisect.bisect_left(self._starts, offset + size)
        if size and index and self._holes[index - 1][1] > offset:
            raise ElfError(f"bytes {offset} to {offset + size} lie inside what looks like GPU code")
        self._stream.seek(offset)
        data = self._stream.read(size)
        if data is None or len(data) != size:
            raise ElfError(f"short read at {offset}")
        return data

    def present(self, offset: int) -> int:
        """How many bytes from `offset` on the copy has before its next hole."""
        index = bisect.bisect_left(self._starts, offset)
        return (self._starts[index] if index < len(self._starts) else self.size) - offset

    def section(self, name: str) -> Section | None:
        return next((section for section in self.sections if section.name == name), None)

    def contents(self, section: Section) -> bytes:
        return b"" if section.kind == _SHT_NOBITS else self.read(section.offset, section.size)

    def _of_kind(self, kind: int) -> Section | None:
        return next((section for section in self.sections if section.kind == kind), None)

    def _strings(self, section: Section) -> bytes:
        if section.link >= len(self.sections):
            raise ElfError(f"{section.name} links to no string table")
        return self.contents(self.sections[section.link])

    @cached_property
    def _dynamic(self) -> tuple[tuple[int, str], ...]:
        section = self._of_kind(_SHT_DYNAMIC)
        if section is None:
            raise ElfError("no dynamic section: not a shared library")
        strings = self._strings(section)
        data = self.contents(section)
        found: list[tuple[int, str]] = []
        for tag, value in _DYN.iter_unpack(data[: len(data) // _DYN.size * _DYN.size]):
            if tag == 0:
                break
            if tag in (_DT_NEEDED, _DT_SONAME, _DT_RPATH, _DT_RUNPATH):
                found.append((tag, _text(strings, value)))
        return tuple(found)

    @property
    def needed(self) -> tuple[str, ...]:
        return tuple(value for tag, value in self._dynamic if tag == _DT_NEEDED)

    @property
    def soname(self) -> str | None:
        return next((value for tag, value in self._dynamic if tag == _DT_SONAME), None)

    @property
    def rpaths(self) -> tuple[str, ...]:
        """The entries of RPATH and RUNPATH."""
        return tuple(
            entry
            for tag, value in self._dynamic
            if tag in (_DT_RPATH, _DT_RUNPATH)
            for entry in value.split(":")
        )

    @cached_property
    def version_needs(self) -> dict[int, tuple[str, str]]:
        """Version index → (version, library): what .gnu.version_r asks of which NEEDED library."""
        section = self._of_kind(_SHT_VERNEED)
        if section is None:
            return {}
        strings, data = self._strings(section), self.contents(section)
        needs: dict[int, tuple[str, str]] = {}
        offset, steps = 0, 0
        while True:
            _version, count, file, aux, following = _unpack(_VERNEED, data, offset)
            entry = offset + aux
            for _ in range(count):
                steps += 1
                if steps > 65536:
                    raise ElfError("version needs do not end")
                _hash, _flags, other, name, step = _unpack(_VERNAUX, data, entry)
                needs[other & 0x7FFF] = (_text(strings, name), _text(strings, file))
                if step == 0:
                    break
                entry += step
            if following == 0:
                return needs
            steps += 1
            offset += following

    def _symbols(self) -> Iterator[tuple[int, str, int, int]]:
        """(index, name, binding, section index) of every dynamic symbol that is not local."""
        section = self._of_kind(_SHT_DYNSYM)
        if section is None:
            raise ElfError("no dynamic symbols: not a shared library")
        if section.size > _MAX_SYMBOLS * _SYM.size:
            raise ElfError(f"{section.size // _SYM.size} dynamic symbols: more than any library has")
        strings, data = self._strings(section), self.contents(section)
        total = 0
        for index, (name, info, _other, shndx, _value, _size) in enumerate(
            _SYM.iter_unpack(data[: len(data) // _SYM.size * _SYM.size])
        ):
            binding = info >> 4
            if binding == _STB_LOCAL or name == 0:
                continue
            text = _text(strings, name)
            total += len(text)
            if total > _MAX_NAME_BYTES:
                raise ElfError("symbol names overlap: more text than the file has")
            yield index, text, binding, shndx

    @cached_property
    def undefined(self) -> tuple[Undefined, ...]:
        needs = self.version_needs
        section = self._of_kind(_SHT_VERSYM)
        versions = self.contents(section) if section is not None else b""
        found: list[Undefined] = []
        for index, name, binding, shndx in self._symbols():
            if shndx != 0:
                continue
            number = 0
            if 2 * index + 2 <= len(versions):
                number = int.from_bytes(versions[2 * index : 2 * index + 2], "little") & 0x7FFF
            version, library = needs.get(number, (None, None))
            found.append(Undefined(name, binding == _STB_WEAK, version, library))
        return tuple(found)

    @cached_property
    def exported(self) -> frozenset[str]:
        return frozenset(name for _, name, _, shndx in self._symbols() if shndx != 0)


def _unpack(layout: struct.Struct, data: bytes, offset: int) -> tuple[int, ...]:
    try:
        return layout.unpack_from(data, offset)
    except struct.error:
        raise ElfError(f"truncated table at {offset}") from None


def _text(strings: bytes, offset: int) -> str:
    end = strings.find(b"\0", offset, offset + _MAX_NAME)
    if offset >= len(strings) or end < 0:
        raise ElfError(f"string at {offset} does not end")
    return strings[offset:end].decode("utf-8", "surrogateescape")
