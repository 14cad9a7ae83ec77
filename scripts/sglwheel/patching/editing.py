"""Change a series with ordinary git commits: open a workspace, export it back."""

from __future__ import annotations

import json
import shutil
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from sglwheel import files, series
from sglwheel.errors import PatchError
from sglwheel.files import Layout
from sglwheel.git import Git
from sglwheel.patching import Base, exporting, trials
from sglwheel.patching.worktree import Tree, Workspace, am
from sglwheel.recipe import Recipe
from sglwheel.series import Series
from sglwheel.types import CommitId

_STATE = ".git/sglwheel-edit.json"
# What git leaves in its directory while a command waits for somebody.
_UNFINISHED = {
    "rebase-merge": "rebase",
    "rebase-apply": "am or rebase",
    "MERGE_HEAD": "merge",
    "CHERRY_PICK_HEAD": "cherry-pick",
    "REVERT_HEAD": "revert",
    "BISECT_LOG": "bisect",
}


@dataclass(frozen=True)
class Session:
    """An open workspace. `kept` are patches without a commit there (upstream's, or without target)."""

    path: Path
    base: CommitId
    kept: tuple[str, ...]


@dataclass(frozen=True)
class Change:
    """What an export did to one patch file."""

    name: str
    what: Literal["added", "changed", "removed", "same"]


def path(layout: Layout, recipe: Recipe) -> Path:
    """Where the workspace of a recipe lies, open or not."""
    return layout.work / recipe.id / "edit"


def open_session(checkout: Base, stack: Series, layout: Layout, recipe: Recipe) -> Session:
    """Make a workspace with every patch of the series as a commit, needed or not.

    Raises PatchError when one is open already, or when a patch conflicts (which is a rebase's work).
    """
    final = path(layout, recipe)
    if final.exists():
        raise PatchError(
            f"the series of {recipe.id} is being edited already",
            where={"workspace": layout.relative(final)},
            next=f"sglwheel export {recipe.id}, or sglwheel patch {recipe.id} --discard",
        )
    final.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=".edit-", dir=final.parent))
    try:
        scratch.chmod(0o755)
        store = Git(checkout.repository)
        tree = Workspace.create(store, checkout.commit, scratch, (recipe.source.directory,))
        items: list[dict[str, str | None]] = []
        for patch in stack.patches:
            state, because, _ = am(tree, patch, partial(trials.bases, store, stack))
            if state == "conflict":
                raise PatchError(
                    f"{patch.name} does not apply at the recipe's commit, so it cannot be edited there",
                    where={"file": because},
                    next=f"nox -s rebase -- {recipe.id} --to {checkout.commit.short}",
                )
            if state == "obsolete":
                tree.run("am", "--abort")
            applied = state in ("applied", "applied-3way")
            items.append({"name": patch.name, "commit": tree.head() if applied else None})
        document = {"base": checkout.commit, "digest": stack.digest, "items": items}
        files.write_atomic(scratch / _STATE, json.dumps(document, indent=1))
        scratch.rename(final)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    kept = tuple(str(item["name"]) for item in items if item["commit"] is None)
    return Session(final, checkout.commit, kept)


def discard(layout: Layout, recipe: Recipe) -> None:
    """Throw the workspace away, with all that was not exported."""
    _close(_require(layout, recipe))


def export(layout: Layout, recipe: Recipe) -> tuple[Change, ...]:
    """Write the workspace's commits back as the series, all at once, and close the workspace.

    Raises PatchError, and changes nothing, for uncommitted work or when the series changed meanwhile.
    """
    workspace = _require(layout, recipe)
    state: Any = json.loads((workspace / _STATE).read_text())
    tree = Tree(workspace)
    _require_clean(tree, layout, recipe)
    stack = series.load(layout, recipe.source.series, directory=recipe.source.directory)
    exported = exporting.export(tree.git, state["base"], "HEAD")
    names = {item["commit"]: item["name"] for item in state["items"] if item["commit"]}
    kept = [item["name"] for item in state["items"] if not item["commit"]]
    named = exporting.names(exported, [patch for patch in stack.patches if patch.name not in kept], names)
    wanted = list(zip(named, (item.text for item in exported), strict=True))
    before = {patch.name: patch.text for patch in stack.patches}
    if stack.digest != state["digest"]:
        if dict(wanted).items() <= before.items():
            # An export that was interrupted after its last step but one.
            _close(workspace)
            return tuple(Change(name, "same") for name in before)
        raise PatchError(
            f"patches/{stack.name} changed while it was being edited",
            where={"series": layout.relative(stack.directory), "workspace": layout.relative(workspace)},
            next="put the older series back (git stash) and export again",
        )
    wanted = _with_kept(wanted, [str(item["name"]) for item in state["items"]], kept, before)
    exporting.write_series(layout, stack.name, wanted, directory=recipe.source.directory)
    _close(workspace)
    after = dict(wanted)
    changes = [
        Change(name, "added" if name not in before else "same" if before[name] == text else "changed")
        for name, text in wanted
    ]
    return (*changes, *(Change(name, "removed") for name in before if name not in after))


def _close(workspace: Path) -> None:
    shutil.rmtree(workspace)


def _with_kept(
    wanted: list[tuple[str, bytes]], order: list[str], kept: list[str], before: dict[str, bytes]
) -> list[tuple[str, bytes]]:
    """Put patches that had no commit back after the one that they followed."""
    result = list(wanted)
    for name in kept:
        earlier = set(order[: order.index(name)])
        place = max((at + 1 for at, (other, _) in enumerate(result) if other in earlier), default=0)
        result.insert(place, (name, before[name]))
    return result


def _require(layout: Layout, recipe: Recipe) -> Path:
    workspace = path(layout, recipe)
    if not (workspace / _STATE).is_file():
        raise PatchError(
            f"the series of {recipe.id} is not being edited",
            where={"looked for": layout.relative(workspace)},
            next=f"sglwheel patch {recipe.id} --edit",
        )
    return workspace


def _require_clean(tree: Tree, layout: Layout, recipe: Recipe) -> None:
    shown = layout.relative(tree.path)
    for name, command in _UNFINISHED.items():
        if (tree.path / ".git" / name).exists():
            raise PatchError(
                f"a git {command} waits in the workspace",
                where={"workspace": shown},
                next=f"finish it there (git status says how), then sglwheel export {recipe.id}",
            )
    dirty = tree.run("status", "--porcelain", "--untracked-files=all").splitlines()
    if dirty:
        more = f"\nand {len(dirty) - 10} more" if len(dirty) > 10 else ""
        raise PatchError(
            "the workspace holds changes that no commit has",
            where={"workspace": shown, "files": "\n".join(dirty[:10]) + more},
            next="commit or remove them, and export again",
        )
