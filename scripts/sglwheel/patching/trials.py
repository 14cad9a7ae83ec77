"""What `git am -3` would do with a series at many commits: in memory, and batched where it needs a merge."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from sglwheel.git import Git
from sglwheel.git.objects import Scratch, object_id, read_blobs
from sglwheel.patching.worktree import State
from sglwheel.series import Series, hunks
from sglwheel.series.hunks import MissError
from sglwheel.series.patchfile import Patch

Fetch = Callable[[Iterable[str]], object]
# What a patch sees of one commit: for each file its name in the patch, its name there, its content (an id).
_Sight = tuple[tuple[str, str, str | None], ...]


@dataclass(frozen=True)
class Place:
    """The files of a series at one commit: by their names in the patches, name there and content's id."""

    paths: dict[str, str]
    blobs: dict[str, str]


@dataclass(frozen=True)
class Outcome:
    """One patch at one commit; `detail` says where or why, in few words."""

    state: State
    detail: str = ""


@dataclass
class _Trial:
    """One distinct case: an outcome, and the contents that it leads to."""

    outcome: Outcome
    after: dict[str, str | None]


class Contents:
    """Blobs by their ids: upstream's, read at need in batches, and those that patches make."""

    def __init__(self, git: Git, fetch: Fetch) -> None:
        self._git = git
        self._fetch = fetch
        self._known: dict[str, bytes] = {}

    def load(self, ids: Iterable[str]) -> None:
        """Read what is not known yet; what does not exist stays unknown."""
        wanted = {item for item in ids if item not in self._known}
        if wanted:
            self._fetch(wanted)
            self._known |= read_blobs(self._git, wanted)

    def add(self, data: bytes) -> str:
        name = object_id("blob", data)
        self._known[name] = data
        return name

    def get(self, name: str) -> bytes | None:
        return self._known.get(name)

    def __getitem__(self, name: str) -> bytes:
        return self._known[name]

    def update(self, found: dict[str, bytes]) -> None:
        self._known |= found


def preimages(contents: Contents, series: Series) -> dict[str, bytes]:
    """The contents that the patches were made from, by id.

    Only the first patch of a file names a blob of upstream's; the others are made by applying those before.
    """
    made = {diff.new_blob for patch in series.patches for diff in patch.diffs}
    olds = [diff.old_blob for patch in series.patches for diff in patch.diffs if not diff.created]
    contents.load(blob for blob in olds if blob not in made)
    found: dict[str, bytes] = {}
    for patch in series.patches:
        for diff in patch.diffs:
            if diff.created:
                continue
            before = contents.get(diff.old_blob)
            if before is None:
                continue
            found[diff.old_blob] = before
            try:
                after = hunks.apply(diff, before)
            except MissError:
                continue
            if after is not None:
                contents.add(after)
    return found


def bases(git: Git, series: Series) -> Iterable[bytes]:
    """The same for one repository; a promisor remote is asked for what is missing."""
    return preimages(Contents(git, lambda _ids: None), series).values()


def run(
    git: Git,
    series: Series,
    places: Sequence[Place],
    needed: Callable[[int, Patch], bool],
    contents: Contents,
) -> list[dict[str, Outcome]]:
    """The outcome of every patch that is needed at every place.

    Goes patch by patch over all places, so that one git process can do all merges of a patch.
    """
    contents.load(blob for place in places for blob in place.blobs.values())
    preimages(contents, series)
    current: list[dict[str, str | None]] = [
        {file: place.blobs.get(place.paths.get(file, file)) for file in series.files} for place in places
    ]
    results: list[dict[str, Outcome]] = [{} for _ in places]
    with Scratch(git) as scratch:
        for patch in series.patches:
            sights: dict[int, _Sight] = {}
            for number, (place, files) in enumerate(zip(places, current, strict=True)):
                if needed(number, patch):
                    sights[number] = tuple(
                        (file, place.paths.get(file, file), files[file]) for file in patch.files
                    )
            trials = _Round(patch, contents, scratch, git).judge(set(sights.values()))
            for number, sight in sights.items():
                results[number][patch.name] = trials[sight].outcome
                current[number] |= trials[sight].after
    return results


class _Round:
    """One patch against every distinct content of its files."""

    def __init__(self, patch: Patch, contents: Contents, scratch: Scratch, git: Git) -> None:
        self._patch = patch
        self._contents = contents
        self._scratch = scratch
        self._git = git

    def judge(self, sights: Iterable[_Sight]) -> dict[_Sight, _Trial]:
        trials: dict[_Sight, _Trial] = {}
        merges: list[tuple[_Sight, str]] = []
        for sight in sorted(sights, key=repr):
            found = self._exact(sight)
            if isinstance(found, _Trial):
                trials[sight] = found
            else:
                merges.append((sight, found))
        trials |= self._merged(merges)
        return trials

    def _exact(self, sight: _Sight) -> _Trial | str:
        after: dict[str, str | None] = {}
        moved = [(file, path) for file, path, _ in sight if file != path]
        for diff, (file, path, blob) in zip(self._patch.diffs, sight, strict=True):
            try:
                new = hunks.apply(diff, None if blob is None else self._contents[blob])
            except MissError as error:
                return f"{path}:{error.line} {error.reason}"
            after[file] = None if new is None else self._contents.add(new)
        if moved:
            # Plain `git am` would not find the file: it takes -3, which follows renames.
            return _Trial(Outcome("applied-3way", f"{moved[0][0]} is now {moved[0][1]}"), after)
        return _Trial(Outcome("applied"), after)

    def _merged(self, merges: Sequence[tuple[_Sight, str]]) -> dict[_Sight, _Trial]:
        trials: dict[_Sight, _Trial] = {}
        prepared: list[tuple[_Sight, str, str]] = []
        pairs: list[tuple[str, str]] = []
        sides = self._sides()
        for sight, why in merges:
            if sides is None:
                trials[sight] = self._without_base(sight, why)
                continue
            base, theirs = sides
            names = {f"f{number}": blob for number, (_, _, blob) in enumerate(sight) if blob is not None}
            for blob in names.values():
                self._scratch.blob(self._contents[blob])
            tree = self._scratch.tree(names)
            pairs.append((self._scratch.commit(tree, base), theirs))
            prepared.append((sight, why, tree))
        merged = self._scratch.merge(pairs)
        trees = self._scratch.trees(tree for _, tree, _ in merged)
        blobs = {blob for entries in trees.values() for blob in entries.values()}
        unread = {blob for blob in blobs if self._contents.get(blob) is None}
        self._contents.update(read_blobs(self._git, unread, env=self._scratch.env))
        for (sight, why, ours), (clean, tree, stages) in zip(prepared, merged, strict=True):
            trials[sight] = self._judge_merge(sight, why, ours, clean, tree, stages, trees[tree])
        return trials

    def _sides(self) -> tuple[str, str] | None:
        """Commits of what the patch was made from, and of what it makes of that."""
        base: dict[str, str] = {}
        theirs: dict[str, str] = {}
        for number, diff in enumerate(self._patch.diffs):
            before = None if diff.created else self._contents.get(diff.old_blob)
            if before is None and not diff.created:
                return None
            try:
                after = hunks.apply(diff, before)
            except MissError:
                return None
            if before is not None:
                base[f"f{number}"] = self._scratch.blob(before)
            if after is not None:
                theirs[f"f{number}"] = self._scratch.blob(after)
        root = self._scratch.commit(self._scratch.tree(base))
        return root, self._scratch.commit(self._scratch.tree(theirs), root)

    def _without_base(self, sight: _Sight, why: str) -> _Trial:
        targets = [
            (path, blob)
            for diff, (_, path, blob) in zip(self._patch.diffs, sight, strict=True)
            if not diff.created
        ]
        if targets and all(blob is None for _, blob in targets):
            return _Trial(Outcome("obsolete", f"{targets[0][0]} is gone"), {})
        return _Trial(Outcome("conflict", f"{why}; what it was made from is not in upstream"), {})

    def _judge_merge(
        self,
        sight: _Sight,
        why: str,
        ours: str,
        clean: bool,
        tree: str,
        stages: dict[str, set[int]],
        entries: dict[str, str],
    ) -> _Trial:
        if clean and tree == ours:
            return _Trial(Outcome("already-upstream", "nothing is left to change"), {})
        if clean:
            after = {file: entries.get(f"f{number}") for number, (file, _, _) in enumerate(sight)}
            return _Trial(Outcome("applied-3way", why), after)
        lost = [name for name, found in stages.items() if 2 not in found]
        path = {f"f{number}": path for number, (_, path, _) in enumerate(sight)}
        if len(lost) == len(stages):
            return _Trial(Outcome("obsolete", f"{path[sorted(lost)[0]]} is gone"), {})
        places = []
        for name in sorted(stages):
            line = _first_marker(self._contents.get(entries.get(name, "")) or b"")
            places.append(f"{path[name]}:{line}" if line else f"{path[name]} is gone")
        return _Trial(Outcome("conflict", ", ".join(places)), {})


def _first_marker(text: bytes) -> int:
    return next((at for at, line in enumerate(text.split(b"\n"), 1) if line.startswith(b"<<<<<<< ")), 0)
