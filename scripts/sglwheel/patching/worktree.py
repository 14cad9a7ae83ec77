"""A disposable, sparse worktree of an upstream store, and `git am -3` in it with the answer as a value."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Literal

from sglwheel.errors import PatchError
from sglwheel.git import Git, require_git
from sglwheel.git.objects import Scratch, read_blobs, seed
from sglwheel.process import Completed
from sglwheel.series.patchfile import Patch
from sglwheel.types import CommitId

State = Literal["applied", "applied-3way", "already-upstream", "not-needed", "obsolete", "conflict"]
_LICENCES = ("/LICENSE*", "/NOTICE*")
# For the commands that people type; ours pin these by themselves.
_WORKSPACE = {
    "core.autocrlf": "false",
    "core.hooksPath": os.devnull,
    "core.sparseCheckout": "true",
    "core.sparseCheckoutCone": "false",
    "commit.gpgSign": "false",
    "gc.auto": "0",
    "merge.conflictStyle": "diff3",
}


class Tree:
    """A work tree with sparse patterns, and git commands in it that pin identity and configuration."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.git = Git(path)

    def run(
        self, *args: str | os.PathLike[str], accept: Sequence[int] = (0,), input: bytes | None = None
    ) -> str:
        """A git command here; gives its output."""
        return self._run(args, accept, input).stdout

    def status(
        self, *args: str | os.PathLike[str], accept: Sequence[int] = (0,), input: bytes | None = None
    ) -> tuple[int, str]:
        """A git command here; gives its exit status and all that it says."""
        done = self._run(args, accept, input)
        return done.returncode, done.stdout + done.stderr

    def unlock(self) -> None:
        """Remove the locks that killed git commands left; not while a git command works here."""
        locks = [path for path in (self.path / ".git").rglob("*.lock") if path.is_file()]
        if locks and not _somebody_works_in(self.path):
            for path in locks:
                path.unlink(missing_ok=True)

    def _run(
        self, args: Sequence[str | os.PathLike[str]], accept: Sequence[int], input: bytes | None
    ) -> Completed:
        sparse = ("-c", "core.sparseCheckout=true", "-c", "core.sparseCheckoutCone=false")
        return self.git.run(
            *sparse,
            *args,
            accept=accept,
            input=input,
            env=Git.identity_env(),
            failure=PatchError,
            what=f"git {os.fspath(args[0])}",
        )

    def head(self) -> CommitId:
        return self.git.resolve("HEAD", failure=PatchError)

    def git_path(self, name: str) -> Path:
        """Where git keeps `name` for this work tree."""
        return Path(self.run("rev-parse", "--path-format=absolute", "--git-path", name).strip())

    def populate(self, sparse: Sequence[str]) -> None:
        """Write the files of HEAD below the directories `sparse`, and upstream's licences."""
        # Not `git sparse-checkout`: it would turn on a setting of the store that other worktrees see.
        patterns = self.git_path("info/sparse-checkout")
        lines = [*_LICENCES, *(f"/{directory.strip('/')}/" for directory in sparse)]
        patterns.parent.mkdir(parents=True, exist_ok=True)
        patterns.write_text("".join(f"{line}\n" for line in lines))
        # Fetches what is missing in one go, where `checkout-index` would ask for each blob by itself.
        self.run("read-tree", "-m", "-u", "HEAD")


class Worktree(Tree):
    """A worktree of a (bare, blobless) store that is gone when the block ends, unless its files were kept."""

    def __init__(self, store: Git, commit: str, parent: Path, sparse: Sequence[str]) -> None:
        super().__init__(parent)
        self._store = store
        self._commit = commit
        self._parent = parent
        self._sparse = sparse

    def __enter__(self) -> Worktree:
        require_git()
        self._parent.mkdir(parents=True, exist_ok=True)
        # What a killed run left; the caller holds the lock, so nobody works there.
        for stale in self._parent.glob(".src-*.tmp"):
            shutil.rmtree(stale)
        self._prune()
        self.path = Path(tempfile.mkdtemp(prefix=".src-", suffix=".tmp", dir=self._parent))
        self.git = Git(self.path)
        try:
            add = ("worktree", "add", "--quiet", "--detach", "--no-checkout")
            self._store.run(*add, self.path, self._commit, failure=PatchError)
            self.populate(self._sparse)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        self._prune()

    def _prune(self) -> None:
        self._store.run("worktree", "prune", failure=PatchError)


class Workspace(Tree):
    """A repository of its own for people to work in, which borrows the objects of a store.

    Nothing that happens to the store's references or worktrees can lose what is committed here.
    """

    @classmethod
    def create(cls, store: Git, commit: str, path: Path, sparse: Sequence[str]) -> Workspace:
        """Make `path`, which must be empty, with `commit` as its detached HEAD."""
        Git.init(path, bare=False, failure=PatchError)
        tree = cls(path)
        objects = store.run(
            "rev-parse", "--path-format=absolute", "--git-path", "objects", failure=PatchError
        )
        (path / ".git/objects/info").mkdir(parents=True, exist_ok=True)
        (path / ".git/objects/info/alternates").write_text(objects.stdout)
        shallow = store.run(
            "rev-parse", "--path-format=absolute", "--git-path", "shallow", failure=PatchError
        )
        if (boundary := Path(shallow.stdout.strip())).is_file():
            shutil.copyfile(boundary, path / ".git/shallow")
        for entry in store.run("config", "--list", "--local", "-z", failure=PatchError).stdout.split("\0"):
            key, _, value = entry.partition("\n")
            if key.startswith(("remote.", "extensions.partialclone", "core.repositoryformatversion")):
                tree.git.run("config", key, value, failure=PatchError)
        for key, value in _WORKSPACE.items():
            tree.git.run("config", key, value, failure=PatchError)
        tree.git.run("update-ref", "--no-deref", "HEAD", commit, failure=PatchError)
        tree.git.run("update-ref", "refs/tags/upstream", commit, failure=PatchError)
        tree.populate(sparse)
        return tree


def am(tree: Tree, patch: Patch, bases: Callable[[], Iterable[bytes]] = tuple) -> tuple[State, str, str]:
    """Apply one patch where HEAD is clean; gives state, explanation and git's own words.

    `bases` gives the contents that the series was made from, for when the repository has not got them. On
    conflict the tree is left as `git am` leaves it.
    """
    head = tree.head()
    status, words = _am(tree, patch)
    if status and "lacks necessary blobs" in words and (found := list(bases())):
        # They exist only where the series was applied before; the answer must not depend on that.
        abort(tree)
        seed(tree.git, found)
        status, words = _am(tree, patch)
    if status and _am_in_progress(tree) and _settle(tree):
        status = 0
    if status == 0 and tree.head() != head:
        if "Falling back to patching base and 3-way merge" in words:
            return "applied-3way", "merged 3-way", words
        return "applied", "", words
    if status == 0:
        # `am -3` ends well without a commit: nothing was left to change.
        return "already-upstream", f"upstream has all changes to {', '.join(patch.files)}", words
    if not _am_in_progress(tree):
        raise PatchError(f"git am failed on {patch.name}: {words.strip()}")
    gone, places = _places(tree, patch, words)
    if gone:
        return "obsolete", f"{', '.join(gone)}: not there any more", words
    return "conflict", "\n".join(places), words


# Said again when an `am` goes on: git forgets them.
_AM = ("--committer-date-is-author-date", "--no-gpg-sign")


def _am(tree: Tree, patch: Patch) -> tuple[int, str]:
    flags = ("--3way", "--keep-cr", "--keep-non-patch", "--no-message-id", "--no-scissors")
    return tree.status("am", *_AM, *flags, "--whitespace=nowarn", input=patch.text, accept=(0, 1, 128))


def _settle(tree: Tree) -> bool:
    """Finish a stopped `am -3` as git 2.50 and later would: with its newer merge, where that has no conflict.

    Older ones merge with the Myers diff, newer ones with histogram; the result must be the same everywhere.
    """
    stages = _stages(tree)
    if not stages or any(found.keys() != {1, 2, 3} for found in stages.values()):
        return False
    names = {f"f{number}": path for number, path in enumerate(sorted(stages))}
    with Scratch(tree.git) as scratch:
        trees = [
            scratch.tree({name: stages[path][stage] for name, path in names.items()}) for stage in (1, 2, 3)
        ]
        base = scratch.commit(trees[0])
        ((clean, merged, _),) = scratch.merge(
            [(scratch.commit(trees[1], base), scratch.commit(trees[2], base))]
        )
        if not clean:
            return False
        entries = scratch.trees([merged])[merged]
        texts = read_blobs(tree.git, entries.values(), env=scratch.env)
    for name, path in names.items():
        (tree.path / path).write_bytes(texts[entries[name]])
    tree.run("add", "--sparse", "--", *names.values())
    if tree.status("diff", "--cached", "--quiet", "HEAD", accept=(0, 1))[0] == 0:
        tree.run("am", "--skip")
    else:
        tree.run("am", *_AM, "--continue")
    return True


def _somebody_works_in(directory: Path) -> bool:
    """Whether a git command has its working directory there: one that waits for an editor, too."""
    import psutil

    root = directory.resolve()
    for one in psutil.process_iter(["name", "cwd"]):
        where = one.info["cwd"]
        if where and one.info["name"].startswith("git") and Path(where).is_relative_to(root):
            return True
    return False


def abort(tree: Tree) -> None:
    """Take back a failed `git am`: HEAD, index and files are as before."""
    if _am_in_progress(tree):
        tree.run("am", "--abort")


def _am_in_progress(tree: Tree) -> bool:
    return tree.git_path("rebase-apply").is_dir()


def _places(tree: Tree, patch: Patch, words: str) -> tuple[list[str], list[str]]:
    """Where a failed `git am -3` stopped: files that are gone (if none is left to patch), or file:line."""
    stages = _stages(tree)
    targets = [diff.path for diff in patch.diffs if not diff.created]
    if not stages:
        # No merge was tried: git has not the blobs that the patch was made from.
        there = set(filter(None, tree.run("ls-files", "-z", "--", *targets).split("\0")))
        if targets and not there:
            return targets, []
        # Only a plain `git apply` says at which line it stopped.
        words += tree.status("apply", "--check", "--cached", input=patch.text, accept=(0, 1, 128))[1]
        found = re.findall(r"^error: patch failed: (\S+:\d+)$", words, re.MULTILINE)
        found += re.findall(
            r"^error: (\S+: (?:already exists|does not exist) in index)$", words, re.MULTILINE
        )
        return [], list(dict.fromkeys(found)) or [patch.diffs[0].path]
    # Stage 2 is ours: without it upstream deleted the file and no rename leads elsewhere.
    lost = [path for path, found in stages.items() if 2 not in found]
    if len(lost) == len(stages):
        return sorted(lost), []
    return [], [_first_marker(tree.path / path, path) for path in sorted(stages)]


def _stages(tree: Tree) -> dict[str, dict[int, str]]:
    """Blobs of every path with a conflict: 1 is the base, 2 ours, 3 theirs."""
    stages: dict[str, dict[int, str]] = {}
    for entry in filter(None, tree.run("ls-files", "--unmerged", "-z").split("\0")):
        meta, path = entry.split("\t", 1)
        _, blob, stage = meta.split()
        stages.setdefault(path, {})[int(stage)] = blob
    return stages


def _first_marker(path: Path, shown: str) -> str:
    if path.is_file():
        for number, line in enumerate(path.read_bytes().split(b"\n"), 1):
            if line.startswith(b"<<<<<<< "):
                return f"{shown}:{number}"
    return f"{shown}: deleted or renamed on one side"
