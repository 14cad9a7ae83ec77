"""Drift as people read it: lines and a picture for the terminal, and a page that needs nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jinja2

from sglwheel.drift import Drift
from sglwheel.drift.revisions import Commit

SIGNS = {
    "applied": "■",
    "applied-3way": "▨",
    "already-upstream": "↑",
    "not-needed": "·",
    "obsolete": "○",
    "conflict": "✗",
}
_COLOURS = {
    "applied": "#2e7d32",
    "applied-3way": "#9ccc65",
    "already-upstream": "#1565c0",
    "not-needed": "#cfd8dc",
    "obsolete": "#8d6e63",
    "conflict": "#c62828",
}


def lines(drift: Drift, *, width: int = 100) -> Iterator[str]:
    """The report: one line per change of state, what else to notice, and the picture."""
    found = drift.history
    start, end = found.steps[0].commit, found.end
    yield (
        f"{drift.recipe}: series {drift.series.name} from {start.id} ({start.date:%Y-%m-%d}) "
        f"to {end.id} ({end.date:%Y-%m-%d}): {len(found.line) - 1} commits, "
        f"{len(found.steps) - 1} touch patched files or what declares the build"
    )
    yield ""
    size = max((len(patch.name) for patch in drift.series.patches), default=0)
    for change in drift.changes:
        if change.before is not None:
            about = f"{change.commit.id.short} {change.commit.date:%Y-%m-%d}  {change.patch:<{size}}"
            yield f"{about}  {f'{change.before} → {change.after}':<31}  {change.commit.subject}"
    if all(change.before is None for change in drift.changes):
        yield "no patch changed its state"
    if drift.notices:
        yield ""
        yield "whether or not it applies:"
        for item in drift.notices:
            yield f"{item.commit.id.short} {item.commit.date:%Y-%m-%d}  {item.notice.what}: {item.notice.why}"
    yield ""
    yield from picture(drift, width=width)
    yield ""
    yield f"at {end.id.short}:"
    for name, outcome in drift.outcomes[-1].items():
        yield f"  {SIGNS[outcome.state]} {name:<{size}}  {outcome.state:<16}  {outcome.detail}".rstrip()


def picture(drift: Drift, *, width: int = 100) -> Iterator[str]:
    """Patches by commits, one cell for each that touches a patched file, in rows that fit `width`."""
    size = max((len(patch.name) for patch in drift.series.patches), default=0)
    columns = max(width - size - 3, 10)
    steps = drift.history.steps
    for begin in range(0, len(steps), columns):
        part = range(begin, min(begin + columns, len(steps)))
        yield f"{'':{size}}  {_months([steps[at].commit for at in part])}".rstrip()
        for patch in drift.series.patches:
            cells = "".join(SIGNS[drift.outcomes[at][patch.name].state] for at in part)
            yield f"{patch.name:<{size}}  {cells}"
    used = {outcome.state for row in drift.outcomes for outcome in row.values()}
    yield "  ".join(f"{sign} {state}" for state, sign in SIGNS.items() if state in used)


def page(drift: Drift) -> str:
    """One HTML file with the picture as SVG, and every change below it; it loads nothing."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("sglwheel", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template("drift.html").render(svg=_drawing(drift), drift=drift, describe=_commit)


def _drawing(drift: Drift) -> dict[str, Any]:
    """Coordinates of everything that the page draws."""
    cell, row, left, top = 9, 22, 170, 34
    steps = drift.history.steps
    months: list[tuple[int, str]] = []
    for at, step in enumerate(steps):
        label = f"{step.commit.date:%Y-%m}"
        if not months or (months[-1][1] != label and at * cell + left - months[-1][0] > 46):
            months.append((left + at * cell, label))
    cells = []
    for line, patch in enumerate(drift.series.patches):
        for at, step in enumerate(steps):
            outcome = drift.outcomes[at][patch.name]
            tip = f"{patch.name}: {outcome.state}. {outcome.detail}\n{_commit(step.commit)}"
            cells.append((left + at * cell, top + line * row, _COLOURS[outcome.state], tip))
    names = [(top + line * row + 12, patch.name) for line, patch in enumerate(drift.series.patches)]
    return {
        "width": left + len(steps) * cell + 10,
        "height": top + len(names) * row + 8,
        "cell": cell - 1,
        "row": row - 6,
        "months": months,
        "cells": cells,
        "names": names,
        "legend": list(_COLOURS.items()),
    }


def _months(commits: list[Commit]) -> str:
    """Year and month above the first column of each, where there is room."""
    text = ""
    last = ""
    for at, commit in enumerate(commits):
        label = f"{commit.date:%Y-%m}"
        if label != last and len(text) <= at - (1 if text else 0):
            text = text.ljust(at) + label
        last = label
    return text


def _commit(commit: Commit) -> str:
    number = commit.pull_request
    shown = "" if number is None or f"#{number}" in commit.subject else f" (#{number})"
    return f"{commit.id.short} {commit.date:%Y-%m-%d} {commit.subject}{shown}"
