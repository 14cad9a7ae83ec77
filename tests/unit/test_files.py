"""Old or new, never half."""

from __future__ import annotations

import multiprocessing
import multiprocessing.synchronize
from pathlib import Path

import pytest

from sglwheel import files
from sglwheel.errors import BuildError, UsageError


def test_write_atomic_replaces_and_leaves_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "a/file"
    files.write_atomic(target, "one")
    files.write_atomic(target, b"two")
    assert target.read_text() == "two"
    assert [path.name for path in target.parent.iterdir()] == ["file"]


def test_a_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "file"
    files.write_atomic(target, "old")

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        files.write_atomic(target, "new")
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_directory_atomic_appears_whole_or_not(tmp_path: Path) -> None:
    target = tmp_path / "out"
    with pytest.raises(RuntimeError), files.directory_atomic(target) as temporary:
        (temporary / "x").write_text("x")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
    with files.directory_atomic(target) as temporary:
        (temporary / "x").write_text("x")
    with files.directory_atomic(target) as temporary:
        (temporary / "x").write_text("a second writer loses")
    assert (target / "x").read_text() == "x"


def _hold(
    path: Path, ready: multiprocessing.synchronize.Event, done: multiprocessing.synchronize.Event
) -> None:
    with files.locked(path, failure=BuildError, what="tree"):
        ready.set()
        done.wait(30)


def test_a_lock_names_its_holder_and_dies_with_it(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    ready, done = context.Event(), context.Event()
    child = context.Process(target=_hold, args=(tmp_path / "lock", ready, done))
    child.start()
    try:
        assert ready.wait(120)
        with (
            pytest.raises(BuildError, match=f"tree is in use by process {child.pid}"),
            files.locked(tmp_path / "lock", failure=BuildError, what="tree", timeout=0.1),
        ):
            pass
    finally:
        child.kill()
        child.join()
    with files.locked(tmp_path / "lock", failure=BuildError, what="tree", timeout=5):
        pass


def test_layout_is_found_from_below_and_missing_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SGLWHEEL_ROOT", raising=False)
    (tmp_path / "here/recipes/deep").mkdir(parents=True)
    (tmp_path / "here/patches").mkdir()
    assert files.Layout.find(tmp_path / "here/recipes/deep").root == tmp_path / "here"
    with pytest.raises(UsageError, match="no sglwheel checkout"):
        files.Layout.find(tmp_path)
