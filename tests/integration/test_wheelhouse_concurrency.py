"""Several publishers at once, killed at random: nothing lost, nothing torn, the index true.

`nox -s bench-wheelhouse -- publishers` does it with eight publishers of 200 wheels each.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from killedpublishers import publish_and_kill
from sglwheel import files
from sglwheel.errors import WheelhouseError
from sglwheel.files import Layout
from sglwheel.wheelhouse import Wheelhouse, publish
from sglwheel.wheelhouse.verify import verify
from wheelworld import digest, make_kernel, reports

pytestmark = pytest.mark.integration


def test_killed_publishers_lose_and_tear_nothing(tmp_path: Path) -> None:
    done = publish_and_kill(tmp_path, publishers=3, each=6)
    assert done.kills > 0
    assert {path.name for path in done.house.root.glob("*.whl")} == done.names
    found = {finding.rule for finding in verify(done.house).findings}
    assert found <= {"leftover"}, "what a killed one was copying is all that may be left"
    assert verify(done.house, repair=True).ok
    assert verify(done.house).findings == ()


def test_without_locks_between_hosts_no_wheel_is_lost_and_repair_makes_all_true(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a network file system whose locks do not reach other hosts."""
    builds = range(1, 13)
    paths = [
        make_kernel(tmp_path / f"host{number % 4}", f"0.3.21+cu130.torch2.12.0.sm120a.{number}")
        for number in builds
    ]

    def publish_until_it_is_there(wheel: Path) -> None:
        for _ in range(50):
            try:
                publish(*reports(wheel), Layout(tmp_path))
                return
            except WheelhouseError as error:
                assert error.exit_code == 9
        raise AssertionError(f"{wheel.name} was refused again and again")

    with monkeypatch.context() as patch, ThreadPoolExecutor(4) as hosts:
        patch.setattr(files, "locked", lambda *_, **__: contextlib.nullcontext())
        list(hosts.map(publish_until_it_is_there, paths))
    house = Wheelhouse(tmp_path / "wheelhouse")
    there = {path.name: digest(path) for path in house.root.glob("builds/*/*.whl")}
    assert there == {path.name: digest(path) for path in paths}, "no wheel is lost or torn"
    # What lists them may have been written by somebody who did not know of all.
    assert verify(house, repair=True).ok
    assert verify(house).findings == ()
    listed = (house.root / "index.html").read_text()
    assert all(f"sm120a.{number}-" in listed for number in builds)


def test_a_file_system_that_has_no_locks_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = make_kernel(tmp_path / "dist")

    def none_here(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", none_here)
    with pytest.raises(
        WheelhouseError, match="the wheelhouse cannot be locked: No locks available"
    ) as caught:
        publish(*reports(wheel), Layout(tmp_path))
    assert caught.value.exit_code == 9 and "has room and locks" in str(caught.value.next)
    assert not list(tmp_path.glob("wheelhouse/builds/*"))
