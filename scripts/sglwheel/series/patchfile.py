"""One patch file of `git format-patch`: message, trailers and diff, parsed into a frozen value."""

from __future__ import annotations

import email
import email.policy
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path

from sglwheel.series import diffs, predicates, trailers
from sglwheel.series.diffs import FileDiff
from sglwheel.series.predicates import Predicate
from sglwheel.series.trailers import Problem, Proof, Status
from sglwheel.types import CommitId

_FROM = re.compile(rb"From [0-9a-f]{40,64} Mon Sep 17 00:00:00 2001\n")


@dataclass(frozen=True)
class Patch:
    """One patch file. `name` is the file's without `.patch`; `files` are paths from the repository's root."""

    name: str
    path: Path
    subject: str
    author: str
    date: datetime
    reason: str
    upstream_status: Status
    needed_when: Predicate
    proves: tuple[Proof, ...]
    diffs: tuple[FileDiff, ...]
    text: bytes

    @cached_property
    def files(self) -> tuple[str, ...]:
        return tuple(diff.path for diff in self.diffs)

    @cached_property
    def named(self) -> frozenset[CommitId]:
        """The upstream commits that decide what becomes of it: its condition's, and its status's."""
        status = self.upstream_status.commit
        return predicates.commits(self.needed_when) | ({CommitId.parse(status)} if status else set())

    @cached_property
    def added(self) -> int:
        return sum(diff.added for diff in self.diffs)

    @cached_property
    def removed(self) -> int:
        return sum(diff.removed for diff in self.diffs)


def parse_patch(
    name: str, path: Path, text: bytes, *, shown: str, directory: str | None = None
) -> Patch | tuple[Problem, ...]:
    """Parse one patch file; `shown` is what problems call it."""
    problems: list[Problem] = []
    lines = text.splitlines(keepends=True) if b"\r" not in text else _split(text)
    end = next((at for at, line in enumerate(lines) if line.rstrip(b"\r\n") == b"---"), None)
    start = next((at for at, line in enumerate(lines) if line.startswith(b"diff --git ")), len(lines))
    if not lines or not _FROM.fullmatch(lines[0].replace(b"\r\n", b"\n")):
        return (Problem(f"{shown}:1", "not a patch of git format-patch: no `From <commit>` line"),)
    if end is None or end > start:
        return (Problem(f"{shown}:{start}", "no `---` line between message and diff"),)
    damaged = next((at for at, line in enumerate(lines[: end + 1], 1) if line.endswith(b"\r\n")), None)
    if damaged is not None:
        return (Problem(f"{shown}:{damaged}", "CRLF damage: the line ends in CR LF"),)
    found, flaws = diffs.parse(lines[start:], start + 1)
    problems += (Problem(f"{shown}:{flaw.line}", flaw.reason) for flaw in flaws)
    problems += _places(found, shown, directory)
    message = _message(b"".join(lines[1:end]), shown, problems)
    blank = next((at for at, line in enumerate(lines) if not line.strip()), 0)
    reason, found_trailers = trailers.split(message.body, blank + 2, shown, problems)
    fields = trailers.Fields(found_trailers, shown, end + 1, problems)
    patch = Patch(
        name=name,
        path=path,
        subject=message.subject,
        author=message.author,
        date=message.date,
        reason=reason,
        upstream_status=fields.status(),
        needed_when=fields.needed_when(),
        proves=fields.proves(),
        diffs=found,
        text=text,
    )
    if not reason and not any("last paragraph" in problem.reason for problem in problems):
        problems.append(Problem(f"{shown}:{blank + 2}", "no reason: say in prose why the patch exists"))
    if problems:
        return tuple(sorted(problems, key=lambda problem: int(problem.where.rpartition(":")[2])))
    return patch


def _split(text: bytes) -> list[bytes]:
    """Lines end in LF only: a CR elsewhere belongs to the line."""
    return [line + b"\n" for line in text.split(b"\n")[:-1]] + (
        [text.rpartition(b"\n")[2]] if not text.endswith(b"\n") else []
    )


def _places(found: Iterable[FileDiff], shown: str, directory: str | None) -> Iterable[Problem]:
    seen: set[str] = set()
    for diff in found:
        if diff.path in seen:
            yield Problem(f"{shown}:{diff.line}", f"{diff.path} stands twice")
        seen.add(diff.path)
        if directory is not None and not diff.path.startswith(directory.rstrip("/") + "/"):
            yield Problem(f"{shown}:{diff.line}", f"{diff.path} lies outside of {directory}/")


@dataclass(frozen=True)
class _Message:
    subject: str
    author: str
    date: datetime
    body: str


def _message(text: bytes, shown: str, problems: list[Problem]) -> _Message:
    mail = email.message_from_bytes(text, policy=email.policy.default)
    for name in ("From", "Date", "Subject"):
        if not mail.get(name):
            problems.append(Problem(f"{shown}:2", f"no {name} in the header"))
    encoding = str(mail.get("Content-Transfer-Encoding", "8bit")).lower()
    if encoding not in ("7bit", "8bit"):
        problems.append(Problem(f"{shown}:2", f"the message is {encoding}: export it with git format-patch"))
    when = getattr(mail["Date"], "datetime", None) if mail["Date"] else None
    if when is None and mail["Date"]:
        problems.append(Problem(f"{shown}:2", f"not a date: {mail['Date']}"))
    body = text.partition(b"\n\n")[2].decode("utf-8", "replace")
    if "�" in body:
        problems.append(Problem(f"{shown}:2", "the message is not UTF-8"))
    subject = re.sub(r"^\[PATCH[^]]*\]\s*", "", re.sub(r"\s+", " ", str(mail.get("Subject", ""))))
    return _Message(subject, str(mail.get("From", "")), when or datetime(1970, 1, 1), body)
