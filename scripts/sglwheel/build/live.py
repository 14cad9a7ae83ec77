"""What a person sees while it compiles."""

from __future__ import annotations

import time
from collections.abc import Callable

from sglwheel.build.forecast import Forecast
from sglwheel.build.progress import Transcript, source_name
from sglwheel.build.units import State
from sglwheel.console import Board, Row, format_bytes, format_seconds


class Live:
    """Keep the view current from the governor's ticks, also while no step ends for minutes."""

    def __init__(self, show: Callable[[Board], None], said: Transcript, forecast: Forecast) -> None:
        self._show, self._said, self._forecast = show, said, forecast

    def __call__(self, state: State) -> None:
        self._show(board(state, self._said, self._forecast))


def board(state: State, said: Transcript, forecast: Forecast) -> Board:
    """The view of one moment. The bar counts expected seconds: one unit takes a hundred times another's."""
    now = time.monotonic()
    left = forecast.left(state)
    rows = []
    partly = 0.0
    for unit, since, cost, resident in sorted(state.running, key=lambda item: item[1]):
        expected, spent = cost.seconds * forecast.pace, now - since
        share = spent / expected if expected > 0 else 1.0
        partly += min(share, 1.0) * cost.seconds
        note = f"{format_seconds(round(spent))} of {format_seconds(round(expected))}"
        amount = f"{format_bytes(resident)} of {format_bytes(cost.peak)}"
        rows.append(Row(source_name(unit), share, note, amount))
    total = forecast.total_seconds
    finished = bool(said.total) and said.done >= said.total
    share = 1.0 if finished else min((forecast.done_seconds + partly) / total, 0.999) if total else 0.0
    steps = f"{said.done}/{said.total}" if said.total else f"{said.done}"
    eta = f"ETA {format_seconds(round(left))}" if left >= 1 else "finishing"
    remarks = _remarks(state)
    memory = f"{format_bytes(state.resident)} of {format_bytes(max(state.room, 0))}"
    parts = [steps, eta]
    if rows:
        parts.append(f"{rows[0].name} {rows[0].note}" + (f" +{len(rows) - 1}" if len(rows) > 1 else ""))
    return Board(
        line=" · ".join([*parts, memory, *remarks]),
        share=share,
        note=" · ".join([steps, eta]),
        rows=tuple(rows),
        gauge=state.resident / state.room if state.room > 0 else 1.0,
        gauge_note=memory,
        remarks=tuple(remarks),
    )


def _remarks(state: State) -> list[str]:
    """What is only worth a word when there is any of it."""
    found = []
    hits = sum(1 for done in state.finished if done.cached)
    if hits:
        found.append(f"{hits} cache hits")
    requeued = sum(1 for _, why in state.again if why == "requeued")
    if requeued:
        found.append(f"{requeued} started again for want of memory")
    killed = len(state.again) - requeued
    if killed:
        found.append(f"{killed} killed from outside")
    if state.builds:
        found.append(f"{state.builds} other build{'s' if state.builds > 1 else ''} on this host")
    if not state.running and state.waiting:
        found.append("waiting for memory")
    return found
