"""Where two wheels differ: by file, and inside libraries by ELF section."""

from __future__ import annotations

import operator
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sglwheel.inspect.elf import Elf, ElfError

_TEXT = re.compile(rb"[\x20-\x7e]{4,}")
_AROUND = 160  # bytes before a difference in which a readable name may begin


@dataclass(frozen=True)
class Difference:
    """One place that differs; `part` is a section, or what of the archive's entry it is."""

    file: str
    part: str
    detail: str

    def __str__(self) -> str:
        return f"{self.part}: {self.detail}"


def compare(one: Path, other: Path) -> tuple[Difference, ...]:
    """Every difference of two wheels; none means that they are the same bytes.

    Raises OSError and zipfile.BadZipFile.
    """
    if one.read_bytes() == other.read_bytes():
        return ()
    with zipfile.ZipFile(one) as first, zipfile.ZipFile(other) as second:
        found = tuple(_archives(first, second))
    return found or (
        Difference("the archive", "bytes", "its files are the same, how they are stored is not"),
    )


def _archives(one: zipfile.ZipFile, other: zipfile.ZipFile) -> Iterator[Difference]:
    mine, theirs = one.namelist(), other.namelist()
    for name in sorted(set(mine) ^ set(theirs)):
        yield Difference(name, "file", f"only in the {'first' if name in set(mine) else 'second'}")
    if sorted(mine) == sorted(theirs) and mine != theirs:
        yield Difference("the archive", "order", "the files are stored in another order")
    for name in sorted(set(mine) & set(theirs)):
        entry, twin = one.getinfo(name), other.getinfo(name)
        for part in ("date_time", "external_attr", "compress_type", "create_system", "extra", "comment"):
            if getattr(entry, part) != getattr(twin, part):
                yield Difference(name, part, f"{getattr(entry, part)!r}, then {getattr(twin, part)!r}")
        data, again = one.read(name), other.read(name)
        if data != again:
            yield from _contents(name, data, again)


def _contents(name: str, data: bytes, again: bytes) -> Iterator[Difference]:
    if data[:4] == b"\x7fELF":
        try:
            yield from _libraries(name, data, again)
            return
        except ElfError:
            pass  # then it is bytes like any other
    yield Difference(name, "bytes", _bytes(data, again))


def _libraries(name: str, data: bytes, again: bytes) -> Iterator[Difference]:
    with Elf(data) as one, Elf(again) as other:
        mine = {section.name: section for section in one.sections}
        theirs = {section.name: section for section in other.sections}
        for missing in sorted(mine.keys() ^ theirs.keys()):
            yield Difference(name, missing, f"only in the {'first' if missing in mine else 'second'}")
        any_section = bool(mine.keys() ^ theirs.keys())
        for section in one.sections:
            twin = theirs.get(section.name)
            if twin is None:
                continue
            content, counterpart = one.contents(section), other.contents(twin)
            if content != counterpart or section.size != twin.size:
                any_section = True
                yield Difference(name, section.name or "unnamed section", _bytes(content, counterpart))
    if not any_section:
        yield Difference(name, "headers", _bytes(data, again))


def _bytes(data: bytes, again: bytes) -> str:
    """How much differs, where it begins and what can be read there."""
    common = min(len(data), len(again))
    count = sum(map(operator.ne, data[:common], again[:common]))
    first = next((i for i in range(common) if data[i] != again[i]), common)
    text = (
        f"{len(data)} bytes, then {len(again)}" if len(data) != len(again) else f"{count} of {common} bytes"
    )
    text += f", from {first:#x} on"
    seen, then = _readable(data, first), _readable(again, first)
    return f"{text} ({seen!r}, then {then!r})" if seen and then else text


def _readable(data: bytes, place: int) -> str:
    """The text that surrounds a place, if there is any."""
    start = max(0, place - _AROUND)
    for match in _TEXT.finditer(data, start, min(len(data), place + _AROUND)):
        if match.start() <= place < match.end():
            return match[0].decode("ascii")
    return ""
