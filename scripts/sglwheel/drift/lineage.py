"""Upstream's whole history without its files: for drift and rebase, apart from what builds read."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from sglwheel import files
from sglwheel.drift import revisions
from sglwheel.errors import SourceError, UsageError
from sglwheel.files import Layout
from sglwheel.git import Git, require_git
from sglwheel.mirrors import Mirrors, normal
from sglwheel.recipe import Recipe
from sglwheel.source.transport import Transport
from sglwheel.types import CommitId

_SETTINGS = (
    ("core.repositoryFormatVersion", "1"),
    ("extensions.partialClone", "origin"),
    ("remote.origin.promisor", "true"),
    ("remote.origin.partialCloneFilter", "blob:none"),
    ("remote.origin.tagOpt", "--no-tags"),
)


@dataclass(frozen=True)
class Lineage:
    """A bare repository with all commits and trees of one branch; blobs come when they are asked for."""

    url: str
    branch: str
    git: Git
    transport: Transport

    @classmethod
    def open(cls, recipe: Recipe, layout: Layout, mirrors: Mirrors) -> Lineage:
        """The history of the branch that the recipe tracks, as far as it is here.

        Raises UsageError when git is too old.
        """
        require_git()
        key = normal(recipe.source.git)
        slug = re.sub(r"[^a-z0-9]+", "-", key.rpartition("/")[2].lower()).strip("-")
        name = f"history-{slug}-{hashlib.sha256(key.encode()).hexdigest()[:8]}.git"
        path = files.cache_directory(layout.cache) / "git" / name
        transport = Transport(recipe.source.git, mirrors.candidates(recipe.source.git))
        lineage = cls(recipe.source.git, recipe.source.track, Git(path), transport)
        with lineage._locked():
            if not (path / "sglwheel").is_file():
                git = Git.init(path)
                for setting, value in (*_SETTINGS, ("remote.origin.url", recipe.source.git)):
                    git.run("config", setting, value)
                files.write_atomic(path / "sglwheel", f"{recipe.source.git}\n")
        return lineage

    @property
    def ref(self) -> str:
        """The tracked branch, as it was when last asked for."""
        return f"refs/remotes/origin/{self.branch}"

    def update(self) -> None:
        """Fetch what is new on the branch. Raises SourceError."""
        with self._locked():
            wanted = f"+refs/heads/{self.branch}:{self.ref}"
            self.transport.fetch(
                self.git, ("--filter=blob:none", wanted), what=f"the history of {self.branch}"
            )
            # Trees are read along thousands of commits: the graph spares unpacking the commits.
            self.git.run("commit-graph", "write", "--reachable", "--split", accept=(0, 1, 128))

    def commit(self, text: str, *, option: str, offline: bool = False, tip: str | None = None) -> CommitId:
        """The commit that a user means. A full id that is here asks nobody; all else does, unless `offline`.

        A date is looked up on the main line of `tip`, or of the branch.
        Raises UsageError for what upstream has not got, SourceError when it cannot be asked.
        """
        full = re.fullmatch(r"[0-9a-f]{40}", text) is not None
        here = self.git.run("show-ref", "--verify", "--quiet", self.ref, accept=(0, 1)).returncode == 0
        if not here or (not full and not offline):
            self.update()
        try:
            return revisions.resolve(self.git, text, tip=tip or self.ref, option=option)
        except UsageError as unknown:
            if offline:
                raise
            try:
                # Releases are tagged on branches of their own.
                wanted = text if full else self._named(text)
                with self._locked():
                    self.transport.fetch(
                        self.git,
                        ("--filter=blob:none", f"{wanted}:refs/sglwheel/{wanted}"),
                        what=f"commit {text}",
                    )
            except SourceError as error:
                # Asked and answered is the user's mistake; not answered is the network's.
                if not all(answer.startswith("does not have it") for answer in error.where.values()):
                    raise
                if not full:
                    raise unknown from None
                raise UsageError(
                    f"{option} {text!r} names no commit of upstream", where=error.where, next=error.next
                ) from None
            return revisions.resolve(self.git, wanted, tip=tip or self.ref, option=option)

    def _named(self, text: str) -> str:
        """The id behind a tag or branch of upstream. Raises SourceError."""
        names = (f"refs/tags/{text}", f"refs/heads/{text}")
        found = self.transport.ask(self.git, names, what=f"tag or branch {text}")
        return next(found[name] for name in names if name in found)

    def fetch(self, ids: Iterable[str]) -> None:
        """Have blobs, all with one request. Raises SourceError."""
        wanted = sorted(set(ids))
        flags = ["--objects", "--no-object-names", "--missing=print", "--ignore-missing", "--stdin"]
        text = "".join(f"{item}\n" for item in wanted).encode()
        here = set(self.git.run("rev-list", *flags, input=text).stdout.split()) if wanted else set()
        absent = [item for item in wanted if item not in here]
        if absent:
            with self._locked():
                self.transport.fetch(
                    self.git,
                    ("--filter=blob:none", "--stdin"),
                    what=f"{len(absent)} files",
                    input="".join(f"{item}\n" for item in absent).encode(),
                    config=("-c", "fetch.negotiationAlgorithm=noop"),
                )

    def _locked(self) -> AbstractContextManager[None]:
        guard = self.git.path.with_suffix(".lock")
        return files.locked(guard, failure=SourceError, what=f"the history of {self.url}")
