"""Whatever bytes arrive as a wheel: a finding or a clear error, never anything else."""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inspectworld import EXPECT, LIBRARY, TORCH, Source, World, compiled, container, entry
from sglwheel.errors import InspectionError
from sglwheel.inspect import Inspection, inspect

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
