"""The only module that prints: narration to stderr, machine output to stdout."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import rich.console
import rich.live
import rich.progress
import rich.progress_bar
import rich.table
import rich.text

from sglwheel.errors import SglwheelError

_PLAIN_SECONDS = 15.0  # between lines where nobody sees a bar
_BAR = 24  # columns
_NARROW = 60  # columns under which a bar leaves no room for what it means

_emitted = 0
_stderr = rich.console.Console(stderr=True, highlight=False, soft_wrap=True)


def interactive() -> bool:
    """Whether narration goes to a terminal that can redraw a line."""
    return _stderr.is_terminal and not _stderr.is_dumb_terminal


def say(text: str = "", *, style: str | None = None) -> None:
    """Print one narration line to stderr."""
    _stderr.print(text, style=style, markup=False)


def detail(text: str) -> None:
    """Print a line that belongs to the step above."""
    _stderr.print(f"  {text}", style="dim", markup=False)


def warn(text: str) -> None:
    """Print a warning that a user should read, and carry on."""
    _stderr.print(f"warning: {text}", style="yellow", markup=False)


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """`1 patch`, `6 patches`: the number with its noun; `plural` where it is not noun + s."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def emit(text: str) -> None:
    """Print machine output or a requested report to stdout."""
    global _emitted
    _emitted += 1
    sys.stdout.write(text if text.endswith("\n") else text + "\n")
    sys.stdout.flush()


def emitted() -> int:
    """How often something was printed to stdout."""
    return _emitted


def emit_json(value: Any) -> None:
    """Print a value as JSON to stdout."""
    emit(json.dumps(value, indent=2, sort_keys=True, default=str))


def hang_up() -> None:
    """Stop talking: whoever read our output has gone, and the interpreter's last flush would fail."""
    sys.stderr.close()


@contextmanager
def step(title: str) -> Iterator[None]:
    """Narrate one stage and how long it took."""
    _stderr.print(f"▸ {visible(title)}", style="bold", markup=False)
    started = time.monotonic()
    yield
    elapsed = time.monotonic() - started
    if elapsed >= 1:
        detail(f"{format_seconds(elapsed)}")


@contextmanager
def progress(description: str, *, unit: str = "steps") -> Iterator[Progress]:
    """Show progress and how long it will go on: a bar on a terminal, a plain line every 15 s elsewhere."""
    if not interactive():
        yield Progress(description, None, unit)
        return
    columns = [
        rich.progress.TextColumn("  {task.description}"),
        rich.progress.BarColumn(),
        rich.progress.DownloadColumn() if unit == "bytes" else rich.progress.MofNCompleteColumn(),
        rich.progress.TextColumn("{task.fields[note]}"),
        rich.progress.TimeRemainingColumn(elapsed_when_finished=True),
    ]
    with rich.progress.Progress(*columns, console=_stderr, transient=True) as bar:
        yield Progress(description, bar, unit)


class Progress:
    """A running count with an optional note; what is left takes as long as what was done did."""

    def __init__(self, description: str, bar: rich.progress.Progress | None, unit: str) -> None:
        self._description = description
        self._bar = bar
        self._unit = unit
        self._said = self._started = time.monotonic()
        self._task = bar.add_task(description, total=None, note="") if bar is not None else None

    def update(self, done: float, total: float | None, note: str = "") -> None:
        """Set the count; `total` None means unknown."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done, total=total, note=note)
            return
        now = time.monotonic()
        if now - self._said >= _PLAIN_SECONDS or (total is not None and done >= total):
            self._said = now
            amount = (
                f"{done / 1e6:.1f}" + (f"/{total / 1e6:.1f}" if total else "") + " MB"
                if self._unit == "bytes"
                else f"{done:.0f}" + (f"/{total:.0f}" if total else "")
            )
            words = [amount, note, self._left(done, total, now)]
            detail(f"{self._description}: {' '.join(word for word in words if word)}")

    def _left(self, done: float, total: float | None, now: float) -> str:
        if not total or not 0 < done < total:
            return ""
        return f"ETA {format_seconds((now - self._started) / done * (total - done))}"


@dataclass(frozen=True)
class Row:
    """One thing that is going on: what, how far (0 to 1, more is overdue), and what to say about it."""

    name: str
    share: float
    note: str
    amount: str


@dataclass(frozen=True)
class Board:
    """A live view: the whole, what each slot does, a gauge, and remarks; `line` says it in one line."""

    line: str
    share: float
    note: str
    rows: tuple[Row, ...]
    gauge: float
    gauge_note: str
    remarks: tuple[str, ...] = ()


@contextmanager
def live(description: str) -> Iterator[Callable[[Board], None]]:
    """Show boards as they come: redrawn in place on a terminal, a plain line every 15 s elsewhere."""
    if not interactive():
        said, last = time.monotonic(), ""

        def line(board: Board) -> None:
            nonlocal said, last
            now = time.monotonic()
            if board.line != last and now - said >= _PLAIN_SECONDS:
                said, last = now, board.line
                detail(f"{description}: {board.line}")

        yield line
        return
    with rich.live.Live(console=_stderr, transient=True, refresh_per_second=2) as view:
        yield lambda board: view.update(_drawn(description, board))


def _drawn(description: str, board: Board) -> rich.console.Group:
    """A board for a terminal, never wider than it and never higher."""
    if _stderr.size.width < _NARROW:
        return rich.console.Group(rich.text.Text(f"  {description}: {board.line}", overflow="fold"))
    table = rich.table.Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True, overflow="ellipsis", min_width=20, max_width=44)
    table.add_column(width=_BAR)
    table.add_column(no_wrap=True, overflow="ellipsis")
    table.add_column(no_wrap=True, justify="right")

    def add(row: Row, style: str, words: str = "") -> None:
        bar = rich.progress_bar.ProgressBar(
            total=1.0, completed=min(row.share, 1.0), width=_BAR, complete_style=style, finished_style=style
        )
        name, note, amount = (rich.text.Text(text, words) for text in (f"  {row.name}", row.note, row.amount))
        table.add_row(name, bar, note, amount)

    add(Row(description, board.share, board.note, ""), "green")
    shown = board.rows[: max(1, _stderr.size.height - 6)]
    for row in shown:
        add(
            Row(f"  {row.name}", row.share, row.note, row.amount),
            "yellow" if row.share > 1 else "cyan",
            "dim",
        )
    add(Row("memory", board.gauge, board.gauge_note, ""), "magenta" if board.gauge < 0.9 else "red")
    hidden = len(board.rows) - len(shown)
    remarks = [*([f"{hidden} more compilers"] if hidden else []), *board.remarks]
    return rich.console.Group(
        table, *([rich.text.Text(f"  {' · '.join(remarks)}", "dim")] if remarks else [])
    )


def report(error: SglwheelError) -> None:
    """Print an error the way users see it: what, where, next, log."""
    _stderr.print(f"error: {visible(error.what)}", style="bold red", markup=False)
    fields = dict(error.where)
    if error.next:
        fields["next"] = error.next
    if error.log:
        fields["log"] = str(error.log)
    width = max((len(key) for key in fields), default=0)
    for key, value in fields.items():
        first, *rest = [visible(line) for line in str(value).split("\n")]
        _stderr.print(f"  {key:<{width}}  {first}", markup=False)
        for line in rest:
            _stderr.print(f"  {'':<{width}}  {line}", markup=False)


def visible(text: str) -> str:
    """`text` with whatever a terminal would obey written out: not all names were chosen with care."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def format_seconds(seconds: float) -> str:
    """`75.2` → `1 min 15 s`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def format_bytes(count: float) -> str:
    """`8450000` → `8.5 MB`, in powers of ten."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
