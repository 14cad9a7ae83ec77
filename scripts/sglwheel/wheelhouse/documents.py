"""Derived files with one line for each release: written whole, or changed in the lines that changed.

Publishing the ten-thousandth wheel must not cost ten thousand renderings, so a document that is known to be
ours is spliced as text. A spliced document equals the one written whole; tests and `verify` compare them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sglwheel import files
from sglwheel.wheelhouse.record import Record

_BUILD = re.compile(r"builds/([^/\"]+)/")


def build_key(line: str) -> str:
    """The release that a line with a link below `builds/` speaks of."""
    match = _BUILD.search(line)
    return match[1] if match else ""


@dataclass(frozen=True)
class Document:
    """What stands around the lines, and how one is written."""

    path: Path
    # None for a release that the document does not show.
    line: Callable[[Record], str | None]
    # Before `opening` and after `closing`; may depend on the lines (PEP 700's `versions`).
    frame: Callable[[list[str]], tuple[str, str]]
    opening: str = "<!--releases-->"
    closing: str = "<!--/releases-->"
    separator: str = "\n"
    key: Callable[[str], str] = build_key
    newest_first: bool = False
    holds: Callable[[Record], bool] = lambda _: True

    def whole(self, records: Iterable[Record]) -> str:
        """The document of all records, oldest first."""
        lines = [line for record in records if (line := self.line(record)) is not None]
        return self._join(lines[::-1] if self.newest_first else lines)

    def spliced(self, text: str, changed: Iterable[Record]) -> str | None:
        """The document after these releases, oldest first, came or changed; None if it may not be ours."""
        _, opened, rest = text.partition(f"{self.opening}\n")
        body, closed, _ = rest.rpartition(f"\n{self.closing}")
        if not opened or not closed:
            return None
        before = [line for line in body.split(self.separator) if line]
        lines = {self.key(line): line for line in before}
        if len(lines) != len(before):
            return None
        fresh: list[str] = []
        for record in changed:
            line = self.line(record)
            if line is None:
                lines.pop(record.id, None)
            elif record.id in lines:
                lines[record.id] = line
            else:
                fresh.append(line)
        known = list(lines.values())
        return self._join([*fresh[::-1], *known] if self.newest_first else [*known, *fresh])

    def shown(self, text: str) -> dict[str, str]:
        """For each release that has a line in `text`, that line."""
        body = text.partition(f"{self.opening}\n")[2].rpartition(f"\n{self.closing}")[0]
        return {self.key(line): line for line in body.split(self.separator) if line}

    def _join(self, lines: list[str]) -> str:
        head, tail = self.frame(lines)
        return f"{head}{self.opening}\n{self.separator.join(lines)}\n{self.closing}{tail}"


def write_changed(path: Path, text: str | bytes) -> None:
    """Write only what changed: an untouched file keeps its time, and with it caches of clients and mirrors.

    `placing` does the same for many.
    """
    data = text.encode() if isinstance(text, str) else text
    with suppress(OSError):
        if files.read(path) == data:
            return
    files.write_atomic(path, data)
