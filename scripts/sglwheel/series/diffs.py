"""Diffs as `git format-patch --no-renames --full-index` writes them, parsed strictly, to bytes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

_HUNK = re.compile(rb"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@(?: .*)?\n")
_INDEX = re.compile(rb"index ([0-9a-f]{7,64})\.\.([0-9a-f]{7,64})(?: (\d{6}))?\n")
_MODE = re.compile(rb"(old|new|new file|deleted file) mode (\d+)\n")
_ALLOWED_MODES = (b"100644", b"100755")
_NO_NEWLINE = b"\\ No newline at end of file\n"


@dataclass(frozen=True)
class Hunk:
    """One change; `lines` keep their sign and their newline (the last may have none)."""

    line: int
    old_start: int
    old_count: int
    new_start: int
    new_count: int
    lines: tuple[bytes, ...]

    @property
    def old(self) -> tuple[bytes, ...]:
        """What must be there."""
        return tuple(line[1:] for line in self.lines if line[:1] != b"+")

    @property
    def new(self) -> tuple[bytes, ...]:
        """What will be there instead."""
        return tuple(line[1:] for line in self.lines if line[:1] != b"-")


@dataclass(frozen=True)
class FileDiff:
    """What happens to one file: `created`, `deleted`, or neither (modified)."""

    path: str
    line: int
    created: bool
    deleted: bool
    old_blob: str
    new_blob: str
    hunks: tuple[Hunk, ...]

    @property
    def added(self) -> int:
        return sum(line[:1] == b"+" for hunk in self.hunks for line in hunk.lines)

    @property
    def removed(self) -> int:
        return sum(line[:1] == b"-" for hunk in self.hunks for line in hunk.lines)


@dataclass(frozen=True)
class Flaw:
    """What is wrong at a line of the patch file."""

    line: int
    reason: str


def parse(lines: Sequence[bytes], first: int) -> tuple[tuple[FileDiff, ...], tuple[Flaw, ...]]:
    """Parse a diff given as lines with their ends, the first of which is line `first` of its file."""
    parser = _Parser(lines, first)
    parser.run()
    return tuple(parser.diffs), tuple(sorted(parser.flaws, key=lambda flaw: flaw.line))


class _Parser:
    def __init__(self, lines: Sequence[bytes], first: int) -> None:
        self._lines = lines
        self._first = first
        self._at = 0
        self.diffs: list[FileDiff] = []
        self.flaws: list[Flaw] = []

    def run(self) -> None:
        while (line := self._peek()) is not None:
            if line.startswith(b"diff --git "):
                self._file()
            elif line == b"-- \n":
                return  # mail signature: git's version
            elif line.strip():
                self._flaw("this line belongs to no file: the patch is damaged")
                self._at += 1
                self._skip()
            else:
                self._at += 1
        if not self.diffs and not self.flaws:
            self._flaw("no diff: the patch changes nothing")

    def _file(self) -> None:
        start, before = self._first + self._at, len(self.flaws)
        header = self._take()
        path = self._path(header)
        created = deleted = False
        old_blob = new_blob = ""
        while (line := self._peek()) is not None and not line.startswith((b"@@ ", b"diff --git ", b"-- \n")):
            if line.endswith(b"\r\n"):
                self._flaw("CRLF damage: the line ends in CR LF")
                return self._skip()
            if match := _MODE.fullmatch(line):
                created |= match[1] == b"new file"
                deleted |= match[1] == b"deleted file"
                self._mode(match[1], match[2])
            elif match := _INDEX.fullmatch(line):
                old_blob, new_blob = match[1].decode(), match[2].decode()
                if match[3] is not None:
                    self._mode(b"", match[3])
            elif line.startswith((b"GIT binary patch", b"Binary files ")):
                self._flaw("a binary hunk: patches are text")
                return self._skip()
            elif line.startswith((b"rename ", b"copy ", b"similarity ", b"dissimilarity ")):
                self._flaw("a rename or copy: export it as deletion and addition (--no-renames)")
                return self._skip()
            elif line.startswith((b"--- ", b"+++ ")):
                self._side(line, path, created=created, deleted=deleted)
            else:
                self._flaw("no header that git writes: the patch is damaged")
                return self._skip()
            self._at += 1
        hunks = self._hunks()
        if path is None or len(self.flaws) > before:
            return None
        if not hunks and not (created or deleted):
            self._flaw("no hunks: the file does not change", start)
            return None
        self.diffs.append(FileDiff(path, start, created, deleted, old_blob, new_blob, hunks))
        return None

    def _path(self, header: bytes) -> str | None:
        rest = header.removeprefix(b"diff --git ").rstrip(b"\r\n").decode("utf-8", "surrogateescape")
        at = self._at - 1
        if header.endswith(b"\r\n"):
            self._flaw("CRLF damage: the line ends in CR LF", self._first + at)
            return None
        half = (len(rest) - 1) // 2
        left, right = rest[:half], rest[half + 1 :]
        if (reason := next(filter(None, map(path_flaw, rest.split(" "))), None)) is None:
            if left[:2] == "a/" and right[:2] == "b/" and left[2:] == right[2:] and len(rest) == 2 * half + 1:
                return left[2:]
            reason = "names two files, or none with a/ and b/ before it"
        self._flaw(f"{reason}: {rest}", self._first + at)
        return None

    def _side(self, line: bytes, path: str | None, *, created: bool, deleted: bool) -> None:
        old = line.startswith(b"--- ")
        name = line[4:].rstrip(b"\n").rstrip(b"\t").decode("utf-8", "surrogateescape")
        if path is None:
            return
        expected = "/dev/null" if (created if old else deleted) else f"{'a' if old else 'b'}/{path}"
        if name != expected:
            reason = path_flaw(name) if name != "/dev/null" else None
            self._flaw(f"{reason}: {name}" if reason else f"expected {expected}, found {name}")

    def _mode(self, kind: bytes, mode: bytes) -> None:
        if mode == b"120000":
            self._flaw("a symlink: patches hold plain files")
        elif mode not in _ALLOWED_MODES:
            self._flaw(f"mode {mode.decode()}: patches hold plain files")
        elif kind in (b"old", b"new"):
            self._flaw("a change of mode: patches change text only")

    def _hunks(self) -> tuple[Hunk, ...]:
        hunks: list[Hunk] = []
        while (line := self._peek()) is not None and not line.startswith(b"diff --git "):
            if line == b"-- \n" or not line.strip():
                break
            match = _HUNK.fullmatch(line)
            if match is None:
                if line.endswith(b"\r\n"):
                    self._flaw("CRLF damage: the line ends in CR LF")
                elif hunks and line[:1] in (b" ", b"+", b"-", b"\\"):
                    self._flaw(f"wrong counts: the hunk at line {hunks[-1].line} has more lines than it says")
                else:
                    self._flaw("this line belongs to no hunk: the patch is damaged")
                self._skip()
                break
            hunk = self._hunk(match)
            if hunk is None:
                self._skip()
                break
            if hunks and hunk.old_start < hunks[-1].old_start + hunks[-1].old_count:
                self._flaw("the hunk overlaps the one before it", hunk.line)
            hunks.append(hunk)
        return tuple(hunks)

    def _hunk(self, match: re.Match[bytes]) -> Hunk | None:
        start = self._first + self._at
        self._at += 1
        old_start, new_start = int(match[1]), int(match[3])
        old_count, new_count = (int(count) if count is not None else 1 for count in (match[2], match[4]))
        old, new = old_count, new_count
        lines: list[bytes] = []
        while old > 0 or new > 0:
            line = self._peek()
            sign = line[:1] if line is not None else b""
            if line is None or sign not in (b" ", b"+", b"-", b"\\"):
                if line in (b"\n", b"\r\n"):
                    self._flaw("whitespace damage: an empty context line lost its space")
                elif line is None:
                    self._flaw(f"truncated hunk: {max(old, new)} more lines announced", start)
                else:
                    self._flaw(f"wrong counts: {max(old, new)} more lines announced", start)
                return None
            if sign == b"\\":
                self._strip_newline(lines)
            else:
                old -= sign in (b" ", b"-")
                new -= sign in (b" ", b"+")
                if old < 0 or new < 0:
                    self._flaw("wrong counts: more lines than announced", start)
                    return None
                if not line.endswith(b"\n"):
                    self._flaw("truncated: the last line has no end")
                    return None
                lines.append(line)
            self._at += 1
        if self._peek() == _NO_NEWLINE:
            self._strip_newline(lines)
            self._at += 1
        if all(line[:1] == b" " for line in lines):
            self._flaw("the hunk changes nothing", start)
        return Hunk(start, old_start, old_count, new_start, new_count, tuple(lines))

    @staticmethod
    def _strip_newline(lines: list[bytes]) -> None:
        if lines:
            lines[-1] = lines[-1].removesuffix(b"\n")

    def _peek(self) -> bytes | None:
        return self._lines[self._at] if self._at < len(self._lines) else None

    def _take(self) -> bytes:
        self._at += 1
        return self._lines[self._at - 1]

    def _skip(self) -> None:
        """Go on at the next file, so that one flaw does not hide those after it."""
        while (line := self._peek()) is not None and not line.startswith(b"diff --git "):
            self._at += 1

    def _flaw(self, reason: str, line: int | None = None) -> None:
        self.flaws.append(Flaw(self._first + self._at if line is None else line, reason))


def path_flaw(name: str) -> str | None:
    """Why a path in a diff is refused: it leaves the tree, or git would have to quote it."""
    if name.startswith('"') or "\\" in name or any(ord(sign) < 32 for sign in name):
        return "a path that needs quoting"
    bare = name[2:] if name[:2] in ("a/", "b/") else name
    if bare.startswith("/"):
        return "an absolute path"
    parts = PurePosixPath(bare).parts
    if ".." in parts:
        return "a path that leaves the tree"
    if any(part.lower() == ".git" for part in parts):
        return "a path inside git's own directory"
    return None
