"""What a person sees while it compiles, on a terminal and in a log."""

from __future__ import annotations

import io
import time

import pytest
import rich.console

from sglwheel import console
from sglwheel.build.costs import Costs
from sglwheel.build.forecast import Forecast
from sglwheel.build.live import board
from sglwheel.build.progress import Transcript
from sglwheel.build.units import Finished, State
from sglwheel.console import Board

NAMES = ("fp8_gemm_kernel", "cutlass_mla_kernel", "rope", "gguf_kernel")
UNITS = [f"CMakeFiles/x.dir/csrc/{name}.cu.o" for name in NAMES]


@pytest.fixture
def shown() -> Board:
    costs, said, state = Costs(), Transcript(), State()
    said.done, said.total = 2, 7
    fast = costs.expect(UNITS[3])
    state.finished.append(Finished(UNITS[3], 0, fast.seconds, fast.seconds, fast.peak))
    state.finished.append(Finished("CMakeFiles/x.dir/csrc/other.cu.o", 0, 0.1, 0.1, 1, cached="local"))
    now = time.monotonic()
    state.running = (
        (UNITS[0], now - 100, costs.expect(UNITS[0]), 9_000_000_000),
        (UNITS[1], now - 1000, costs.expect(UNITS[1]), 8_000_000_000),
    )
    state.again.append((UNITS[2], "requeued"))
    state.resident, state.room, state.builds = 17_000_000_000, 20_000_000_000, 1
    return board(state, said, Forecast(UNITS, costs, slots=2))


def test_one_line_for_a_log(shown: Board) -> None:
    parts = shown.line.split(" · ")
    assert parts[0] == "2/7" and parts[1].startswith("ETA ")
    assert parts[2].startswith("cutlass_mla_kernel.cu 16 min 40 s of ") and parts[2].endswith(" +1")
    assert parts[3:] == [
        "17.0 GB of 20.0 GB",
        "1 cache hits",
        "1 started again for want of memory",
        "1 other build on this host",
    ]
    assert 0 < shown.share < 1


def test_a_terminal_shows_every_slot_and_stays_inside_its_width(
    shown: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    for width in (60, 100, 200):
        out = io.StringIO()
        terminal = rich.console.Console(file=out, width=width, height=24)
        monkeypatch.setattr(console, "_stderr", terminal)
        terminal.print(console._drawn("compile", shown))
        lines = out.getvalue().splitlines()
        assert all(len(line) <= width for line in lines)
        assert sum("_kernel.cu" in line or "…" in line for line in lines) >= 2
    assert "9.0 GB of 16.3 GB" in out.getvalue()
    assert any(line.startswith("  memory") and "17.0 GB of 20.0 GB" in line for line in lines)


def test_a_low_terminal_names_how_many_it_hides(shown: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    terminal = rich.console.Console(file=out, width=100, height=7)
    monkeypatch.setattr(console, "_stderr", terminal)
    terminal.print(console._drawn("compile", shown))
    assert "1 more compilers" in out.getvalue()


def test_a_unit_that_is_overdue_slows_the_forecast() -> None:
    costs = Costs()
    state = State(room=1 << 60)
    late = costs.expect(UNITS[2])
    fresh = Forecast(UNITS, costs, slots=2).left(state)
    state.running = ((UNITS[2], time.monotonic() - 20 * late.seconds, late, 1),)
    assert Forecast(UNITS, costs, slots=2).left(state) > 1.5 * fresh
