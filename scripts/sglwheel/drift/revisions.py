"""Upstream's commits as people name them, and as they are shown."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime

from sglwheel.errors import PatchError, UsageError
from sglwheel.git import Git
from sglwheel.types import CommitId

_PULL = re.compile(r"\(#(\d+)\)|^Merge pull request #(\d+)")
FORMAT = "--format=%x01%H%x00%ct%x00%s"


@dataclass(frozen=True)
class Commit:
    """A commit as a person refers to it."""

    id: CommitId
    date: datetime
    subject: str

    @property
    def pull_request(self) -> int | None:
        """The number at the end of a squashed commit's subject, or of a merge's."""
        found = _PULL.findall(self.subject)
        return int(found[-1][0] or found[-1][1]) if found else None


def parse(text: str) -> Commit:
    """A commit as git prints it with FORMAT."""
    identity, seconds, subject = text.strip("\x01\n\0").split("\0", 2)
    return Commit(CommitId.parse(identity), datetime.fromtimestamp(int(seconds), UTC), subject.strip("\n"))


def resolve(git: Git, text: str, *, tip: str, option: str) -> CommitId:
    """A commit by id, branch, tag, or date (the last one of `tip`'s main line before that day, in UTC).

    Raises UsageError for what is unknown or ambiguous.
    """
    if re.fullmatch(r"\d{4}-\d{2}-\d{2}", text):
        try:
            day = datetime.combine(date.fromisoformat(text), datetime.min.time(), UTC)
        except ValueError:
            raise UsageError(f"{option} {text}: no such date") from None
        before = f"--before={int(day.timestamp())}"
        found = git.run("rev-list", "-1", "--first-parent", before, tip).stdout.strip()
        if not found:
            raise UsageError(f"{option} {text}: upstream has no commit that old")
        return CommitId.parse(found)
    for candidate in (text, f"refs/remotes/origin/{text}"):
        done = git.run(
            "rev-parse", "--verify", "--end-of-options", f"{candidate}^{{commit}}", accept=(0, 1, 128)
        )
        if done.returncode == 0:
            return CommitId.parse(done.stdout.strip())
        if "ambiguous" in done.stderr:
            hints = re.findall(r"^hint:\s+([0-9a-f]{7,40}) commit (.*)$", done.stderr, re.MULTILINE)
            raise UsageError(
                f"{option} {text!r} is ambiguous", where=dict(hints),
                next="give more digits",
            )  # fmt: skip
    raise UsageError(
        f"{option} {text!r} names no commit of upstream",
        next="give a commit id, a branch, a tag, or a date like 2026-03-06",
    )


def describe(git: Git, commit: str) -> Commit:
    """A commit with its date and subject."""
    done = git.run("log", "-1", "--no-walk", FORMAT, "--end-of-options", commit, failure=PatchError)
    return parse(done.stdout)
