"""A governor whose disk is full, whose reader has gone, whose socket lies deep: no build waits for ever."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

import pytest

from governorworld import LAUNCHER, Known, governing, launch, slots, wait_for
from sglwheel.build import happened
from sglwheel.build.admission import Governor
from sglwheel.build.ledger import Ledger
from sglwheel.build.lines import Lines
from sglwheel.build.recording import Recording
from sglwheel.build.units import State


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "launch.py").write_bytes(LAUNCHER.read_bytes())
    return tmp_path


def ends(children: list[subprocess.Popen[str]]) -> list[tuple[int, str]]:
    """How launchers end, none of which waits for long."""
    found = []
    try:
        for child in children:
            _, words = child.communicate(timeout=20)
            found.append((child.returncode, words))
    finally:
        for child in children:
            child.kill()
    return found


def test_a_full_disk_loses_notes_and_no_compile(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    full = Path("/dev/full")
    governor = Governor(
        Known(), slots(1), history=full, ledger=Ledger(tree / "ledger"), recording=Recording(full)
    )
    with governor:
        children = [launch(governor.address, "true", tree=tree) for _ in range(3)]
        assert [code for code, _ in ends(children)] == [0, 0, 0]
    assert capsys.readouterr().err.count("/dev/full lacks part of this build: No space left on device") == 2


def test_a_governor_that_fails_lets_its_launchers_go_and_says_why(tree: Path) -> None:
    def gone(_: State) -> None:
        raise BrokenPipeError("nobody reads the view")

    with pytest.raises(BrokenPipeError, match="nobody reads"), governing(tree, slots(1)) as governor:
        running = launch(governor.address, "sleep", "3", tree=tree)
        wait_for(lambda: governor.state.running)
        waiting = launch(governor.address, "true", tree=tree)
        governor.on_tick = gone
        found = ends([running, waiting])
    assert found[0][0] == 0, "what runs comes to its end"
    assert found[1][0] == 1 and "has ended" in found[1][1]


def test_temporary_files_may_lie_deeper_than_a_sockets_path_can_say(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tree / ("d" * 120)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    with governing(tree, slots(1)) as governor:
        assert governor.address.startswith(f"{deep}/")
        assert [code for code, _ in ends([launch(governor.address, "true", tree=tree)])] == [0]
    assert not list(deep.iterdir())


def test_a_line_behind_a_torn_one_is_read(tmp_path: Path) -> None:
    path = tmp_path / "recording.jsonl"
    path.write_text('{"event":"be')
    lines = Lines(path)
    lines.add('{"event":"begin","slots":3}\n')
    lines.close()
    assert [session.slots for session in happened.read(path).sessions] == [3]


def test_where_a_compiler_can_say_nothing_a_launcher_says_why(tree: Path) -> None:
    with governing(tree, slots(1)) as governor:
        child = launch(governor.address, "true", tree=tree)
        (tree / f".said-{child.pid}").mkdir()
        ((code, words),) = ends([child])
    assert code == 127
    assert "Traceback" not in words and "Is a directory" in words


def test_a_socket_that_somebody_deleted_is_named(tree: Path) -> None:
    with governing(tree, slots(1)) as governor:
        Path(governor.address).unlink()
        ((code, words),) = ends([launch(governor.address, "true", tree=tree)])
    assert code == 1 and f"{governor.address} is gone: build again" in words
