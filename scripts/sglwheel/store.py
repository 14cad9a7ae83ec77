"""A store per Git url: exact commits without history, and only the files that somebody asked for."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import tenacity

from sglwheel import files
from sglwheel.errors import SourceError
from sglwheel.files import Layout
from sglwheel.git import Git
from sglwheel.mirrors import Mirrors, local_path, normal
from sglwheel.types import CommitId

# What a public forge allows for every repository, switched on for a plain one on this host. The user named
# the mirror, so who owns its files is no reason to refuse; nothing of it is run.
_LOCAL_UPLOAD_PACK = (
    "git -c uploadpack.allowFilter=true -c uploadpack.allowAnySHA1InWant=true -c safe.directory='*'"
    " upload-pack"
)
_TRANSIENT = re.compile(
    r"could not resolve|connection (refused|reset|timed out)|failed to connect|timed out|early eof|rpc failed"
    r"|hung up unexpectedly|unexpected disconnect|http 5\d\d|error: 5\d\d|error: 429|gnutls|ssl_|tls ",
    re.IGNORECASE,
)
_REASONS = (
    (r"not our ref|no such remote ref|couldn't find remote ref|unadvertised object", "does not have it"),
    (r"not appear to be a git repository|no such file or directory|not found", "no repository there"),
    (r"terminal prompts disabled|authentication failed|permission denied", "not found, or not for us"),
    (r"hash mismatch|corrupt|did not send all necessary|bad object|missing (blob|tree|commit)|inflate"
     r"|invalid sha1|unable to parse|possible repository corruption", "sent something else than this id, or damaged data"),
    (r"could not resolve", "host not found"),
)  # fmt: skip


class TransientError(SourceError):
    """A failure of the network that may be over in a moment."""


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
    candidates: tuple[str, ...]

    @classmethod
    def open(cls, url: str, layout: Layout, mirrors: Mirrors, *, first: Sequence[str] = ()) -> GitStore:
        """The store of `url`, made if need be; `first` are places to try before all others."""
        key = normal(url)
        slug = re.sub(r"[^A-Za-z0-9.]+", "-", re.sub(r"^[a-z]+://", "", key)).strip("-.")[-60:]
        root = files.cache_directory(layout.cache) / "git"
        path = root / f"{slug}-{hashlib.sha256(key.encode()).hexdigest()[:8]}.git"
        candidates = tuple(dict.fromkeys((*first, *mirrors.candidates(url))))
        store = cls(url, Git(path), candidates)
        if not (path / "sglwheel").is_file():
            with store._locked():
                if not (path / "sglwheel").is_file():
                    store._create()
        return store

    def commit(self, commit: CommitId) -> int:
        """Have a commit with all its trees; return the bytes that were received. Raises SourceError."""
        if self.has(commit):
            return 0
        with self._locked():
            if self.has(commit):
                return 0
            before = self._size()
            self._from_somewhere(
                ["--depth=1", "--filter=blob:none", f"{commit}:refs/sglwheel/{commit}"],
                what=f"commit {commit}",
            )
            if self.git.resolve(f"refs/sglwheel/{commit}") != commit:
                raise SourceError(f"what was received is not commit {commit}", where={"url": self.url})
            return self._size() - before

    def has(self, commit: CommitId) -> bool:
        """Whether the commit was received completely; asks nobody."""
        ref = f"refs/sglwheel/{commit}"
        if (self.git.path / ref).is_file():
            return True
        return self.git.run("show-ref", "--verify", "--quiet", ref, accept=(0, 1)).returncode == 0

    def history(self, commit: CommitId) -> int:
        """Have every ancestor of a commit, as commits without trees; return the bytes received."""
        with self._locked():
            shallow = self.git.path / "shallow"
            if self.has(commit) and not shallow.is_file():
                return 0
            before = self._size()
            unshallow = ["--unshallow"] if shallow.is_file() else []
            self._from_somewhere(
                [*unshallow, "--filter=tree:0", f"{commit}:refs/sglwheel/{commit}"],
                what=f"history of {commit}",
            )
            return self._size() - before

    def entries(self, commit: str, paths: Iterable[str] = (), *, recursive: bool = True) -> list[Entry]:
        """What a commit's tree holds, at and below `paths` (all if none is given)."""
        flags = ["-r"] if recursive else []
        wanted = [path.rstrip("/") for path in paths]
        done = self.git.run(
            "--literal-pathspecs", "ls-tree", "-z", *flags, "--full-tree", commit, "--", *wanted
        )
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
        """Have objects by their ids, for a three-way merge of a foreign patch; return bytes received."""
        wanted = sorted(set(ids))
        if not self._absent(wanted):
            return 0
        with self._locked():
            absent = self._absent(wanted)
            return self._receive(absent, what=f"{len(absent)} files")

    def resolve(self, revision: str) -> CommitId:
        """The commit that a tag or branch names now, by asking the candidates. Raises SourceError."""
        failures: dict[str, str] = {}
        names = [f"refs/tags/{revision}", f"refs/heads/{revision.removeprefix('origin/')}", revision]
        for candidate in self.candidates:
            url, upload_pack = _address(candidate)
            done = self.git.run(
                "ls-remote", f"--upload-pack={upload_pack}", url, *names, f"refs/tags/{revision}^{{}}", user_config=True,
                accept=range(256),
            )  # fmt: skip
            if done.returncode:
                failures[candidate] = _reason(done.stderr)
                continue
            found = {
                name: object_id for object_id, name in (line.split("\t") for line in done.stdout.splitlines())
            }
            for name in (f"refs/tags/{revision}^{{}}", *names):
                if name in found:
                    return CommitId.parse(found[name])
            failures[candidate] = f"has no tag or branch {revision!r}"
        raise self._nowhere(f"tag or branch {revision!r}", failures)

    def _create(self) -> None:
        git = Git.init(self.git.path)
        for key, value in (
            ("core.repositoryFormatVersion", "1"),
            ("extensions.partialClone", "origin"),
            ("remote.origin.url", self.candidates[0] if self.candidates else self.url),
            ("remote.origin.promisor", "true"),
            ("remote.origin.partialCloneFilter", "blob:none"),
            ("remote.origin.tagOpt", "--no-tags"),
        ):
            git.run("config", key, value)
        files.write_atomic(self.git.path / "sglwheel", f"{self.url}\n")

    def _locked(self) -> AbstractContextManager[None]:
        return files.locked(
            self.git.path.with_suffix(".lock"), failure=SourceError, what=f"the store of {self.url}"
        )

    def _size(self) -> int:
        return sum(
            item.stat().st_size
            for item in (self.git.path / "objects").rglob("*")
            if item.suffix != ".idx" and item.is_file()
        )

    def _absent(self, ids: Sequence[str]) -> list[str]:
        # Nothing else asks without fetching what it asks for, in git before 2.45.
        flags = ["--objects", "--no-object-names", "--missing=print", "--ignore-missing", "--stdin"]
        text = "".join(f"{item}\n" for item in ids).encode()
        here = set(self.git.run("rev-list", *flags, input=text).stdout.split())
        return [item for item in ids if item not in here]

    def _receive(self, ids: Sequence[str], *, what: str) -> int:
        if not ids:
            return 0
        before = self._size()
        self._from_somewhere(
            ["--filter=blob:none", "--stdin"], what=what, input="".join(f"{item}\n" for item in ids).encode(),
            config=["-c", "fetch.negotiationAlgorithm=noop"],
        )  # fmt: skip
        return self._size() - before

    def _from_somewhere(
        self, arguments: list[str], *, what: str, input: bytes | None = None, config: Sequence[str] = ()
    ) -> None:
        failures: dict[str, str] = {}
        for candidate in self.candidates:
            try:
                self._fetch(candidate, arguments, input, config)
            except SourceError as error:
                failures[candidate] = error.what
                continue
            # Git itself may want an object later, in a merge: where we got this from, it gets that.
            url, upload_pack = _address(candidate)
            self.git.run("config", "remote.origin.url", url)
            self.git.run("config", "remote.origin.uploadpack", upload_pack)
            return
        raise self._nowhere(what, failures)

    def _fetch(
        self, candidate: str, arguments: list[str], input: bytes | None, config: Sequence[str]
    ) -> None:
        local = local_path(candidate)
        if local is not None and not local.is_dir():
            raise SourceError("no such directory")
        url, upload_pack = _address(candidate)

        @tenacity.retry(
            retry=tenacity.retry_if_exception_type(TransientError),
            stop=tenacity.stop_after_attempt(1 if local is not None else 3),
            wait=tenacity.wait_exponential(min=1, max=10),
            reraise=True,
        )
        def attempt() -> None:
            options, positional = (
                [a for a in arguments if a.startswith("-")],
                [a for a in arguments if a[0] != "-"],
            )
            done = self.git.run(
                "-c", "http.lowSpeedLimit=1000", "-c", "http.lowSpeedTime=60", *config, "fetch", "--quiet", "--no-tags", "--no-write-fetch-head",
                "--no-auto-gc", "--force", f"--upload-pack={upload_pack}", *options, url, *positional, input=input, user_config=True,
                accept=range(-64, 256),
            )  # fmt: skip
            if done.returncode:
                kind = TransientError if _TRANSIENT.search(done.stderr) else SourceError
                raise kind(_reason(done.stderr))

        attempt()

    def _nowhere(self, what: str, failures: dict[str, str]) -> SourceError:
        if not self.candidates:
            failures = {self.url: "reserved name, and no mirror is set for it"}
        return SourceError(
            f"cannot get {what} of {self.url}",
            where=failures,
            next=f"check the commit, or name a mirror: SGLWHEEL_MIRRORS='{normal(self.url)}=<url or path>'",
        )


def _address(candidate: str) -> tuple[str, str]:
    path = local_path(candidate)
    if path is None:
        return candidate, "git-upload-pack"
    return path.absolute().as_uri(), _LOCAL_UPLOAD_PACK


def _reason(stderr: str) -> str:
    """Git's complaint in a few words, with its own last line."""
    lines = [
        line for line in stderr.strip().splitlines() if line.startswith(("fatal:", "error:", "remote: error"))
    ]
    own = (lines or stderr.strip().splitlines() or ["no message"])[0].removeprefix("remote: ").strip()
    for pattern, words in _REASONS:
        if re.search(pattern, stderr, re.IGNORECASE):
            return f"{words} ({own})"
    return own
