"""A difference of two wheels is named by file and section."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from inspectworld import LIBRARY, Source, compiled, container, entry, write_zip
from sglwheel.reproduce.difference import compare


def differences(directory: Path, one: dict[str, bytes], other: dict[str, bytes]) -> list[tuple[str, str]]:
    for name, members in (("one.whl", one), ("other.whl", other)):
        write_zip(directory / name, list(members.items()))
    return [(each.file, each.part) for each in compare(directory / "one.whl", directory / "other.whl")]


def test_the_same_bytes(tmp_path: Path) -> None:
    members = {"a.py": b"1", LIBRARY: compiled(Source())}
    assert differences(tmp_path, members, dict(members)) == []


@pytest.mark.parametrize(
    ("change", "sections"),
    [
        ({"fatbin": container(entry(payload=b"\x7fELF other"))}, {".nv_fatbin"}),
        ({"schemas": ("rmsnorm(Tensor! out, Tensor input, float EPS) -> ()",)}, {".rodata"}),
    ],
)
def test_a_library_by_section(tmp_path: Path, change: dict[str, object], sections: set[str]) -> None:
    one, other = compiled(Source()), compiled(replace(Source(), **change))  # type: ignore[arg-type]
    found = differences(tmp_path, {LIBRARY: one}, {LIBRARY: other})
    # The build id is a hash of the rest.
    assert {part for _, part in found} - {".note.gnu.build-id"} == sections
    assert {file for file, _ in found} == {LIBRARY}


def test_a_path_is_shown(tmp_path: Path) -> None:
    one, other = (compiled(Source(rpath=path)) for path in ("/home/one/lib", "/home/two/lib"))
    write_zip(tmp_path / "one", [(LIBRARY, one)])
    write_zip(tmp_path / "other", [(LIBRARY, other)])
    (strings,) = [each for each in compare(tmp_path / "one", tmp_path / "other") if each.part == ".dynstr"]
    assert "'/home/one/lib', then '/home/two/lib'" in strings.detail


def test_files_order_and_text(tmp_path: Path) -> None:
    assert differences(tmp_path, {"a": b"", "b": b""}, {"a": b""}) == [("b", "file")]
    assert differences(tmp_path, {"a": b"", "b": b""}, {"b": b"", "a": b""}) == [("the archive", "order")]
    assert differences(tmp_path, {"a": b"1\n"}, {"a": b"2\n"}) == [("a", "bytes")]
    assert differences(tmp_path, {"a": b"\x7fELF, not"}, {"a": b"\x7fELF, no "}) == [("a", "bytes")]
