"""How a series fares along upstream's history: every change of state, and the commit that caused it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from sglwheel.drift import history, signals
from sglwheel.drift.history import History, Step
from sglwheel.drift.revisions import Commit
from sglwheel.drift.signals import Notice, Signals
from sglwheel.errors import PatchError
from sglwheel.git import Git
from sglwheel.patching import trials
from sglwheel.patching.trials import Contents, Fetch, Outcome, Place
from sglwheel.recipe import Recipe
from sglwheel.series import Series, predicates
from sglwheel.series.patchfile import Patch
from sglwheel.series.predicates import Facts, Verdict
from sglwheel.types import CommitId

WORKING = ("applied", "applied-3way", "not-needed")


@dataclass(frozen=True)
class Change:
    """A patch whose state is another from this commit on. `before` is None at the start of the range."""

    commit: Commit
    patch: str
    before: str | None
    after: str
    detail: str


@dataclass(frozen=True)
class Noticed:
    """A notice and the commit that gave rise to it."""

    commit: Commit
    notice: Notice


@dataclass(frozen=True)
class Drift:
    """The whole answer: for each step the state of every patch, in the order of the series."""

    recipe: str
    series: Series
    history: History
    outcomes: tuple[Mapping[str, Outcome], ...]
    changes: tuple[Change, ...]
    notices: tuple[Noticed, ...]

    @property
    def works(self) -> bool:
        """Whether a build of the end of the range would get past patching."""
        return all(outcome.state in WORKING for outcome in self.outcomes[-1].values())

    def failure(self) -> PatchError | None:
        """The error that says what does not work at the end of the range."""
        bad = {name: item for name, item in self.outcomes[-1].items() if item.state not in WORKING}
        if not bad:
            return None
        end = self.history.end
        share = f"{len(bad)} of {len(self.series.patches)} patches"
        return PatchError(
            f"{share} do not work at {end.id.short} ({end.date:%Y-%m-%d})",
            where={name: f"{item.state}: {item.detail}" for name, item in bad.items()},
            next=f"nox -s rebase -- {self.recipe} --to {end.id.short}",
        )

    def to_json(self) -> dict[str, Any]:
        """The same facts for scripts."""
        steps = [
            {
                **_commit(step.commit),
                "directory": step.directory,
                "states": {n: o.state for n, o in row.items()},
            }
            for step, row in zip(self.history.steps, self.outcomes, strict=True)
        ]
        return {
            "recipe": self.recipe,
            "series": self.series.name,
            "from": _commit(self.history.steps[0].commit),
            "to": _commit(self.history.end),
            "commits": len(self.history.line) - 1,
            "works": self.works,
            "patches": {name: vars(outcome) for name, outcome in self.outcomes[-1].items()},
            "changes": [{**vars(item), "commit": _commit(item.commit)} for item in self.changes],
            "notices": [{**_commit(item.commit), **vars(item.notice)} for item in self.notices],
            "steps": steps,
        }


def run(
    git: Git,
    series: Series,
    recipe: Recipe,
    facts: Facts,
    start: CommitId,
    end: CommitId,
    *,
    fetch: Fetch,
    all: bool = False,
) -> Drift:
    """Judge the series at every commit from `start` to `end` that touches a file of interest or is named.

    `fetch` is given ids of blobs before they are read, for a store that has not all of them. With `all` the
    conditions of patches are not asked.
    """
    named = {commit for patch in series.patches for commit in patch.named}
    found = history.walk(git, start, end, recipe.source.directory, series.files, named)
    contents = Contents(git, fetch)
    contents.load(blob for step in found.steps for blob in step.blobs.values())
    ancestry = Ancestry(git, found)
    verdicts = _verdicts(series, facts, found.steps, ancestry, force=all)
    places = [Place(dict(step.paths), dict(step.blobs)) for step in found.steps]
    raw = trials.run(git, series, places, lambda at, patch: verdicts[patch.name][at].needed, contents)
    outcomes = [
        {
            patch.name: raw[at].get(patch.name) or _skipped(verdicts[patch.name][at])
            for patch in series.patches
        }
        for at in range(len(found.steps))
    ]
    for patch in series.patches:
        _settle(patch, found.steps, outcomes, ancestry)
    return Drift(
        recipe.id,
        series,
        found,
        tuple(outcomes),
        tuple(_changes(series, found.steps, outcomes)),
        tuple(_notices(series, recipe, found.steps, contents, ancestry)),
    )


class Ancestry:
    """Which commits are in the history of which step; most questions cost no process."""

    def __init__(self, git: Git, found: History) -> None:
        self._git = git
        self._steps = found.steps
        self._order = {commit: number for number, commit in enumerate(found.line)}
        self._asked: dict[tuple[str, str], bool] = {}

    def contains(self, commit: str, at: int) -> bool:
        """Whether step `at` descends from `commit`."""
        here = self._steps[at].commit.id
        if commit in self._order:
            return self._order[commit] <= self._order[here]
        # Off the main line: old enough for all steps, too new for all, or in need of a question for each.
        first, last = self._steps[0].commit.id, self._steps[-1].commit.id
        return self._descends(commit, first) or (
            self._descends(commit, last) and self._descends(commit, here)
        )

    def _descends(self, commit: str, of: str) -> bool:
        key = (commit, of)
        if key not in self._asked:
            done = self._git.run("merge-base", "--is-ancestor", commit, of, accept=(0, 1, 128))
            self._asked[key] = done.returncode == 0
        return self._asked[key]


def _verdicts(
    series: Series, facts: Facts, steps: Sequence[Step], ancestry: Ancestry, *, force: bool
) -> dict[str, list[Verdict]]:
    count = len(steps)
    result: dict[str, list[Verdict]] = {}
    for patch in series.patches:
        if force:
            result[patch.name] = [Verdict(True, "--all")] * count
        elif not predicates.commits(patch.needed_when):
            result[patch.name] = [patch.needed_when.evaluate(facts)] * count
        else:
            result[patch.name] = [
                patch.needed_when.evaluate(
                    dataclasses.replace(facts, contains=partial(ancestry.contains, at=at))
                )
                for at in range(count)
            ]
    return result


def _skipped(verdict: Verdict) -> Outcome:
    return Outcome("not-needed", verdict.because)


def _settle(
    patch: Patch, steps: Sequence[Step], outcomes: list[dict[str, Outcome]], ancestry: Ancestry
) -> None:
    """Tell a merged or pointless patch from a conflict: upstream goes on changing what it merged."""
    status = patch.upstream_status
    merged: Commit | None = None
    for at, step in enumerate(steps):
        outcome = outcomes[at][patch.name]
        if outcome.state == "already-upstream":
            merged = merged or step.commit
            outcomes[at][patch.name] = Outcome("already-upstream", f"merged with {merged.id.short}")
        elif outcome.state in ("applied", "applied-3way"):
            merged = None
        elif outcome.state in ("conflict", "obsolete"):
            if merged is not None:
                detail = f"merged with {merged.id.short}, and changed since"
                outcomes[at][patch.name] = Outcome("already-upstream", detail)
            elif status.commit is not None and ancestry.contains(status.commit, at):
                backport = status.word == "Backport"
                detail = f"upstream has {status.commit[:9]}, of which it is a backport"
                outcomes[at][patch.name] = (
                    Outcome("already-upstream", detail) if backport else Outcome("obsolete", status.argument)
                )


def _changes(
    series: Series, steps: Sequence[Step], outcomes: Sequence[Mapping[str, Outcome]]
) -> list[Change]:
    changes: list[Change] = []
    before: dict[str, str] = {}
    for step, row in zip(steps, outcomes, strict=True):
        for patch in series.patches:
            outcome = row[patch.name]
            if before.get(patch.name) != outcome.state:
                last = before.get(patch.name)
                changes.append(Change(step.commit, patch.name, last, outcome.state, outcome.detail))
                before[patch.name] = outcome.state
    return changes


def _notices(
    series: Series, recipe: Recipe, steps: Sequence[Step], contents: Contents, ancestry: Ancestry
) -> list[Noticed]:
    """What changed after the recipe's pin (or the start): what the series was made for needs no notice."""
    known: dict[tuple[str, str], Signals] = {}

    def look(step: Step) -> Signals:
        parts = []
        for path, blob in _watched(step):
            if (path, blob) not in known:
                known[path, blob] = signals.read(path, contents[blob])
            parts.append(known[path, blob])
        return signals.join(parts)

    pin = recipe.source.commit
    until = [at for at, step in enumerate(steps) if step.commit.id == pin or not ancestry.contains(pin, at)]
    first = until[-1] if until else 0
    covered = [patch.text for patch in series.patches]
    notices: list[Noticed] = []
    seen = look(steps[first])
    directory = steps[first].directory
    for step in steps[first + 1 :]:
        now = look(step)
        if step.directory != directory:
            what = f"source directory moved: {directory} → {step.directory or 'nowhere'}"
            notices.append(Noticed(step.commit, Notice(what, "source.directory in the recipe has to follow")))
            directory = step.directory
        notices += (Noticed(step.commit, notice) for notice in signals.compare(seen, now, covered))
        # What was there once is no news when it comes back.
        seen = dataclasses.replace(
            now,
            gencodes=seen.gencodes | now.gencodes,
            libraries=seen.libraries | now.libraries,
            sources=seen.sources | now.sources,
        )
    return notices


def _watched(step: Step) -> list[tuple[str, str]]:
    if step.directory is None:
        return []
    names = tuple(f"{step.directory}/{name}" for name in history.WATCHED)
    return sorted(
        (path, blob)
        for path, blob in step.blobs.items()
        if path.startswith(tuple(f"{n}/" for n in names)) or path in names
    )


def _commit(commit: Commit) -> dict[str, Any]:
    return {
        "commit": commit.id,
        "date": commit.date.isoformat(),
        "subject": commit.subject,
        "pull_request": commit.pull_request,
    }
