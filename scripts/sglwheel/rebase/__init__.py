"""Carry a series and its recipe to another upstream commit, through conflicts and interruptions."""

from __future__ import annotations

import re
import shutil
import tempfile
import tomllib
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path

from sglwheel import drift, files, series
from sglwheel.drift import Drift
from sglwheel.drift.lineage import Lineage
from sglwheel.errors import PatchError, UsageError
from sglwheel.files import Layout
from sglwheel.git import Git
from sglwheel.git.objects import read_blobs
from sglwheel.patching.worktree import Tree, Workspace
from sglwheel.rebase import landing, rebasestate, replay
from sglwheel.rebase.rebasestate import State, workspace
from sglwheel.recipe import Recipe
from sglwheel.series import Series
from sglwheel.series.predicates import Facts
from sglwheel.types import CommitId

_APPLIES = ("applied", "applied-3way")


def start(
    layout: Layout,
    recipe: Recipe,
    stack: Series,
    facts: Facts,
    lineage: Lineage,
    to: str,
    *,
    skips: Mapping[str, str],
    new_series: str | None = None,
    offline: bool = False,
    relock: landing.Relock = tuple,
) -> landing.Report:
    """Begin a rebase and take it as far as it goes; the same command again goes on with it.

    `relock` writes the locks once series and recipe are written; only then the rebase is over.

    Raises PatchError at a conflict, which `proceed` continues from, and UsageError for a bad target.
    """
    with _locked(layout, recipe.id):
        target = lineage.commit(to, option="--to", offline=offline)
        state = rebasestate.load(layout, recipe.id)
        if state is None:
            state = _begin(layout, recipe, stack, facts, lineage, target, new_series)
        elif state.new != target:
            raise PatchError(
                f"a rebase of {recipe.id} to {state.to.short} is in progress",
                where={"workspace": layout.relative(workspace(layout, recipe.id))},
                next=f"sglwheel rebase {recipe.id} --continue, or --abort",
            )
        return _go_on(layout, state, skips, relock)


def proceed(
    layout: Layout,
    recipe: Recipe,
    *,
    skips: Mapping[str, str] | None = None,
    relock: landing.Relock = tuple,
) -> landing.Report:
    """Go on with the rebase in progress: `--continue`, and `--skip <patch> --why …`."""
    with _locked(layout, recipe.id):
        return _go_on(layout, _require(layout, recipe.id), skips or {}, relock)


def give_up(layout: Layout, recipe: Recipe) -> None:
    """Forget the rebase in progress; recipes/ and patches/ are as before it began."""
    with _locked(layout, recipe.id):
        state = rebasestate.load(layout, recipe.id)
        if state is None and not workspace(layout, recipe.id).exists():
            raise PatchError(f"no rebase of {recipe.id} is in progress")
        if state is not None and landing.landed(layout, state):
            raise PatchError(
                f"the rebase of {recipe.id} has written series and recipe; only the locks are left",
                next=f"sglwheel rebase {recipe.id} --continue (git restores what was before)",
            )
        if state is not None and state.phase == "finishing":
            landing.take_back(layout, state)
        landing.close(layout, recipe.id)


def _begin(
    layout: Layout,
    recipe: Recipe,
    stack: Series,
    facts: Facts,
    lineage: Lineage,
    target: CommitId,
    new_series: str | None,
) -> State:
    source = recipe.source
    old = lineage.commit(source.commit, option="source.commit")
    plan = drift.run(lineage.git, stack, recipe, facts, old, target, fetch=lineage.fetch, all=True)
    end = plan.history.steps[-1]
    if end.directory is None or not end.blobs:
        raise UsageError(
            f"{source.directory} is not there any more at {target.short}, nor a directory that it moved to",
            next="choose an earlier commit",
        )
    name = new_series or _series_name(layout, recipe, lineage.git, target, end.directory)
    if not re.fullmatch(r"[a-z0-9][a-z0-9._-]*", name) or ".." in name:
        raise UsageError(f"{name!r} cannot be the name of a series")
    shared = [one for one in landing.users(layout, name) if one != recipe.id]
    existed = (layout.patches / name).is_dir()
    if existed and (shared or name != source.series):
        raise UsageError(
            f"patches/{name} exists already",
            where={"used by": ", ".join(shared) or "no recipe"},
            next="give the new series a name: --series NAME",
        )
    final = workspace(layout, recipe.id)
    landing.close(layout, recipe.id)  # left-overs, as there is no state
    final.parent.mkdir(parents=True, exist_ok=True)
    for stale in final.parent.glob(".rebase-*"):
        shutil.rmtree(stale)
    scratch = Path(tempfile.mkdtemp(prefix=".rebase-", dir=final.parent))
    try:
        scratch.chmod(0o755)
        Workspace.create(lineage.git, target, scratch, (end.directory,))
        scratch.rename(final)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    state = State(
        recipe=recipe.id,
        old=old,
        new=target,
        old_date=f"{plan.history.steps[0].commit.date:%Y-%m-%d}",
        new_date=f"{plan.history.end.date:%Y-%m-%d}",
        directory=end.directory,
        series=stack.name,
        new_series=name,
        new_series_existed=existed,
        recipe_sha256=landing.digest(landing.recipe_path(layout, recipe.id).read_bytes()),
        series_digest=stack.digest,
        head=target,
        paths=_moves(stack, end.paths, source.directory, end.directory),
        drops=_drops(lineage.git, plan, stack, facts),
        broke=_broke(plan),
        notices=[
            *(f"{item.commit.id.short} {item.notice.what}" for item in plan.notices),
            *_half_merged(plan, stack),
        ],
    )
    rebasestate.save(layout, state)
    return state


def _moves(stack: Series, paths: Mapping[str, str], before: str, after: str) -> dict[str, str]:
    """Where files are now: those that patches touch, and those that only their proofs name."""
    proven = {proof.path for patch in stack.patches for proof in patch.proves if proof.path}
    moved = {path: after + path.removeprefix(before) for path in proven if path.startswith(f"{before}/")}
    return {old: new for old, new in {**moved, **paths}.items() if old != new}


def _drops(git: Git, plan: Drift, stack: Series, facts: Facts) -> dict[str, str]:
    """Patches that the new commit has no use for, whatever the toolchain, and what says so."""
    reasons = {patch.name: patch.upstream_status.argument for patch in stack.patches}
    found = {
        name: outcome.detail
        for name, outcome in plan.outcomes[-1].items()
        if outcome.state == "already-upstream"
        or (outcome.state == "obsolete" and outcome.detail == reasons[name])
    }
    ancestry = drift.Ancestry(git, plan.history)
    there = replace(facts, contains=partial(ancestry.contains, at=len(plan.history.steps) - 1))
    for patch in stack.patches:
        if "upstream " in str(patch.needed_when) and patch.name not in found:
            verdict = patch.needed_when.evaluate(there)
            if not verdict.needed:
                found[patch.name] = verdict.because
    return found


def _half_merged(plan: Drift, stack: Series) -> list[str]:
    """What a person should look at: patches that apply although upstream has what they name."""
    line = set(plan.history.line)
    working = [patch for patch in stack.patches if plan.outcomes[-1][patch.name].state in _APPLIES]
    named = [(patch.name, patch.upstream_status.commit) for patch in working]
    return [
        f"{commit[:9]}, which {name} names: it still applies, is it still needed?"
        for name, commit in named
        if commit in line and commit is not None
    ]


def _broke(plan: Drift) -> dict[str, str]:
    """For each patch the upstream commit that gave it the state which it has at the end."""
    return {
        change.patch: f"{change.commit.id.short} {change.commit.date:%Y-%m-%d} {change.commit.subject}"
        for change in plan.changes
        if change.before is not None
    }


def _go_on(layout: Layout, state: State, skips: Mapping[str, str], relock: landing.Relock) -> landing.Report:
    stack = series.load(layout, state.series)
    if stack.digest != state.series_digest and state.phase != "finishing":
        raise PatchError(
            f"patches/{state.series} changed while it was being rebased",
            next=f"put it back, or sglwheel rebase {state.recipe} --abort and begin again",
        )
    unknown = [name for name in skips if name not in {patch.name for patch in stack.patches}]
    if unknown and state.phase != "finishing":
        raise UsageError(f"--skip {unknown[0]}: patches/{state.series} has no such patch")
    if any(not why.strip() for why in skips.values()):
        raise UsageError("--skip needs a reason: --why '…'")
    state.skips |= skips
    rebasestate.save(layout, state)
    tree = Tree(workspace(layout, state.recipe))
    if not (tree.path / ".git").is_dir():
        raise PatchError(
            "the workspace of the rebase is gone",
            where={"workspace": layout.relative(tree.path)},
            next=f"sglwheel rebase {state.recipe} --abort, and begin again",
        )
    tree.unlock()
    if state.phase == "conflict":
        replay.resolve(layout, state, stack, tree)
    while state.phase == "applying":
        replay.advance(layout, state, stack, tree)
    return landing.finish(layout, state, stack, tree, relock)


def _series_name(layout: Layout, recipe: Recipe, git: Git, target: CommitId, directory: str) -> str:
    """Upstream's version at the target; with the commit where that name is taken."""
    done = git.run(
        "rev-parse", "--verify", "--quiet", f"{target}:{directory}/pyproject.toml", accept=(0, 1, 128)
    )
    version = ""
    if done.returncode == 0:
        text = next(iter(read_blobs(git, [done.stdout.strip()]).values()), b"")
        try:
            version = str(
                tomllib.loads(text.decode("utf-8", "replace")).get("project", {}).get("version", "")
            )
        except tomllib.TOMLDecodeError:
            version = ""
    name = version.lower() or f"{recipe.id}-{target.short}"
    mine = name == recipe.source.series and landing.users(layout, name) == [recipe.id]
    return name if mine or not (layout.patches / name).exists() else f"{name}-{target.short}"


def _require(layout: Layout, recipe: str) -> State:
    state = rebasestate.load(layout, recipe)
    if state is None:
        raise PatchError(
            f"no rebase of {recipe} is in progress", next=f"sglwheel rebase {recipe} --to <revision>"
        )
    return state


def _locked(layout: Layout, recipe: str) -> AbstractContextManager[None]:
    return files.locked(
        layout.work / recipe / "rebase.lock",
        failure=PatchError,
        what=f"the rebase of {recipe}",
        timeout=0,
        next="wait for it",
    )
