"""The ELF reader against pyelftools, and against what is not an ELF file."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inspectworld import MACHINE, Source, compiled, container, entry
from sglwheel.inspect.elf import Elf, ElfError

LIBRARY = Source(
    rpath="$ORIGIN/../lib:/build",
    soname="libkernels.so.2",
    versions=(("arc4random", "GLIBC_2.36", "libc.so.6"), ("numa_available", "libnuma_1.1", "libnuma.so.1")),
)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("elf") / "library.so"
    path.write_bytes(compiled(LIBRARY))
    return path


def system_libraries() -> list[Path]:
    """Libraries of this host, mapped by this very process."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return sorted(
        {Path(line.split(None, 5)[5]) for line in lines if line.endswith((".so", ".so.6", ".so.1"))}
    )[:12]


def test_agrees_with_pyelftools(path: Path) -> None:
    for candidate in [path, *system_libraries()]:
        with candidate.open("rb") as stream, Elf(candidate) as ours:
            theirs = ELFFile(stream)
            dynamic = theirs.get_section_by_name(".dynamic")
            assert isinstance(dynamic, DynamicSection)
            assert ours.needed == tuple(tag.needed for tag in dynamic.iter_tags("DT_NEEDED"))
            table = theirs.get_section_by_name(".dynsym")
            assert isinstance(table, SymbolTableSection)
            symbols = [s for s in table.iter_symbols() if s.name and s["st_info"]["bind"] != "STB_LOCAL"]
            assert ours.exported == {s.name for s in symbols if s["st_shndx"] != "SHN_UNDEF"}
            assert sorted(s.name for s in ours.undefined) == sorted(
                s.name for s in symbols if s["st_shndx"] == "SHN_UNDEF"
            )
            needs = theirs.get_section_by_name(".gnu.version_r")
            if needs is not None:
                assert set(ours.version_needs.values()) == {
                    (aux.name, version.name) for version, auxes in needs.iter_versions() for aux in auxes
                }


def test_reads_what_a_loader_looks_at(path: Path) -> None:
    with Elf(path) as elf:
        assert elf.machine == MACHINE
        assert elf.soname == "libkernels.so.2"
        assert elf.rpaths == ("$ORIGIN/../lib", "/build")
        found = {symbol.name: (symbol.version, symbol.library) for symbol in elf.undefined}
        assert found["arc4random"] == ("GLIBC_2.36", "libc.so.6")
        assert found["numa_available"] == ("libnuma_1.1", "libnuma.so.1")
        assert found["cuMemFree_v2"] == (None, None)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "not an ELF"),
        (b"\x7fELF", "64-bit"),
        (b"\x7fELF\x01\x01\x01" + bytes(100), "64-bit"),
        (b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x03\0>\0", "truncated"),
        (b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x03\0>\0" + bytes(60), "no section headers"),
    ],
)
def test_what_is_not_a_library_is_told(content: bytes, says: str, tmp_path: Path) -> None:
    path = tmp_path / "x.so"
    path.write_bytes(content)
    with pytest.raises(ElfError, match=says), Elf(path):
        pass


def read_all(path: Path) -> None:
    with Elf(path) as elf:
        assert isinstance(elf.needed, tuple)
        assert elf.undefined is not None
        assert elf.exported is not None
        assert elf.rpaths is not None


def test_every_truncation_is_an_error(path: Path, tmp_path: Path) -> None:
    content = path.read_bytes()
    copy = tmp_path / "cut.so"
    for length in random.Random(2).sample(range(len(content)), 60):
        copy.write_bytes(content[:length])
        with pytest.raises(ElfError):
            read_all(copy)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_damaged_headers_end_in_an_error_or_a_value(path: Path, tmp_path: Path, data: st.DataObject) -> None:
    content = bytearray(path.read_bytes())
    (shoff,) = struct.unpack_from("<Q", content, 40)
    interesting = st.one_of(
        st.integers(0, 63), st.integers(shoff, len(content) - 1), st.integers(0, len(content) - 1)
    )
    for _ in range(data.draw(st.integers(1, 6))):
        content[data.draw(interesting)] = data.draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]))
    copy = tmp_path / "damaged.so"
    copy.write_bytes(content)
    try:
        read_all(copy)
    except ElfError as error:
        assert str(error)


def test_overlapping_names_are_bounded(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sglwheel.inspect.elf._MAX_NAME_BYTES", 10)
    with pytest.raises(ElfError, match="symbol names overlap"):
        read_all(path)


def test_reading_inside_a_hole_is_an_error(path: Path) -> None:
    with Elf(path) as elf:
        section = elf.section(".dynsym")
        assert section is not None
    with Elf(path, holes=[(section.offset, section.offset + 24)]) as elf:
        assert elf.needed
        with pytest.raises(ElfError, match="looks like GPU code"):
            assert elf.exported


def test_unused_helpers_agree() -> None:
    assert len(container(entry())) % 8 == 0
