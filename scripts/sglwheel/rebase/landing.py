"""The end of a rebase: the new series and the recipe's pin, written so that an interruption is made good."""

from __future__ import annotations

import hashlib
import shutil
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sglwheel import files, patching
from sglwheel.errors import PatchError
from sglwheel.files import Layout
from sglwheel.git import Git
from sglwheel.git.objects import read_blobs
from sglwheel.patching import exporting
from sglwheel.patching.worktree import Tree
from sglwheel.rebase import carry, rebasestate
from sglwheel.rebase.rebasestate import Done, State, workspace
from sglwheel.series import Proof, Series
from sglwheel.series.patchfile import Patch, parse_patch
from sglwheel.types import CommitId


@dataclass(frozen=True)
class Report:
    """A finished rebase; `lines` are for a commit message, `locks` what became of the recipe's locks."""

    recipe: str
    series: str
    old: str
    new: str
    done: tuple[Done, ...]
    lines: tuple[str, ...]
    locks: tuple[str, ...] = ()


Relock = Callable[[], Sequence[str]]
"""Write the recipe's locks anew once its pin has changed, and say what became of them."""


def finish(layout: Layout, state: State, stack: Series, tree: Tree, relock: Relock) -> Report:
    """Write series, recipe and locks; each step can be repeated: an interrupted end is finished later."""
    _require_clean(layout, state, tree)
    pinned = recipe_path(layout, state.recipe)
    text = pinned.read_text("utf-8")
    new_text, _ = carry.recipe_text(
        text,
        state.recipe,
        commit=state.to,
        directory=state.directory,
        series=state.new_series,
        path=pinned,
    )
    if digest(text.encode()) != state.recipe_sha256 and text != new_text:
        raise PatchError(
            f"{layout.relative(pinned)} changed while it was being rebased",
            next=f"put it back, then sglwheel rebase {state.recipe} --continue",
        )
    exported = exporting.export(tree.git, state.new, "HEAD")
    known = {done.commit: done.name for done in state.done if done.commit}
    names = exporting.names(exported, stack.patches, known)
    _prove(layout, state, tree, [item.commit for item in exported], names, [item.text for item in exported])
    if state.new_series_existed and not _backup(layout, state.recipe).is_dir():
        with files.directory_atomic(_backup(layout, state.recipe)) as copy:
            shutil.copytree(stack.directory, copy, dirs_exist_ok=True)
    patches = list(zip(names, (item.text for item in exported), strict=True))
    exporting.write_series(layout, state.new_series, patches, directory=state.directory, keep=stack.directory)
    files.write_atomic(pinned, new_text)
    # The state goes last: what is killed while it locks is still in progress, and locks when it goes on.
    report = _report(layout, state)
    try:
        report = replace(report, locks=tuple(relock()))
    except OSError as error:
        raise PatchError(
            f"series and recipe are carried, but not the locks: {error.strerror or error}",
            where={"recipe": layout.relative(pinned)},
            next=f"make room, then sglwheel rebase {state.recipe} --continue",
        ) from error
    close(layout, state.recipe)
    return report


def landed(layout: Layout, state: State) -> bool:
    """Whether series and recipe are written already, and only the locks may be missing."""
    path = recipe_path(layout, state.recipe)
    text = path.read_text("utf-8")
    there, _ = carry.recipe_text(
        text,
        state.recipe,
        commit=state.to,
        directory=state.directory,
        series=state.new_series,
        path=path,
    )
    return state.phase == "finishing" and text == there and digest(text.encode()) != state.recipe_sha256


def _require_clean(layout: Layout, state: State, tree: Tree) -> None:
    dirty = tree.run("status", "--porcelain").splitlines()
    if dirty:
        raise PatchError(
            "the workspace holds changes that no commit has",
            where={"workspace": layout.relative(tree.path), "files": "\n".join(dirty[:10])},
            next=f"commit or remove them, then sglwheel rebase {state.recipe} --continue",
        )


def _prove(
    layout: Layout, state: State, tree: Tree, commits: list[CommitId], names: list[str], texts: list[bytes]
) -> None:
    """A carried patch must still have its effect: applying is not enough."""
    where: dict[str, str] = {}
    for commit, name, text in zip(commits, names, texts, strict=True):
        found = parse_patch(name, Path(f"{name}.patch"), text, shown=f"{name}.patch")
        if not isinstance(found, Patch):
            continue  # write_series says what is wrong with it
        for proof in found.proves:
            if proof.static:
                before, after = (
                    _holds(tree.git, f"{revision}", proof) for revision in (f"{commit}^", commit)
                )
                if before or not after:
                    when = "already before it" if before else "not even after it"
                    where[name] = f"`{proof}` holds {when}"
    if where:
        raise PatchError(
            "patches were carried, but prove nothing at the new commit",
            where={**where, "workspace": layout.relative(tree.path)},
            next="change the commits there (git rebase -i upstream), "
            f"then sglwheel rebase {state.recipe} --continue",
        )


def _holds(git: Git, revision: str, proof: Proof) -> bool:
    done = git.run("rev-parse", "--verify", "--quiet", f"{revision}:{proof.path}", accept=(0, 1, 128))
    blob = done.stdout.strip()
    text = read_blobs(git, [blob]).get(blob, b"") if done.returncode == 0 else b""
    return patching.proof_holds(proof, text)


def _report(layout: Layout, state: State) -> Report:
    moved = f", now in {state.directory}" if state.paths else ""
    series_change = (
        state.series if state.series == state.new_series else f"{state.series} → {state.new_series}"
    )
    lines = [
        f"Rebase {state.recipe} to {state.new} ({state.new_date})",
        "",
        f"From {state.old} ({state.old_date}); series {series_change}{moved}.",
        "",
    ]
    size = max((len(done.name) for done in state.done), default=0)
    lines += [f"{done.name:<{size}}  {done.action:<12}  {done.why}".rstrip() for done in state.done]
    if state.notices:
        lines += ["", "Upstream also has:", *(f"- {notice}" for notice in state.notices)]
    if state.series != state.new_series and not [
        one for one in users(layout, state.series) if one != state.recipe
    ]:
        lines += ["", f"No recipe uses patches/{state.series} any more."]
    return Report(state.recipe, state.new_series, state.old, state.new, tuple(state.done), tuple(lines))


def take_back(layout: Layout, state: State) -> None:
    """Undo an end that got as far as the series and not to the recipe."""
    if digest(recipe_path(layout, state.recipe).read_bytes()) != state.recipe_sha256:
        return
    written, backup = layout.patches / state.new_series, _backup(layout, state.recipe)
    if not state.new_series_existed:
        shutil.rmtree(written, ignore_errors=True)
    elif backup.is_dir():
        files.swap_directories(backup, written)


def users(layout: Layout, name: str) -> list[str]:
    """Recipes that use a series; one that cannot be read is not asked."""
    found: list[str] = []
    for path in sorted(layout.recipes.glob("*.toml")):
        try:
            if tomllib.loads(path.read_text("utf-8")).get("source", {}).get("series") == name:
                found.append(path.stem)
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, AttributeError):
            continue
    return found


def _backup(layout: Layout, recipe: str) -> Path:
    """The series as it was, while one of the same name replaces it."""
    return layout.work / recipe / "rebase-series"


def close(layout: Layout, recipe: str) -> None:
    """The state goes first: what is left without it is swept by the next rebase."""
    rebasestate.file(layout, recipe).unlink(missing_ok=True)
    shutil.rmtree(workspace(layout, recipe), ignore_errors=True)
    shutil.rmtree(_backup(layout, recipe), ignore_errors=True)


def recipe_path(layout: Layout, recipe: str) -> Path:
    return layout.recipes / f"{recipe}.toml"


def digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()
