"""Drift over the real history: the true changes of state, and how long that takes beside plain git.

SGLWHEEL_UPSTREAM=1      the changes, and the time of drift
SGLWHEEL_UPSTREAM=all    every state is also asked of `git am -3` itself; both loops are timed (minutes)
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from packaging.version import Version

from sglwheel import drift, recipe, series
from sglwheel.drift import Drift
from sglwheel.drift.lineage import Lineage
from sglwheel.files import Layout
from sglwheel.git import Git, objects
from sglwheel.mirrors import Mirrors
from sglwheel.patching import trials, worktree
from sglwheel.series.predicates import Facts

ROOT = Path(__file__).parents[2]
WANTED = os.environ.get("SGLWHEEL_UPSTREAM", "")
TO = "71de97b264b04dcd514cf904003028aefe9775c8"  # v0.5.18, 2026-08-20
FROM = "2025-10-01"

pytestmark = [
    pytest.mark.upstream,
    pytest.mark.skipif(not WANTED, reason="skipped: set SGLWHEEL_UPSTREAM=1 (network or SGLWHEEL_MIRRORS)"),
]


@pytest.fixture(scope="module")
def lineage() -> Lineage:
    layout = Layout(ROOT)
    return Lineage.open(recipe.load(layout, "cu130"), layout, Mirrors.load(layout))


def run(lineage: Lineage, start: str = FROM) -> Drift:
    layout = Layout(ROOT)
    target = recipe.load(layout, "cu130")
    stack = series.load(layout, target.source.series, directory=target.source.directory)
    versions = {name: Version("13") for name in ("cmake", "cuda", "torch")}
    facts = Facts.of(target, **versions, contains=lambda _commit: False)
    end = lineage.commit(TO, option="--to")
    first = lineage.commit(start, option="--from", offline=True, tip=end)
    return drift.run(lineage.git, stack, target, facts, first, end, fetch=lineage.fetch, all=True)


def processor_seconds() -> float:
    mine, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return mine.ru_utime + mine.ru_stime + children.ru_utime + children.ru_stime


def test_the_changes_of_state_are_these(lineage: Lineage, golden: Callable[[str, str], None]) -> None:
    found = run(lineage)
    lines = [
        f"{change.commit.id.short} {change.commit.date:%Y-%m-%d} #{change.commit.pull_request} "
        f"{change.patch}: {change.before} → {change.after}"
        for change in found.changes
        if change.before is not None
    ]
    lines += [f"{item.commit.id.short} {item.notice.what}" for item in found.notices]
    golden("patch/drift-cu130.txt", "\n".join(lines) + "\n")
    assert len(found.history.line) > 11_000


def test_drift_takes_three_seconds_of_two_cores(lineage: Lineage) -> None:
    run(lineage)
    # What a busy host makes of it says nothing: processor time is what two idle cores share.
    before, began = processor_seconds(), time.monotonic()
    found = run(lineage)
    used, wall = processor_seconds() - before, time.monotonic() - began
    commits, steps = len(found.history.line), len(found.history.steps)
    print(f"\ndrift: {used:.2f} CPU-s, {wall:.2f} s for {commits} commits, {steps} steps")
    assert used < 3


@pytest.mark.skipif(WANTED != "all", reason="skipped: SGLWHEEL_UPSTREAM=all asks git about every commit")
def test_every_state_is_what_git_am_says(lineage: Lineage, tmp_path: Path) -> None:
    found = run(lineage)
    git, stack = lineage.git, found.series
    objects.seed(git, trials.bases(git, stack))
    began, steps = time.monotonic(), found.history.steps
    sparse = tuple(sorted({step.directory for step in steps if step.directory}))
    differ: list[str] = []
    with worktree.Worktree(git, steps[0].commit.id, tmp_path / "work", sparse) as tree:
        for step, row in zip(steps, found.outcomes, strict=True):
            tree.run("reset", "--quiet", "--hard", step.commit.id)
            for patch in stack.patches:
                state, _, _ = worktree.am(tree, patch)
                worktree.abort(tree)
                outcome = row[patch.name]
                if state != outcome.state and not outcome.detail.startswith(("merged with", "upstream has")):
                    differ.append(f"{step.commit.id.short} {patch.name}: {outcome.state}, git says {state}")
    print(f"\ngit am in a worktree: {time.monotonic() - began:.1f} s for {len(steps)} steps")
    assert differ == []


@pytest.mark.skipif(WANTED != "all", reason="skipped: SGLWHEEL_UPSTREAM=all times a plain loop")
def test_beside_a_plain_loop(lineage: Lineage, tmp_path: Path) -> None:
    """`read-tree` and `git apply --cached --3way` for each commit, which also finds no moved file."""
    found = run(lineage)
    git: Git = lineage.git
    began = time.monotonic()
    for step in found.history.steps:
        env = {"GIT_INDEX_FILE": str(tmp_path / "index")}
        git.run("read-tree", step.commit.id, env=env)
        for patch in found.series.patches:
            git.run("apply", "--cached", "--3way", input=patch.text, env=env, accept=range(256))
    print(f"\nplain loop: {time.monotonic() - began:.1f} s for {len(found.history.steps)} steps")


def test_time_grows_with_the_commits_that_touch(lineage: Lineage) -> None:
    used: list[tuple[int, int, float]] = []
    for start in ("2026-06-01", "2026-03-01", FROM):
        run(lineage, start)
        before = processor_seconds()
        found = run(lineage, start)
        used.append((len(found.history.line), len(found.history.steps), processor_seconds() - before))
    for commits, steps, seconds in used:
        print(f"\n{commits} commits, {steps} steps: {seconds:.2f} CPU-s")
