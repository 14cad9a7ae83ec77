"""Git objects in this process: ids, reading many at once, and merges in a scratch store."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from sglwheel.errors import PatchError
from sglwheel.git import Git

# Who and when do not matter: these commits are gone before anybody sees them.
_WHO = b"sglwheel <sglwheel@sglwheel.invalid> 0 +0000\n"
_STAMP = b"author " + _WHO + b"committer " + _WHO


def object_id(kind: str, data: bytes) -> str:
    """The id that git gives to an object."""
    return hashlib.sha1(b"%s %d\0" % (kind.encode(), len(data)) + data, usedforsecurity=False).hexdigest()


def read_blobs(git: Git, ids: Iterable[str], *, env: Mapping[str, str] | None = None) -> dict[str, bytes]:
    """The content of every blob of `ids` that is there (or that a promisor remote has)."""
    wanted = sorted(set(ids))
    if not wanted:
        return {}
    text = "".join(f"{item}\n" for item in wanted).encode()
    # A missing object ends a partial clone's cat-file; what it said before still counts.
    data = git.run("cat-file", "--batch", input=text, env=env, failure=PatchError, accept=(0, 128)).output
    found: dict[str, bytes] = {}
    at = 0
    while at < len(data):
        end = data.index(b"\n", at)
        header = data[at:end].split(b" ")
        at = end + 1
        if len(header) != 3 or header[1] == b"missing":
            continue
        size = int(header[2])
        if header[1] == b"blob":
            found[header[0].decode()] = data[at : at + size]
        at += size + 1
    return found


class Scratch:
    """Objects beside those of a repository, in a directory that is removed at the end of the block."""

    def __init__(self, git: Git) -> None:
        self._git = git
        self._known: set[str] = set()

    def __enter__(self) -> Scratch:
        self._directory = Path(tempfile.mkdtemp(prefix="sglwheel-objects-"))
        objects = self._git.run(
            "rev-parse", "--path-format=absolute", "--git-path", "objects", failure=PatchError
        ).stdout.strip()
        self.env = {
            "GIT_OBJECT_DIRECTORY": str(self._directory),
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": objects,
        }
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)

    def blob(self, data: bytes) -> str:
        return self._write("blob", data)

    def tree(self, entries: Mapping[str, str]) -> str:
        """A flat tree of plain files; names must be ASCII."""
        data = b"".join(
            b"100644 %s\0" % name.encode() + bytes.fromhex(blob) for name, blob in sorted(entries.items())
        )
        return self._write("tree", data)

    def commit(self, tree: str, parent: str | None = None) -> str:
        ancestry = f"parent {parent}\n" if parent else ""
        return self._write("commit", f"tree {tree}\n{ancestry}".encode() + _STAMP + b"\n")

    def merge(self, pairs: Iterable[tuple[str, str]]) -> list[tuple[bool, str, dict[str, set[int]]]]:
        """Merge pairs of commits; gives for each: is it clean, the tree, the stages of conflicted names."""
        text = "".join(f"{ours} {theirs}\n" for ours, theirs in pairs).encode()
        if not text:
            return []
        done = self._git.run(
            "-c",
            "merge.renames=false",
            "merge-tree",
            "--write-tree",
            "--stdin",
            "--no-messages",
            input=text,
            env=self.env,
            failure=PatchError,
            accept=(0, 1),
        )
        results: list[tuple[bool, str, dict[str, set[int]]]] = []
        tokens = iter(done.stdout.split("\0"))
        for status in tokens:
            if not status:
                break
            tree = next(tokens)
            stages: dict[str, set[int]] = {}
            for entry in iter(lambda: next(tokens), ""):
                meta, name = entry.split("\t", 1)
                stages.setdefault(name, set()).add(int(meta.split(" ")[2]))
            results.append((status == "1", tree, stages))
        return results

    def trees(self, ids: Iterable[str]) -> dict[str, dict[str, str]]:
        """Names and blobs of flat trees."""
        wanted = sorted(set(ids))
        if not wanted:
            return {}
        text = "".join(f"{item}\n" for item in wanted).encode()
        data = self._git.run("cat-file", "--batch", input=text, env=self.env, failure=PatchError).output
        found: dict[str, dict[str, str]] = {}
        at = 0
        while at < len(data):
            end = data.index(b"\n", at)
            name, _, size = data[at:end].split(b" ")
            body = data[end + 1 : end + 1 + int(size)]
            at = end + 2 + int(size)
            entries: dict[str, str] = {}
            place = 0
            while place < len(body):
                stop = body.index(b"\0", place)
                entries[body[place:stop].split(b" ", 1)[1].decode()] = body[stop + 1 : stop + 21].hex()
                place = stop + 21
            found[name.decode()] = entries
        return found

    def _write(self, kind: str, data: bytes) -> str:
        name = object_id(kind, data)
        if name not in self._known:
            self._known.add(name)
            path = self._directory / name[:2] / name[2:]
            path.parent.mkdir(exist_ok=True)
            compressed = zlib.compress(b"%s %d\0" % (kind.encode(), len(data)) + data, 1)
            path.write_bytes(compressed)
        return name


def seed(git: Git, blobs: Iterable[bytes]) -> None:
    """Put blobs into a repository for good."""
    with tempfile.TemporaryDirectory(prefix="sglwheel-") as folder:
        names = []
        for number, data in enumerate(blobs):
            path = Path(folder, str(number))
            path.write_bytes(data)
            names.append(os.fspath(path))
        if names:
            text = "".join(f"{name}\n" for name in names).encode()
            git.run("hash-object", "-w", "--no-filters", "--stdin-paths", input=text, failure=PatchError)
