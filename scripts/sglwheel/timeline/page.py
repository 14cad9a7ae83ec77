"""A timeline as one HTML file that loads nothing: slots over time, memory below, and where the CPU went."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jinja2

from sglwheel.build.happened import Compile, History, short_name
from sglwheel.console import format_bytes, format_seconds
from sglwheel.timeline import Timeline

_WIDTH = 1160.0  # of the time axis, in pixels
_LEFT = 8.0
_LANES, _GAP = (22.0, 40.0), 4.0  # least and most height of a slot
_MEMORY = 130.0  # height of the memory's picture
_COLOURS = 8  # that the style sheet has
_CHARACTER = 6.7  # pixels of one at the labels' size
_AGAIN = {"requeued": "ended and queued again", "killed": "killed from outside", "failed": "failed"}
_TICKS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400)


@dataclass(frozen=True)
class Bar:
    """One compile in the picture."""

    x: float
    y: float
    width: float
    style: str
    label: str
    tip: str


def render(timeline: Timeline) -> str:
    """The page."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("sglwheel", "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )
    return environment.get_template("timeline.html").render(_context(timeline))


def _context(timeline: Timeline) -> dict[str, Any]:
    history = timeline.history
    groups = _groups(history.compiles)
    span = max(
        [session.end for session in history.sessions] + [item.end for item in history.compiles] + [1.0]
    )
    scale = _WIDTH / span
    lanes = max(history.lanes(), default=0) + 1
    lane = min(max(160.0 / lanes, _LANES[0]), _LANES[1])
    return {
        "timeline": timeline,
        "history": history,
        "tiles": list(_tiles(history)),
        "groups": [(name, f"c{index}", format_seconds(cpu)) for index, (name, cpu) in enumerate(groups)],
        "bars": list(_bars(history, scale, lane, [name for name, _ in groups])),
        "lanes": lanes,
        "left": _LEFT,
        "width": _WIDTH,
        "lane": lane,
        "gap": _GAP,
        "slots_height": lanes * (lane + _GAP),
        "memory_height": _MEMORY,
        "ticks": list(_ticks(span, scale)),
        "resumed": [(_LEFT + s.start * scale, s.date) for s in history.sessions[1:]],
        "memory": _memory(history, scale),
        "slowest": list(_slowest(history)),
    }


def _tiles(history: History) -> Iterator[tuple[str, str]]:
    done = sum(1 for item in history.compiles if item.outcome == "done" and not item.cached)
    slots = max((session.slots for session in history.sessions), default=0)
    yield "wall", format_seconds(history.seconds)
    yield "CPU", format_seconds(history.cpu)
    if slots and history.seconds:
        busy = sum(item.seconds for item in history.compiles) / (slots * history.seconds)
        yield "slots", f"{slots}, {min(busy, 1.0):.0%} busy"
    limit = max((session.memory for session in history.sessions), default=0)
    yield "peak memory", format_bytes(history.peak) + (f" of {format_bytes(limit)}" if limit else "")
    yield "units", str(done)
    yield "cache hits", str(history.hits)
    yield "compilers killed", str(history.count("killed"))
    yield "started again", str(history.count("requeued"))


def _groups(compiles: Sequence[Compile]) -> list[tuple[str, float]]:
    """Folders of sources by CPU, the largest first; the last one is all the rest."""
    cpu: defaultdict[str, float] = defaultdict(float)
    for item in compiles:
        cpu[_group(item.unit)] += item.cpu
    ordered = sorted(cpu.items(), key=lambda pair: (-pair[1], pair[0]))
    if len(ordered) <= _COLOURS:
        return ordered
    rest = ordered[_COLOURS - 1 :]
    return [*ordered[: _COLOURS - 1], ("others", sum(value for _, value in rest))]


def _group(unit: str) -> str:
    return short_name(unit).rpartition("/")[0].removeprefix("csrc/") or "."


def _bars(history: History, scale: float, height: float, names: Sequence[str]) -> Iterator[Bar]:
    for item, lane in zip(history.compiles, history.lanes(), strict=True):
        group = _group(item.unit)
        colour = names.index(group) if group in names else len(names) - 1
        name = short_name(item.unit).rpartition("/")[2]
        width = max(item.seconds * scale - 1.0, 1.0)
        fits = len(name) * _CHARACTER + 10 <= width
        short = name.rpartition(".")[0]
        room = int((width - 10) / _CHARACTER)
        label = name if fits else (short[: room - 1] + "…" if room >= 6 else "")
        tip = [
            short_name(item.unit),
            format_seconds(item.seconds),
            f"{format_seconds(item.cpu)} of CPU",
            format_bytes(item.peak),
            *([_AGAIN[item.outcome]] if item.outcome in _AGAIN else []),
            *(["from the cache"] if item.cached else []),
        ]
        kind = f"c{colour}" if item.outcome == "done" else f"c{colour} {item.outcome}"
        yield Bar(_LEFT + item.start * scale, lane * (height + _GAP), width, kind, label, " · ".join(tip))


def _ticks(span: float, scale: float) -> Iterator[tuple[float, str]]:
    every = next((tick for tick in _TICKS if span / tick <= 12), math.ceil(span / 12))
    for number in range(int(span // every) + 1):
        at = number * every
        text = f"{at // 3600}:{at % 3600 // 60:02d} h" if span >= 7200 else f"{at // 60}:{at % 60:02d}"
        yield _LEFT + at * scale, text


def _memory(history: History, scale: float) -> dict[str, Any] | None:
    """The area under the samples, and the limit as a line; None when nothing was sampled."""
    if not history.samples:
        return None
    limit = max((session.memory for session in history.sessions), default=0)
    top = max(history.peak, limit, 1) * 1.05

    def y(amount: float) -> float:
        return _MEMORY * (1 - amount / top)

    points = [(_LEFT + at * scale, y(amount)) for at, amount in history.samples]
    line = " ".join(f"{x:.1f},{height:.1f}" for x, height in points)
    return {
        "area": f"{points[0][0]:.1f},{_MEMORY:.1f} {line} {points[-1][0]:.1f},{_MEMORY:.1f}",
        "line": line,
        "limit": (y(limit), f"limit {format_bytes(limit)}") if limit else None,
        "peak": (y(history.peak), format_bytes(history.peak)),
    }


def _slowest(history: History) -> Iterator[tuple[str, str, str, float]]:
    slowest = history.slowest()
    most = max((item.cpu for item in slowest), default=1.0)
    for item in slowest:
        share = 100 * item.cpu / most if most else 0.0
        yield short_name(item.unit), format_seconds(item.cpu), format_bytes(item.peak), share
