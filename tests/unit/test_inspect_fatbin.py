"""GPU targets from fat binaries made by hand; an integration test holds the reader against nvcc's own."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inspectworld import Source, compiled, container, entry
from sglwheel.inspect.elf import Elf, ElfError
from sglwheel.inspect.fatbin import FatbinError, Target, entries
from sglwheel.inspect.skeleton import SkeletonWriter


def library(blob: bytes, directory: Path) -> Path:
    path = directory / "library.so"
    path.write_bytes(compiled(Source(fatbin=blob)))
    return path


def targets(path: Path, holes: list[tuple[int, int]] | None = None) -> list[str]:
    with Elf(path, holes=holes or []) as elf:
        return [str(each.target) for each in entries(elf)]


def test_every_kind_of_target(tmp_path: Path) -> None:
    blob = container(entry(120, "a"), entry(120, "f"), entry(120, "")) + bytes(8)
    blob += container(entry(90, "", kind=1), entry(100, "f", kind=1), entry(90, "a", kind=16))
    assert targets(library(blob, tmp_path)) == [
        "sm_120a",
        "sm_120f",
        "sm_120",
        "compute_90",
        "compute_100f",
        "lto_90a",
    ]


def test_compressed_entries_keep_both_sizes(tmp_path: Path) -> None:
    with Elf(library(container(entry(payload=bytes(96), compressed=1 << 15)), tmp_path)) as elf:
        (only,) = entries(elf)
    assert (only.compressed, only.stored, only.size) == ("zstd", 96, 4096)


@pytest.mark.parametrize(
    ("blob", "says"),
    [
        (
            b"\x50\xed\x55\xba\x01\0\x10\0" + (1 << 40).to_bytes(8, "little") + bytes(64),
            "passes the section's end",
        ),
        (container(entry()) + b"junkjunk" * 3, "unknown container"),
        (container(entry()[:40]), "truncated entry"),
        (container(entry(kind=77)), "unknown kind 77"),
        (container(entry(number=3)), "architecture number 3"),
        (container(entry()[:-8]), "passes its container's end"),
    ],
)
def test_contradicting_headers_are_told(blob: bytes, says: str, tmp_path: Path) -> None:
    with pytest.raises(FatbinError, match=says):
        targets(library(blob, tmp_path))


@pytest.mark.parametrize(
    ("target", "capability", "runs"),
    [
        ("sm_120a", (12, 0), True),
        ("sm_120a", (12, 1), False),
        ("sm_120f", (12, 1), True),
        ("sm_120f", (13, 0), False),
        ("sm_80", (8, 6), True),
        ("sm_80", (9, 0), False),
        ("sm_90", (9, 0), True),
        ("compute_90", (12, 0), True),
        ("compute_120", (9, 0), False),
        ("compute_90a", (12, 0), False),
    ],
)
def test_what_runs_where(target: str, capability: tuple[int, int], runs: bool) -> None:
    assert Target.parse(target).runs_on(capability) is runs
    assert str(Target.parse(target)) == target


def skeleton(content: bytes, sizes: list[int]) -> tuple[bytes, list[tuple[int, int]]]:
    sink = io.BytesIO()
    writer = SkeletonWriter(sink)
    position = 0
    while position < len(content):
        step = sizes[position % len(sizes)]
        writer.write(content[position : position + step])
        position += step
    writer.finish()
    return sink.getvalue(), writer.holes


BLOB = (
    container(entry(payload=b"\xaa" * 5000), entry(90, payload=b"\xbb" * 13))
    + bytes(8)
    + container(entry(kind=1))
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(1, 9000), min_size=1, max_size=5))
def test_a_skeleton_reads_like_the_whole(tmp_path: Path, sizes: list[int]) -> None:
    """However the bytes arrive, the copy has the same length and headers, and only payloads are missing."""
    content = compiled(Source(fatbin=BLOB))
    copy, holes = skeleton(content, sizes)
    assert len(copy) == len(content)
    outside = bytearray(content)
    for start, end in holes:
        outside[start:end] = bytes(end - start)
    assert copy == bytes(outside)
    assert sum(end - start for start, end in holes) >= 5000
    path = tmp_path / "skeleton.so"
    path.write_bytes(copy)
    assert targets(path, holes) == ["sm_120a", "sm_90a", "compute_120a"]
    with Elf(path, holes=holes) as elf:
        assert "PyInit_common_ops" in elf.exported


def test_a_container_that_contradicts_itself_is_copied_whole() -> None:
    lying = b"\x50\xed\x55\xba\x01\0\x10\0" + (1 << 20).to_bytes(8, "little") + b"\x11" * 4000
    content = bytes(64) + lying
    copy, holes = skeleton(content, [100])
    assert copy == content
    assert holes == []


def test_what_hides_symbols_behind_gpu_code_is_refused(tmp_path: Path) -> None:
    """A forged container before the symbol table would make the inspector read zeros: it says so instead."""
    content = bytearray(compiled(Source(fatbin=b"")))
    path = tmp_path / "x.so"
    path.write_bytes(content)
    with Elf(path) as elf:
        table = elf.section(".dynsym")
        assert table is not None
    forged = container(entry(payload=bytes(table.size)))
    start = table.offset - 80
    start -= start % 8
    content[start : start + 80] = forged[:80]
    copy, holes = skeleton(bytes(content), [4096])
    path.write_bytes(copy)
    with pytest.raises(ElfError, match="looks like GPU code"), Elf(path, holes=holes) as elf:
        assert elf.exported
