"""Apply a series to an upstream commit: `git am -3` in a disposable worktree, kept as a plain directory."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from sglwheel import console, files
from sglwheel.errors import PatchError
from sglwheel.files import Layout
from sglwheel.git import Git
from sglwheel.patching import plaintree, trials
from sglwheel.patching.worktree import State, Worktree, abort, am
from sglwheel.recipe import Recipe
from sglwheel.series import Patch, Proof, Series
from sglwheel.series.predicates import Facts, Verdict
from sglwheel.types import CommitId

# Part of every key: raised when the same input would give another tree or record.
_FORMAT = 1


class Base(Protocol):
    """What of a checkout is needed here: its repository, and the exact commit."""

    @property
    def repository(self) -> Path: ...
    @property
    def commit(self) -> CommitId: ...
    @property
    def date(self) -> datetime: ...


@dataclass(frozen=True)
class PatchState:
    """What became of one patch; `files`, `added` and `removed` are what it changed here, not what it says."""

    name: str
    state: State
    because: str
    commit: str | None
    files: tuple[str, ...]
    added: int
    removed: int
    forced: bool = False
    """Applied for --all although nothing needs it: it has nothing to prove."""


@dataclass(frozen=True)
class PatchedTree:
    """Upstream plus series. `path` is a plain directory, the same for the same tree, without git's files."""

    path: Path
    commit: CommitId
    tree: str
    base: CommitId
    patches: tuple[PatchState, ...]


def apply(
    checkout: Base, series: Series, facts: Facts, layout: Layout, recipe: Recipe, *, all: bool = False
) -> PatchedTree:
    """Apply the patches that are needed (`all`: every one) and leave the tree under work/<id>/.

    The commit id depends on upstream and series only. Raises PatchError for a conflict, for a patch that is
    unexpectedly upstream or obsolete, and for one that proves nothing; nothing is left behind then.
    """
    verdicts = tuple(_verdict(patch, facts, force=all) for patch in series.patches)
    work = layout.work / recipe.id
    directory = recipe.source.directory
    record = work / "patched" / f"{_key(checkout, series, verdicts, directory)[:20]}.json"
    if (known := _known(record, work)) is not None:
        return known
    with files.locked(work / "src.lock", failure=PatchError, what=f"the source tree of {recipe.id}"):
        if (known := _known(record, work)) is not None:
            return known
        with Worktree(Git(checkout.repository), checkout.commit, work, (directory,)) as tree:
            job = _Job(tree, series, verdicts, layout, recipe, checkout)
            states = job.run()
            patched = _keep(tree, checkout, work, states)
        document = asdict(patched) | {"path": patched.path.name}
        files.write_atomic(record, json.dumps(document, indent=1) + "\n")
        return patched


def status(
    checkout: Base, series: Series, facts: Facts, layout: Layout, recipe: Recipe, *, all: bool = False
) -> tuple[tuple[PatchState, ...], tuple[PatchError, ...]]:
    """The state of every patch, also of those after one that fails, and an error for each that does."""
    verdicts = tuple(_verdict(patch, facts, force=all) for patch in series.patches)
    work = layout.work / recipe.id
    with (
        files.locked(work / "src.lock", failure=PatchError, what=f"the source tree of {recipe.id}"),
        Worktree(Git(checkout.repository), checkout.commit, work, (recipe.source.directory,)) as tree,
    ):
        return _Job(tree, series, verdicts, layout, recipe, checkout).survey()


def _verdict(patch: Patch, facts: Facts, *, force: bool) -> tuple[Verdict, bool]:
    """The verdict, and whether --all overrules it."""
    verdict = patch.needed_when.evaluate(facts)
    if force and not verdict.needed:
        return Verdict(True, f"--all, although {verdict.because}"), True
    return verdict, False


def _key(checkout: Base, series: Series, verdicts: Sequence[tuple[Verdict, bool]], directory: str) -> str:
    facts: list[object] = [_FORMAT, checkout.commit, series.digest, directory]
    facts += [[verdict.needed, verdict.because, forced] for verdict, forced in verdicts]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


class _Job:
    """One run over a series: applies patch after patch and keeps the log."""

    def __init__(
        self,
        tree: Worktree,
        series: Series,
        verdicts: Sequence[tuple[Verdict, bool]],
        layout: Layout,
        recipe: Recipe,
        checkout: Base,
    ) -> None:
        self._tree = tree
        self._series = series
        self._verdicts = verdicts
        self._layout = layout
        self._recipe = recipe
        self._checkout = checkout
        self._log = layout.work / recipe.id / "patch.log"
        self._lines: list[str] = []

    def run(self) -> tuple[PatchState, ...]:
        """Apply all, or raise at the first that fails."""
        states, errors = self.survey(stop=True)
        if errors:
            raise errors[0]
        return states

    def survey(self, *, stop: bool = False) -> tuple[tuple[PatchState, ...], tuple[PatchError, ...]]:
        """Apply what can be applied; a patch that fails is left out, and the next one tried."""
        states: list[PatchState] = []
        errors: list[PatchError] = []
        try:
            for patch, (verdict, forced) in zip(self._series.patches, self._verdicts, strict=True):
                if not verdict.needed:
                    state = PatchState(patch.name, "not-needed", verdict.because, None, (), 0, 0)
                else:
                    state, error = self._one(patch, verdict)
                    state = replace(state, forced=forced)
                    error = error or self._judgement(patch, state, forced=forced)
                    if error is not None:
                        errors.append(error)
                states.append(state)
                self._lines.append(f"{patch.name}: {state.state} ({state.because})")
                if errors and stop:
                    break
                if state.state in ("conflict", "obsolete"):
                    abort(self._tree)
        finally:
            files.write_atomic(self._log, "\n".join(self._lines) + "\n")
        return tuple(states), tuple(errors)

    def _one(self, patch: Patch, verdict: Verdict) -> tuple[PatchState, PatchError | None]:
        before = [holds(proof, self._tree.path) for proof in patch.proves if proof.static]
        head = self._tree.head()
        state, because, detail = am(self._tree, patch, self._bases)
        self._lines += [f"$ git am -3 {patch.path.name}", *detail.splitlines()]
        if state in ("conflict", "obsolete", "already-upstream"):
            return PatchState(patch.name, state, because, None, (), 0, 0), None
        nothing: list[str] = []
        for proof, held in zip((proof for proof in patch.proves if proof.static), before, strict=True):
            if held:
                nothing.append(f"`{proof}` holds before it is applied")
            elif not holds(proof, self._tree.path):
                nothing.append(f"`{proof}` does not hold after it is applied")
        error = self._error(patch, "proves nothing", {"proof": "\n".join(nothing)}) if nothing else None
        changed = self._numstat(head)
        untouched = [file for file in patch.files if file not in changed]
        reasons = [verdict.because, because] if because else [verdict.because]
        if untouched and len(changed) < len(patch.files):
            reasons.append(f"upstream has its change of {', '.join(untouched)} already")
        result = PatchState(
            patch.name,
            state,
            "; ".join(reasons),
            self._tree.head(),
            tuple(changed),
            sum(added for added, _ in changed.values()),
            sum(removed for _, removed in changed.values()),
        )
        return result, error

    def _bases(self) -> Iterable[bytes]:
        return trials.bases(self._tree.git, self._series)

    def _numstat(self, before: str) -> dict[str, tuple[int, int]]:
        text = self._tree.run("diff-tree", "-r", "--no-renames", "--numstat", "-z", before, "HEAD")
        found: dict[str, tuple[int, int]] = {}
        for entry in filter(None, text.split("\0")):
            added, removed, path = entry.split("\t", 2)
            found[path] = (int(added), int(removed))
        return found

    def _judgement(self, patch: Patch, state: PatchState, *, forced: bool) -> PatchError | None:
        if state.state == "conflict":
            return self._error(
                patch,
                "does not apply",
                {"file": state.because},
                next=f"nox -s rebase -- {self._recipe.id} --to {self._checkout.commit.short}",
            )
        # What --all forces was not expected to be missing upstream.
        if forced or state.state in ("applied", "applied-3way"):
            return None
        return self._error(
            patch,
            "is upstream already" if state.state == "already-upstream" else "has lost its target",
            {"because": state.because},
            next="drop it with nox -s rebase, or say so: Needed-When: upstream lacks <commit>",
        )

    def _error(
        self, patch: Patch, what: str, where: dict[str, str], *, next: str | None = None
    ) -> PatchError:
        number = self._series.patches.index(patch) + 1
        shown = self._layout.relative(patch.path)
        base = self._checkout
        self._lines.append(f"{patch.name}: {what}: {' '.join(where.values())}")
        return PatchError(
            f"patch {number} of {len(self._series.patches)} {what}: {shown}",
            where={"onto": f"{base.commit.short} ({base.date:%Y-%m-%d})", **where},
            next=next or f"sglwheel patch {self._recipe.id} --edit",
            log=self._log,
        )


def holds(proof: Proof, root: Path) -> bool:
    """Whether a proof about a file is true of the tree at `root`; a file that is not there is empty."""
    path = root / proof.path
    return proof_holds(proof, path.read_bytes() if path.is_file() else b"")


def proof_holds(proof: Proof, text: bytes) -> bool:
    """Whether a proof about a file is true of its text."""
    contained = proof.argument.encode() in text
    return contained if proof.kind == "file-contains" else not contained


def _keep(tree: Worktree, checkout: Base, work: Path, states: tuple[PatchState, ...]) -> PatchedTree:
    """Turn the worktree into the plain directory work/<id>/src-<tree>, or keep the one that is there."""
    commit, id = tree.head(), tree.git.tree("HEAD", failure=PatchError)
    final = work / f"src-{id[:12]}"
    if not plaintree.clean(final):
        (tree.path / ".git").unlink()
        edited = plaintree.edited(final) if final.exists() else ()
        aside = plaintree.keep(tree.path, final, int(checkout.date.timestamp()) * 10**9)
        if edited:
            console.warn(f"somebody edited the patched tree, which is {aside} now: {', '.join(edited)}")
    return PatchedTree(final, commit, id, checkout.commit, states)


def _known(record: Path, work: Path) -> PatchedTree | None:
    """What an earlier run left, if its tree is still as it was made."""
    try:
        value: Any = json.loads(record.read_text())
        patched = PatchedTree(
            work / value["path"],
            CommitId.parse(value["commit"]),
            value["tree"],
            CommitId.parse(value["base"]),
            tuple(PatchState(**{**item, "files": tuple(item["files"])}) for item in value["patches"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return patched if plaintree.clean(patched.path) else None
