"""Apply a diff in memory exactly as `git apply` does: offsets are searched for, fuzz is not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sglwheel.series.diffs import FileDiff, Hunk


class MissError(Exception):
    """The diff does not fit; `line` is where, in the file as it was expected."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(reason)
        self.line = line
        self.reason = reason


def apply(diff: FileDiff, content: bytes | None) -> bytes | None:
    """`content` with the diff applied; None stands for a file that is not there. Raises MissError."""
    if diff.created:
        if content is not None:
            raise MissError(1, "exists already")
        return b"".join(line for hunk in diff.hunks for line in hunk.new)
    if content is None:
        raise MissError(1, "does not exist")
    lines = split(content)
    # Lines that a hunk has written are not there for another one to match.
    written = bytearray(len(lines))
    for hunk in diff.hunks:
        at = _find(hunk, lines, written)
        old, new = hunk.old, hunk.new
        lines[at : at + len(old)] = new
        written[at : at + len(old)] = b"\1" * len(new)
    result = b"".join(lines)
    if diff.deleted:
        if result:
            raise MissError(1, "is not empty after the deletion")
        return None
    return result


def split(content: bytes) -> list[bytes]:
    """Lines with their ends; only LF ends one."""
    lines = content.split(b"\n")
    last = lines.pop()
    result = [line + b"\n" for line in lines]
    if last:
        result.append(last)
    return result


def _find(hunk: Hunk, lines: list[bytes], written: bytearray) -> int:
    """Where the hunk fits: the line that it names, then alternately further down and up."""
    old = list(hunk.old)
    # As git: what starts at line 1 must fit at the beginning, and what ends without context at the end.
    leading = hunk.old_start <= 1
    trailing = hunk.lines[-1][:1] != b" "
    if trailing and (not leading or len(old) == len(lines)):
        candidates: Iterable[int] = (len(lines) - len(old),)
    elif trailing:
        candidates = ()
    elif leading:
        candidates = (0,)
    else:
        candidates = _around(min(max(hunk.new_start - 1, 0), len(lines)), len(lines))
    for at in candidates:
        end = at + len(old)
        if at >= 0 and lines[at:end] == old and not any(written[at:end]):
            return at
    raise MissError(hunk.old_start, "does not fit")


def _around(start: int, end: int) -> Iterator[int]:
    yield start
    for distance in range(1, max(start, end - start) + 1):
        if start + distance <= end:
            yield start + distance
        if start - distance >= 0:
            yield start - distance
