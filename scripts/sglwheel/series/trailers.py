"""What a patch's trailers say: where upstream stands, when it is needed, what it proves."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from typing import Any, Literal
from urllib.parse import urlsplit

from sglwheel.series import diffs, predicateparser
from sglwheel.series.predicates import Always, Predicate
from sglwheel.types import CommitId

ProofKind = Literal[
    "target-absent", "cache", "gencodes", "configures", "imports", "file-contains", "file-lacks"
]
_TRAILER = re.compile(r"([A-Za-z][A-Za-z0-9-]*):(?:\s+(.*))?")
_OURS = ("Upstream-Status", "Needed-When", "Proves")
_KNOWN = (*_OURS, "Signed-off-by", "Link", "Co-authored-by")
_STATUSES = (
    "Pending",
    "Submitted <url>",
    "Backport <commit>",
    "Denied <url>",
    "Inactive-Upstream <date>",
    "Inappropriate <why>",
)
_PROOFS = (
    "target-absent <target>",
    "cache <NAME>=<value>",
    "gencodes == recipe",
    "configures",
    "imports <module>",
    "file <path> contains <text>",
    "file <path> lacks <text>",
)


@dataclass(frozen=True)
class Problem:
    """Something wrong at `where` (file:line)."""

    where: str
    reason: str


@dataclass(frozen=True)
class Status:
    """Where upstream stands: `word` is one of the six, `argument` its url, commit, date or reason."""

    word: str
    argument: str = ""

    def __str__(self) -> str:
        return f"{self.word} {self.argument}".rstrip()

    @property
    def commit(self) -> str | None:
        """The upstream commit from which on the patch has no use: what it backports, or its reason names."""
        found = re.search(r"\b[0-9a-f]{40}\b", self.argument)
        return found[0] if found and self.word in ("Backport", "Inappropriate") else None


@dataclass(frozen=True)
class Proof:
    """What is false before a patch and true after it. `path` is set for the two kinds about a file."""

    kind: ProofKind
    argument: str = ""
    path: str = ""

    def __str__(self) -> str:
        if self.kind in ("file-contains", "file-lacks"):
            return f"file {self.path} {self.kind.removeprefix('file-')} {self.argument}"
        return f"{self.kind} {self.argument}".rstrip()

    @property
    def static(self) -> bool:
        """Whether the tree alone decides, without configuring."""
        return self.kind in ("file-contains", "file-lacks")

    @property
    def configured(self) -> bool:
        """Whether a configured build tree decides."""
        return not self.static and self.kind != "imports"


Trailer = tuple[int, str, str]
"""Line, key and value."""


def split(body: str, first: int, shown: str, problems: list[Problem]) -> tuple[str, list[Trailer]]:
    """Split a message's body, whose first line is `first`, into prose and trailers: its last paragraph."""
    lines = body.rstrip().split("\n")
    start = len(lines) - next((at for at, line in enumerate(reversed(lines)) if not line.strip()), len(lines))
    trailers: list[Trailer] = []
    for number, line in enumerate(lines[start:], first + start):
        if line[:1] in (" ", "\t") and trailers:
            at, key, value = trailers[-1]
            trailers[-1] = (at, key, f"{value} {line.strip()}".strip())
        elif match := _TRAILER.fullmatch(line):
            trailers.append((number, match[1], (match[2] or "").strip()))
        else:
            trailers = []
            break
    if not trailers:
        problems.append(Problem(f"{shown}:{first + start}", "the last paragraph holds no trailers"))
        return body.strip(), []
    for number, line in enumerate(lines[:start], first):
        key = line.partition(":")[0]
        if key in _OURS:
            problems.append(Problem(f"{shown}:{number}", f"{key} stands outside of the last paragraph"))
    for number, key, _ in trailers:
        if key not in _KNOWN:
            near = difflib.get_close_matches(key, _KNOWN, n=1)
            hint = f": did you mean {near[0]!r}?" if near else f": known are {', '.join(_KNOWN)}"
            problems.append(Problem(f"{shown}:{number}", f"unknown trailer {key!r}{hint}"))
    return "\n".join(lines[:start]).strip(), trailers


class Fields:
    """Reads our trailers; what is wrong is noted, and a harmless value stands in."""

    def __init__(self, trailers: list[Trailer], shown: str, end: int, problems: list[Problem]) -> None:
        self._trailers = trailers
        self._shown = shown
        self._end = end
        self._problems = problems

    def status(self) -> Status:
        number, value = self._one("Upstream-Status", required=True)
        word, _, argument = value.partition(" ")
        status = Status(word, argument.strip())
        reason = _status_flaw(status) if value else None
        if reason:
            self._note(number, reason)
        return status

    def needed_when(self) -> Predicate:
        number, value = self._one("Needed-When", required=False)
        try:
            return predicateparser.parse(value)
        except predicateparser.PredicateError as error:
            self._note(number, f"Needed-When: {error}")
            return Always()

    def proves(self) -> tuple[Proof, ...]:
        found = [(number, value) for number, key, value in self._trailers if key == "Proves"]
        if not found and self._trailers:
            self._note(self._end, f"no Proves trailer: one of {' · '.join(_PROOFS)}")
        proofs: list[Proof] = []
        for number, value in found:
            proof = _proof(value)
            if isinstance(proof, Proof):
                proofs.append(proof)
            else:
                self._note(number, f"Proves: {proof}")
        return tuple(proofs)

    def _one(self, key: str, *, required: bool) -> tuple[int, str]:
        found = [(number, value) for number, name, value in self._trailers if name == key]
        if len(found) > 1:
            self._note(found[1][0], f"{key} stands twice")
        if required and self._trailers and not (found and found[0][1]):
            self._note(found[0][0] if found else self._end, f"no {key} trailer")
        return found[0] if found else (self._end, "")

    def _note(self, number: int, reason: str) -> None:
        self._problems.append(Problem(f"{self._shown}:{number}", reason))


def _status_flaw(status: Status) -> str | None:
    argument = status.argument
    match status.word:
        case "Pending":
            good = not argument
        case "Submitted" | "Denied":
            good = urlsplit(argument).scheme == "https" and " " not in argument
        case "Backport":
            good = _parses(CommitId.parse, argument)
        case "Inactive-Upstream":
            good = _parses(date.fromisoformat, argument)
        case "Inappropriate":
            good = bool(argument)
        case word:
            near = difflib.get_close_matches(word, [status.partition(" ")[0] for status in _STATUSES], n=1)
            hint = f": did you mean {near[0]!r}?" if near else f": one of {' · '.join(_STATUSES)}"
            return f"unknown Upstream-Status {word!r}{hint}"
    form = next(form for form in _STATUSES if form.split(" ")[0] == status.word)
    return None if good else f"Upstream-Status: write it as {form!r}"


def _parses(parse: Callable[[str], Any], text: str) -> bool:
    try:
        parse(text)
    except ValueError:
        return False
    return True


def _proof(text: str) -> Proof | str:
    kind, _, argument = text.partition(" ")
    argument = argument.strip()
    match kind:
        case "target-absent" | "imports":
            if re.fullmatch(r"[A-Za-z_][\w.+-]*", argument):
                return Proof("target-absent" if kind == "target-absent" else "imports", argument)
        case "cache":
            if re.fullmatch(r"[A-Za-z_][\w.+-]*=.*", argument):
                return Proof("cache", argument)
        case "gencodes":
            if re.fullmatch(r"==\s+recipe", argument):
                return Proof("gencodes", "== recipe")
        case "configures":
            if not argument:
                return Proof("configures")
        case "file":
            if match := re.fullmatch(r"(\S+)\s+(contains|lacks)\s+(\S.*)", argument):
                if reason := diffs.path_flaw(match[1]):
                    return f"{reason}: {match[1]}"
                return Proof("file-contains" if match[2] == "contains" else "file-lacks", match[3], match[1])
        case word:
            near = difflib.get_close_matches(word, [form.partition(" ")[0] for form in _PROOFS], n=1)
            hint = f": did you mean {near[0]!r}?" if near else f": one of {' · '.join(_PROOFS)}"
            return f"unknown kind {word!r}{hint}"
    form = " or ".join(repr(form) for form in _PROOFS if form.partition(" ")[0] == kind)
    return f"write it as {form}"
