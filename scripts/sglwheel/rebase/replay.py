"""The middle of a rebase: patch after patch onto the new commit, and what people make of conflicts."""

from __future__ import annotations

from functools import partial

from sglwheel.errors import PatchError
from sglwheel.files import Layout
from sglwheel.patching import trials
from sglwheel.patching.worktree import Tree, abort, am
from sglwheel.rebase import carry, rebasestate
from sglwheel.rebase.rebasestate import Action, Done, State, workspace
from sglwheel.series import Series
from sglwheel.series.patchfile import Patch


def advance(layout: Layout, state: State, stack: Series, tree: Tree) -> None:
    """Apply one more patch, from exactly the commit that the state names."""
    if len(state.done) == len(stack.patches):
        state.phase = "finishing"
        rebasestate.save(layout, state)
        return None
    patch = stack.patches[len(state.done)]
    if patch.name in state.skips:
        return _record(layout, state, tree, Done(patch.name, "skipped", state.skips[patch.name]))
    if patch.name in state.drops:
        return _record(layout, state, tree, Done(patch.name, "dropped", state.drops[patch.name]))
    # Whatever a killed run left half-done here; nobody was asked to work in it.
    abort(tree)
    tree.run("reset", "--quiet", "--hard", state.head)
    tree.run("clean", "--quiet", "-d", "--force")
    carried = carry.patch(patch, state.paths)
    result, because, _ = am(tree, carried, partial(trials.bases, tree.git, stack))
    if result in ("applied", "applied-3way"):
        moved = next((state.paths[file] for file in patch.files if file in state.paths), None)
        why = f"now in {moved}" if moved and result == "applied" else because
        action: Action = "carried" if result == "applied" else "carried-3way"
        return _record(layout, state, tree, Done(patch.name, action, why, tree.head()))
    if result == "conflict":
        state.phase = "conflict"
        rebasestate.save(layout, state)
        raise _stopped(layout, state, stack, patch, because)
    abort(tree)
    broke = f" ({state.broke[patch.name]})" if patch.name in state.broke else ""
    return _record(layout, state, tree, Done(patch.name, "dropped", because + broke))


def _record(layout: Layout, state: State, tree: Tree, done: Done) -> None:
    state.done.append(done)
    state.head = done.commit or state.head
    state.phase = "applying"
    rebasestate.save(layout, state)


def _stopped(layout: Layout, state: State, stack: Series, patch: Patch, places: str) -> PatchError:
    here = layout.relative(workspace(layout, state.recipe))
    number = stack.patches.index(patch) + 1
    upstream = state.broke.get(patch.name, f"between {state.old[:9]} and {state.new[:9]}")
    return PatchError(
        f"patch {number} of {len(stack.patches)} conflicts: {layout.relative(patch.path)}",
        where={
            "onto": f"{state.to.short} ({state.new_date})",
            "file": places,
            "ours": patch.subject,
            "upstream": upstream,
            "work in": here,
        },
        next=f"edit and `git add` the files there, then sglwheel rebase {state.recipe} --continue\n"
        f"or sglwheel rebase {state.recipe} --skip {patch.name} --why '…', or --abort",
    )


def resolve(layout: Layout, state: State, stack: Series, tree: Tree) -> None:
    """Take what a person made of a conflict. Raises PatchError, and touches nothing, when it is not done."""
    patch = stack.patches[len(state.done)]
    if patch.name in state.skips:
        abort(tree)
        tree.run("reset", "--quiet", "--hard", state.head)
        return _record(layout, state, tree, Done(patch.name, "skipped", state.skips[patch.name]))
    why = f"resolved by hand: {state.broke.get(patch.name, 'conflict')}"
    if tree.git_path("rebase-apply").is_dir():
        _require_resolved(layout, state, tree)
        if tree.status("diff", "--cached", "--quiet", "HEAD", accept=(0, 1))[0] == 0:
            tree.run("am", "--skip")
            return _record(layout, state, tree, Done(patch.name, "dropped", f"{why}; nothing was left of it"))
        tree.run("am", "--committer-date-is-author-date", "--no-gpg-sign", "--continue")
    head = tree.head()
    grown = tree.status("merge-base", "--is-ancestor", state.head, head, accept=(0, 1))[0] == 0
    if head == state.head or not grown:
        raise PatchError(
            f"the workspace holds no commit for {patch.name}",
            where={"workspace": layout.relative(tree.path), "expected after": state.head},
            next=f"commit it there, or sglwheel rebase {state.recipe} --skip {patch.name} --why '…'",
        )
    return _record(layout, state, tree, Done(patch.name, "resolved", why, head))


def _require_resolved(layout: Layout, state: State, tree: Tree) -> None:
    bad: list[str] = []
    unmerged = sorted(
        {line.split("\t", 1)[1] for line in tree.run("ls-files", "-u", "-z").split("\0") if line}
    )
    for name in unmerged:
        path = tree.path / name
        lines = path.read_bytes().split(b"\n") if path.is_file() else []
        marker = next((at for at, line in enumerate(lines, 1) if line.startswith(b"<<<<<<< ")), 0)
        bad.append(
            f"{name}:{marker} has conflict markers" if marker else f"{name} needs `git add` or `git rm`"
        )
    staged = tree.run("diff", "--cached", "--check", accept=(0, 2)) if not unmerged else ""
    bad += [line for line in staged.splitlines() if line.endswith("leftover conflict marker")]
    changed = tree.run("diff", "--name-only").splitlines()
    loose = [*changed, *tree.run("ls-files", "--others", "--exclude-standard").splitlines()]
    bad += [f"{name} is changed, and not added" for name in dict.fromkeys(loose) if name not in unmerged]
    if bad:
        raise PatchError(
            "the conflict is not resolved yet",
            where={"workspace": layout.relative(tree.path), "files": "\n".join(bad)},
            next=f"git add them there, then sglwheel rebase {state.recipe} --continue",
        )
