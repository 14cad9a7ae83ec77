"""What a person is told while something takes long."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pytest
import rich.console

from sglwheel import console


def test_without_a_terminal_a_download_says_bytes_and_what_is_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock: Iterator[float] = iter((0.0, 5.0, 20.0, 40.0, 80.0))
    monkeypatch.setattr(console, "interactive", lambda: False)
    monkeypatch.setattr(console.time, "monotonic", lambda: next(clock))
    with console.progress("fetching torch", unit="bytes") as bar:
        for done in (50e6, 200e6, 400e6, 800e6):
            bar.update(done, 800e6, "3 files")
    assert capsys.readouterr().err.splitlines() == [
        "  fetching torch: 200.0/800.0 MB 3 files ETA 1 min 00 s",
        "  fetching torch: 400.0/800.0 MB 3 files ETA 40.0 s",
        "  fetching torch: 800.0/800.0 MB 3 files",
    ]


def test_a_terminal_that_cannot_redraw_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    terminal = rich.console.Console(file=screen, force_terminal=True, _environ={"TERM": "dumb"})
    monkeypatch.setattr(console, "_stderr", terminal)
    monkeypatch.setattr(console, "_PLAIN_SECONDS", 0.0)
    with console.live("compile") as show:
        show(console.Board("3/7", 0.4, "", (), 0.1, ""))
        assert screen.getvalue().split() == ["compile:", "3/7"]


def test_a_narrow_terminal_shows_words_and_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    terminal = rich.console.Console(file=screen, force_terminal=True, width=20, height=8)
    monkeypatch.setattr(console, "_stderr", terminal)
    board = console.Board(
        "3/7 · ETA 9 s", 0.4, "3/7 · ETA 9 s", (console.Row("a.cu", 0.5, "", ""),), 0.1, "1 GB"
    )
    with console.live("compile") as show:
        show(board)
    assert "3/7 · ETA" in screen.getvalue()
