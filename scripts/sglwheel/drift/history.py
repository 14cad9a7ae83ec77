"""Upstream's history as far as it touches some files, following them when their directory moves."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from sglwheel.drift.revisions import FORMAT, Commit, describe, parse
from sglwheel.errors import PatchError, UsageError
from sglwheel.git import Git
from sglwheel.types import CommitId

# Beside the patched files: where a build's architectures, libraries, sources and requirements are declared.
WATCHED = ("CMakeLists.txt", "cmake", "pyproject.toml")
_EMPTY = "0" * 40


@dataclass(frozen=True)
class Step:
    """The files of interest at one commit.

    `paths` maps each file by its first name to where it is now, `blobs` each present path to its content's
    id, `directory` is the source directory then, or None when it is gone without a trace.
    """

    commit: Commit
    directory: str | None
    paths: Mapping[str, str]
    blobs: Mapping[str, str]


@dataclass(frozen=True)
class History:
    """The first step is the start of the range; each further one touched a file of interest, or is a mark.

    `line` holds every commit that was walked, the start first.
    """

    steps: tuple[Step, ...]
    end: Commit
    line: tuple[str, ...]


@dataclass
class _Where:
    """The names and contents of the files while the walk goes on."""

    directory: str | None
    paths: dict[str, str]
    blobs: dict[str, str] = field(default_factory=dict)

    def freeze(self, commit: Commit) -> Step:
        return Step(commit, self.directory, dict(self.paths), dict(self.blobs))

    def specs(self) -> list[str]:
        watched = [f"{self.directory}/{name}" for name in WATCHED] if self.directory else []
        return sorted({*self.paths.values(), *watched})


def walk(
    git: Git,
    start: CommitId,
    end: CommitId,
    directory: str,
    files: Iterable[str],
    marks: Iterable[CommitId] = (),
) -> History:
    """Walk the main line from `start` to `end`, following the directory where it moves.

    What brings one of `marks` into the line is a step, too, whatever it touches. Raises UsageError when `end`
    does not descend from `start`.
    """
    line = _line(git, start, end)
    where = _Where(directory, {file: file for file in files})
    _reset(git, where, start)
    steps = [where.freeze(describe(git, start))]
    place = {commit: number for number, (commit, _) in enumerate(line)}
    marked = sorted({at for mark in marks if (at := _brought(git, mark, line, place)) is not None})

    def catch_up(here: int) -> None:
        while marked and marked[0] <= here:
            at = marked.pop(0)
            if at < here:
                steps.append(where.freeze(describe(git, line[at][0])))

    begin = 0
    while True:
        for commit, changes in _touching(git, line[begin:], where.specs()):
            here = place[commit.id]
            catch_up(here)
            gone = [path for path, blob in changes.items() if blob is None and path in where.paths.values()]
            if gone and _follow(git, line[here], where, gone):
                _reset(git, where, commit.id)
                steps.append(where.freeze(commit))
                begin = here + 1
                break
            for path, blob in changes.items():
                if blob is None:
                    where.blobs.pop(path, None)
                else:
                    where.blobs[path] = blob
            steps.append(where.freeze(commit))
        else:
            catch_up(len(line))
            return History(tuple(steps), describe(git, end), (start, *place))


def _brought(
    git: Git, mark: CommitId, line: Sequence[tuple[str, str]], place: Mapping[str, int]
) -> int | None:
    """The index of the first commit of a line that has `mark` in its history, or None."""

    def holds(commit: str) -> bool:
        return git.run("merge-base", "--is-ancestor", mark, commit, accept=(0, 1, 128)).returncode == 0

    if mark in place:
        return place[mark]
    if not line or holds(line[0][1]) or not holds(line[-1][0]):
        return None
    return bisect.bisect_left(line, True, key=lambda link: holds(link[0]))


def _reset(git: Git, where: _Where, commit: str) -> None:
    specs = where.specs()
    listed = git.run("ls-tree", "-r", "-z", "--full-tree", commit, "--", *specs, failure=PatchError).stdout
    where.blobs = {}
    for entry in filter(None, listed.split("\0")):
        meta, path = entry.split("\t", 1)
        _, kind, blob = meta.split(" ")
        if kind == "blob":
            where.blobs[path] = blob


def _line(git: Git, start: CommitId, end: CommitId) -> list[tuple[str, str]]:
    """Each commit after `start` and the parent through which `start` is reached, oldest first.

    First parents, as long as they lead to `start`; at a merge of two lines, the first parent that does.
    """
    if start == end:
        return []
    listed = git.run("rev-list", "--first-parent", "--parents", f"{start}..{end}").stdout.splitlines()
    line = [(words[0], words[1] if len(words) > 1 else "") for words in map(str.split, reversed(listed))]
    if line and line[0][1] == start:
        return line
    listed = git.run("rev-list", "--ancestry-path", "--parents", f"{start}..{end}").stdout.splitlines()
    parents = {words[0]: words[1:] for words in map(str.split, listed)}
    line, commit = [], str(end)
    while commit != start:
        parent = next((one for one in parents.get(commit, []) if one == start or one in parents), None)
        if parent is None:
            raise UsageError(
                "the end of the range does not descend from its start",
                where={"from": start, "to": end},
                next="choose a commit that descends from the start",
            )
        line.append((commit, parent))
        commit = parent
    return line[::-1]


def _touching(
    git: Git, line: Sequence[tuple[str, str]], specs: Sequence[str]
) -> Iterator[tuple[Commit, dict[str, str | None]]]:
    """The commits of a line that change one of `specs`, and to which blobs (None: deleted)."""
    if not specs or not line:
        return
    done = git.run(
        "--literal-pathspecs",
        "diff-tree",
        "--stdin",
        "-r",
        "-z",
        "--raw",
        "--no-abbrev",
        "--no-renames",
        FORMAT,
        "--",
        *specs,
        input="".join(f"{commit} {parent}\n" for commit, parent in line).encode(),
        failure=PatchError,
    )
    for record in done.stdout.split("\x01")[1:]:
        identity, seconds, subject, *fields = record.split("\0")
        changes: dict[str, str | None] = {}
        tokens = iter(fields)
        for token in tokens:
            if ":" in token[:2]:
                blob = token.strip("\n").split(" ")[3]
                path = next(tokens)
                changes[path] = None if blob == _EMPTY else blob
        yield parse(f"{identity}\0{seconds}\0{subject}"), changes


def _follow(git: Git, link: tuple[str, str], where: _Where, gone: Sequence[str]) -> bool:
    """Find where files went that a commit took away; false when they are just deleted."""
    commit, _ = link
    renames = _renames(git, link, "-M100%")
    old = where.directory
    moved = _moved_directory(old, renames) if old is not None else None
    if old is not None and moved is not None and not _exists(git, commit, old):
        where.directory = moved
        for file, path in where.paths.items():
            if path in renames:
                where.paths[file] = renames[path]
            elif path.startswith(f"{old}/"):
                where.paths[file] = moved + path.removeprefix(old)
        return True
    lost = [path for path in gone if path not in renames]
    if lost:
        # Edited on the way: git compares contents, of the files of this one commit only.
        renames |= {path: new for path, new in _renames(git, link, "-M").items() if path in lost}
    found = {file: renames[path] for file, path in where.paths.items() if path in renames and path in gone}
    where.paths |= found
    return bool(found)


def _renames(git: Git, link: tuple[str, str], how: str) -> dict[str, str]:
    commit, parent = link
    done = git.run(
        "diff-tree", "-r", "-z", "--raw", "--no-abbrev", "--diff-filter=R", how, parent, commit,
        failure=PatchError,
    )  # fmt: skip
    tokens = iter(done.stdout.split("\0"))
    renames: dict[str, str] = {}
    for token in tokens:
        if token.startswith(":"):
            before, after = next(tokens), next(tokens)
            renames[before] = after
    return renames


def _moved_directory(old: str, renames: Mapping[str, str]) -> str | None:
    """Where most files of a directory went, keeping their place in it."""
    votes: dict[str, int] = {}
    for before, after in renames.items():
        if before.startswith(f"{old}/"):
            rest = before.removeprefix(old)
            if after.endswith(rest):
                target = after.removesuffix(rest)
                votes[target] = votes.get(target, 0) + 1
    best = max(votes, key=lambda target: votes[target], default=None)
    return best if best is not None and PurePosixPath(best).parts else None


def _exists(git: Git, commit: str, directory: str) -> bool:
    """Whether anything of a directory's own build is left; a README that stays behind is not."""
    done = git.run("ls-tree", "--full-tree", commit, "--", f"{directory}/CMakeLists.txt", failure=PatchError)
    return bool(done.stdout.strip())
