"""What fuzzing feeds bytes to. Each target returns, or raises AssertionError for a fault of ours: any other
exception than the one that its reader documents is a fault, too."""

from __future__ import annotations

import base64
import io
import struct
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from inspectworld import World, write_zip
from sglwheel.errors import InspectionError
from sglwheel.inspect import inspect, operators
from sglwheel.inspect import kernels as kernel_reader
from sglwheel.inspect.elf import Elf, ElfError
from sglwheel.inspect.fatbin import FatbinError, entries
from sglwheel.inspect.releases import Releases
from sglwheel.inspect.skeleton import SkeletonWriter

CORPUS = Path(__file__).with_name("fuzz") / "corpus"
NO_RELEASES = Releases((), {})
WORLD = World(libraries={})


def around(content: bytes) -> bytes:
    """The smallest ELF file whose .nv_fatbin section holds `content`."""
    names = b"\0.nv_fatbin\0.shstrtab\0"
    start = 64
    strings = start + len(content)
    table = strings + len(names)
    ident = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    header = struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 0, table, 0, 64, 0, 0, 64, 3, 2)
    sections = struct.pack("<IIQQQQIIQQ", 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
    sections += struct.pack("<IIQQQQIIQQ", 1, 1, 2, 0, start, len(content), 0, 0, 8, 0)
    sections += struct.pack("<IIQQQQIIQQ", 12, 3, 0, 0, strings, len(names), 0, 0, 1, 0)
    return ident + header + content + names + sections


def elf(data: bytes) -> None:
    """A shared library."""
    try:
        with Elf(data) as library:
            assert library.sections is not None and library.needed is not None
            assert library.undefined is not None and library.exported is not None
            assert operators.schemas(library) is not None
    except ElfError as error:
        assert str(error)


def fatbin(data: bytes) -> None:
    """A section of GPU code: read whole, and as inspection does, without the code itself."""
    whole = around(data)
    try:
        with Elf(whole) as library:
            assert kernel_reader.read(library, "x.so") is not None
    except (ElfError, FatbinError) as error:
        assert str(error)
    sink = io.BytesIO()
    writer = SkeletonWriter(sink)
    for place in range(0, len(whole), 50):
        writer.write(whole[place : place + 50])
    writer.finish()
    # Unlike a file, BytesIO does not grow where it is truncated behind its end.
    copy = sink.getvalue().ljust(len(whole), b"\0")
    assert len(copy) == len(whole)
    try:
        with Elf(copy, holes=writer.holes) as library:
            assert list(entries(library)) is not None
    except (ElfError, FatbinError) as error:
        assert str(error)


def record(data: bytes) -> None:
    """RECORD of an otherwise good wheel: always a verdict."""
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / WORLD.file_name
        members = [(name, data if name.endswith("/RECORD") else text) for name, text in WORLD.members()]
        write_zip(path, members)
        found = inspect(path, releases=NO_RELEASES)
        assert found.render() and found.to_json()


def wheel(data: bytes) -> None:
    """A whole archive: a verdict, or refused with exit code 7."""
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / WORLD.file_name
        path.write_bytes(data)
        try:
            found = inspect(path, releases=NO_RELEASES)
        except InspectionError as error:
            assert error.what and error.exit_code == 7
            return
        assert found.render() and found.to_json()


TARGETS: dict[str, Callable[[bytes], None]] = {"elf": elf, "fatbin": fatbin, "record": record, "wheel": wheel}


def corpus(name: str) -> Iterator[tuple[str, bytes]]:
    """(what it is, its bytes) of every kept input of a target: lines of `<target>.txt`, base64."""
    for line in (CORPUS / f"{name}.txt").read_text().splitlines():
        what, _, text = line.partition(" ")
        yield what, base64.b64decode(text)


def keep(name: str, what: str, data: bytes) -> None:
    """Add an input to the corpus."""
    with (CORPUS / f"{name}.txt").open("a") as stream:
        stream.write(f"{what} {base64.b64encode(data).decode()}\n")
