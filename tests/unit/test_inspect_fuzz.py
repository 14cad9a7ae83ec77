"""Whatever bytes arrive as a wheel: a finding or a clear error, never anything else."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuzztargets import TARGETS, around, corpus
from inspectworld import EXPECT, LIBRARY, TORCH, Source, World, compiled, container, entry
from sglwheel.errors import InspectionError
from sglwheel.inspect import Inspection, inspect, kernels
from sglwheel.inspect.elf import Elf
from sglwheel.inspect.fatbin import FatbinError, entries

WORLD = World()


def judged(path: Path) -> Inspection | None:
    """Inspect, and show the result in every way; None when it was refused."""
    try:
        found = inspect(path, expect=EXPECT, torch=TORCH, kernels=3)
    except InspectionError as error:
        assert error.what
        return None
    assert found.to_json()["wheel_sha256"] == found.wheel_sha256
    assert found.render()
    return found


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_damaged_archives(tmp_path: Path, data: st.DataObject) -> None:
    path = WORLD.write(tmp_path)
    content = bytearray(path.read_bytes())
    # The directory at the end is where an archive is most easily hurt.
    place = st.one_of(st.integers(0, len(content) - 1), st.integers(len(content) - 700, len(content) - 1))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(place)] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del content[data.draw(place) :]
    path.write_bytes(content)
    judged(path)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_damaged_libraries(tmp_path: Path, data: st.DataObject) -> None:
    content = bytearray(compiled(Source(fatbin=container(entry(), entry(90, kind=1)))))
    (sections,) = struct.unpack_from("<Q", content, 40)
    fat = content.find(b"\x50\xed\x55\xba")
    place = st.one_of(
        st.integers(0, 63),
        st.integers(sections, len(content) - 1),
        st.integers(fat, fat + 200),
        st.integers(0, len(content) - 1),
    )
    for _ in range(data.draw(st.integers(1, 6))):
        content[data.draw(place)] = data.draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]))
    found = judged(WORLD.changed(libraries={LIBRARY: bytes(content)}).write(tmp_path))
    assert found is not None


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(["METADATA", "WHEEL", "RECORD"]), st.binary(max_size=300))
def test_garbage_in_dist_info(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / WORLD.file_name
    with zipfile.ZipFile(path, "w") as archive:
        for member, original in WORLD.members():
            archive.writestr(member, content if member.endswith(f"/{name}") else original)
    found = judged(path)
    assert found is not None
    assert not found.ok or name == "WHEEL"


KEPT = [(target, what, data) for target in TARGETS for what, data in corpus(target)]


@pytest.mark.parametrize(("target", "what", "data"), KEPT, ids=[f"{kept[0]}-{kept[1]}" for kept in KEPT])
def test_every_kept_input(target: str, what: str, data: bytes) -> None:
    TARGETS[target](data)


headers = st.builds(
    struct.pack,
    st.just("<HHIQI8xI8xQ8xQ"),
    st.sampled_from([0, 1, 2, 16, 0xFFFF]),
    st.just(0x101),
    st.sampled_from([0, 63, 64, 72, 0xFFFFFFFF]),
    st.sampled_from([0, 8, 40, 1 << 40, (1 << 64) - 1]),
    st.sampled_from([0, 8, 0xFFFFFFFF]),
    st.sampled_from([0, 90, 120, 1000]),
    st.sampled_from([0x11, 1 << 13, 1 << 15, 1 << 20, 0xFFFFFFFF]),
    st.sampled_from([0, 8, 1 << 62]),
)
starts = st.builds(
    struct.pack,
    st.just("<IHHQ"),
    st.sampled_from([0xBA55ED50, 0]),
    st.sampled_from([1, 2]),
    st.sampled_from([16, 0]),
    st.sampled_from([0, 72, 104, 1 << 40, (1 << 64) - 1]),
)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.one_of(starts, headers, st.binary(max_size=40)), max_size=8).map(b"".join))
def test_any_gpu_code(data: bytes) -> None:
    TARGETS["fatbin"](data)


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=400), st.integers(0, 6), st.integers(0, 1 << 16))
def test_any_library(data: bytes, count: int, table: int) -> None:
    start = struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 0, table % 400, 0, 64, 0, 0, 64, count, count // 2)
    TARGETS["elf"](b"\x7fELF\x02\x01\x01".ljust(16, b"\0") + start + data)


@settings(max_examples=30, deadline=None)
@given(st.text(alphabet='",\n\r\0sha256=./aü', max_size=200))
def test_any_record(text: str) -> None:
    TARGETS["record"](text.encode())


def test_more_symbols_than_a_library_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sglwheel.inspect.elf._MAX_SYMBOLS", 3)
    found = judged(WORLD.write(tmp_path))
    assert found is not None
    assert [each.broken for each in found.libraries if "more than any library" in (each.broken or "")]
    monkeypatch.undo()
    monkeypatch.setattr("sglwheel.inspect._MAX_SYMBOLS", 3)
    with pytest.raises(InspectionError, match="more than 3 symbols"):
        inspect(WORLD.write(tmp_path))


def test_more_gpu_code_than_a_library_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sglwheel.inspect.fatbin.MAX_CONTAINERS", 2)
    with Elf(around(container(entry()) * 3)) as library, pytest.raises(FatbinError, match="2 containers"):
        list(entries(library))
    monkeypatch.setattr("sglwheel.inspect.fatbin._MAX_ENTRIES", 2)
    with Elf(around(container(*[entry()] * 3))) as library, pytest.raises(FatbinError, match="2 entries"):
        list(entries(library))


def test_compressed_code_that_names_too_large_a_size_is_left_out() -> None:
    # The frame says 64 MiB, its entry 4096 bytes.
    frame = zstandard.ZstdCompressor().compress(bytes(64 << 20))
    with Elf(around(container(entry(payload=frame, compressed=1 << 15)))) as library:
        assert kernels.read(library, "x.so") == []


def test_a_directory_that_would_fill_the_memory(tmp_path: Path) -> None:
    path = WORLD.write(tmp_path)
    content = bytearray(path.read_bytes())
    struct.pack_into("<I", content, len(content) - 10, 900 << 20)
    path.write_bytes(content)
    with pytest.raises(InspectionError, match="its directory of files has 943718400 bytes"):
        inspect(path)


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (1500 << 20, 1500 << 20))
resource.setrlimit(resource.RLIMIT_CPU, (20, 20))
from sglwheel.cli import main
sys.argv = ["sglwheel", "inspect", sys.argv[1]]
main()
"""


def test_a_bomb_as_its_user_sees_it(tmp_path: Path) -> None:
    path = tmp_path / WORLD.file_name
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bomb.so", b"\x7fELF" + bytes(100 << 20))
    said = subprocess.run(
        [sys.executable, "-c", LIMITED, path],
        env={**os.environ, "SGLWHEEL_ROOT": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
    )
    assert said.returncode == 7
    assert said.stderr.startswith("error: refused, not a sane wheel: bomb.so would unpack")
    assert "Traceback" not in said.stderr
