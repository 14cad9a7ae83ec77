"""A store per Git url: exact commits without history, and only the files that somebody asked for."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from sglwheel import files
from sglwheel.errors import SourceError
from sglwheel.files import Layout
from sglwheel.git import Git
from sglwheel.mirrors import Mirrors, normal
from sglwheel.source.transport import Transport
from sglwheel.types import CommitId

_ANY_STATUS = range(-64, 256)


@dataclass(frozen=True)
class Entry:
    """One entry of a tree, at its full path."""

    mode: str
    kind: str
    object: str
    path: str


@dataclass(frozen=True)
class GitStore:
    """The bare partial repository under `cache/git/` that holds what we have of one url."""

    url: str
    git: Git
    transport: Transport

    @classmethod
    def open(cls, url: str, layout: Layout, mirrors: Mirrors, *, first: Sequence[str] = ()) -> GitStore:
        """The store of `url`, made if need be; `first` are places to try before all others."""
        key = normal(url)
        slug = re.sub(r"[^A-Za-z0-9.]+", "-", re.sub(r"^[a-z]+://", "", key)).strip("-.")[-60:]
        root = files.cache_directory(layout.cache) / "git"
        path = root / f"{slug}-{hashlib.sha256(key.encode()).hexdigest()[:8]}.git"
        candidates = tuple(dict.fromkeys((*first, *mirrors.candidates(url))))
        store = cls(url, Git(path), Transport(url, candidates))
        if not store._made():
            with store._locked():
                if not store._made():
                    store._make()
        return store

    def commit(self, commit: CommitId) -> int:
        """Have a commit with all its trees; return the bytes that were received. Raises SourceError."""
        if self.has(commit):
            return 0
        with self._locked():
            if self.has(commit):
                return 0
            before = self._size()
            wanted = ("--depth=1", "--filter=blob:none", f"{commit}:{_ref(commit)}")
            place = self.transport.fetch(self.git, wanted, what=f"commit {commit}")
            # The kind of place, for provenance; its address is this host's own affair.
            origin = "origin" if place == self.url else "mirror"
            files.write_atomic(self.git.path / "origins" / commit, origin)
            return self._size() - before

    def has(self, commit: CommitId) -> bool:
        """Whether the commit was received completely; asks nobody."""
        if (self.git.path / _ref(commit)).is_file():
            return True
        done = self.git.run("show-ref", "--verify", "--quiet", _ref(commit), accept=(0, 1))
        return done.returncode == 0

    def via(self, commit: CommitId) -> str:
        """Whether a stored commit came from its url (`origin`) or from a `mirror`."""
        path = self.git.path / "origins" / commit
        return path.read_text() if path.is_file() else "mirror"

    def history(self, commit: CommitId) -> int:
        """Have every ancestor of a commit, as commits without trees; return the bytes received."""
        with self._locked():
            shallow = (self.git.path / "shallow").is_file()
            if self.has(commit) and not shallow:
                return 0
            before = self._size()
            wanted = ("--filter=tree:0", f"{commit}:{_ref(commit)}")
            self.transport.fetch(
                self.git, ("--unshallow", *wanted) if shallow else wanted, what=f"history of {commit}"
            )
            return self._size() - before

    def entries(self, commit: str, paths: Iterable[str] = (), *, recursive: bool = True) -> list[Entry]:
        """What a commit's tree holds, at and below `paths` (all if none is given)."""
        words = [
            "--literal-pathspecs",
            "ls-tree",
            "-z",
            "--full-tree",
            *(["-r"] if recursive else []),
            commit,
            "--",
        ]
        done = self.git.run(*words, *(path.rstrip("/") for path in paths))
        entries: list[Entry] = []
        for line in done.stdout.split("\0"):
            if line:
                facts, _, path = line.partition("\t")
                mode, kind, object_id = facts.split()
                entries.append(Entry(mode, kind, object_id, path))
        return entries

    def blobs(self, commit: CommitId, paths: Sequence[str] = ()) -> int:
        """Have the files at and below `paths` of a commit; return the bytes received. Raises SourceError."""
        return self.objects(entry.object for entry in self.entries(commit, paths) if entry.kind == "blob")

    def objects(self, ids: Iterable[str]) -> int:
        """Have objects by their full ids; return the bytes received. Raises SourceError."""
        wanted = sorted(set(ids))
        if not self._absent(wanted):
            return 0
        with self._locked():
            absent = self._absent(wanted)
            if not absent:
                return 0
            before = self._size()
            self.transport.fetch(
                self.git,
                ("--filter=blob:none", "--stdin"),
                what=f"{len(absent)} files",
                input="".join(f"{item}\n" for item in absent).encode(),
                config=("-c", "fetch.negotiationAlgorithm=noop"),
            )
            return self._size() - before

    def resolve(self, revision: str) -> CommitId:
        """The commit that a tag or branch names now, as its places say. Raises SourceError."""
        tag, branch = f"refs/tags/{revision}", f"refs/heads/{revision.removeprefix('origin/')}"
        names = (f"{tag}^{{}}", tag, branch)
        found = self.transport.ask(self.git, names, what=f"tag or branch {revision!r}")
        return CommitId.parse(next(found[name] for name in names if name in found))

    def packs(self) -> list[Path]:
        """The files that hold the objects."""
        return sorted((self.git.path / "objects" / "pack").glob("*.pack"))

    def intact(self, pack: Path) -> bool:
        """Whether every object of a pack has the content of its id."""
        index = pack.with_suffix(".idx")
        return self.git.run("verify-pack", str(index), accept=_ANY_STATUS).returncode == 0

    def _made(self) -> bool:
        return (self.git.path / "sglwheel").is_file()

    def _make(self) -> None:
        git = Git.init(self.git.path)
        for key, value in (
            ("core.repositoryFormatVersion", "1"),
            ("extensions.partialClone", "origin"),
            ("remote.origin.url", self.url),
            ("remote.origin.promisor", "true"),
            ("remote.origin.partialCloneFilter", "blob:none"),
            ("remote.origin.tagOpt", "--no-tags"),
        ):
            git.run("config", key, value)
        files.write_atomic(self.git.path / "sglwheel", f"{self.url}\n")

    def _locked(self) -> AbstractContextManager[None]:
        guard = self.git.path.with_suffix(".lock")
        return files.locked(guard, failure=SourceError, what=f"the store of {self.url}")

    def _size(self) -> int:
        return sum(pack.stat().st_size for pack in (self.git.path / "objects" / "pack").glob("*.pack"))

    def _absent(self, ids: Sequence[str]) -> list[str]:
        if not ids:
            return []
        # Nothing else asks without fetching what it asks for, in git before 2.45.
        flags = ["--objects", "--no-object-names", "--missing=print", "--ignore-missing", "--stdin"]
        text = "".join(f"{item}\n" for item in ids).encode()
        here = set(self.git.run("rev-list", *flags, input=text).stdout.split())
        return [item for item in ids if item not in here]


def _ref(commit: str) -> str:
    """Stored commits have names, so that nothing of git's own thinks they are garbage."""
    return f"refs/sglwheel/{commit}"
