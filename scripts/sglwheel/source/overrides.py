"""`--override name=…`: another version of one dependency, for people who work on it."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sglwheel import files
from sglwheel.errors import UsageError


@dataclass(frozen=True)
class Override:
    """Instead of what is declared: a directory as it is, a repository's revision, or another revision."""

    name: str
    text: str
    path: Path | None
    revision: str | None


def parse(overrides: Mapping[str, str]) -> dict[str, Override]:
    """Parse `<path>`, `<path>@<rev>` or `<rev>` for each name, in any case. Raises UsageError."""
    result: dict[str, Override] = {}
    mistakes: dict[str, str] = {}
    for name, text in overrides.items():
        whole = files.expanded(text)
        place, at, revision = text.rpartition("@")
        if text and whole.is_dir():
            result[name.lower()] = Override(name, text, whole.absolute(), None)
        elif at and place and revision and files.expanded(place).is_dir():
            result[name.lower()] = Override(name, text, files.expanded(place).absolute(), revision)
        elif at and "/" in place:
            mistakes[name] = f"no directory {place!r}"
        elif text.startswith(("/", "./", "../", "~")) or not re.fullmatch(r"[A-Za-z0-9][\w./-]*", text):
            mistakes[name] = f"{text!r} is neither a directory nor a revision"
        else:
            result[name.lower()] = Override(name, text, None, text)
    if mistakes:
        raise UsageError(
            "an override cannot be read",
            where=mistakes,
            next="--override <name>=<directory>|<repository>@<rev>|<rev>",
        )
    return result


def tree_id(root: Path) -> str:
    """The Git tree id that a directory's content would have; `.git` does not count, ignored files do."""
    entries: list[tuple[bytes, bytes]] = []
    for item in root.iterdir():
        if item.name == ".git":
            continue
        name = os.fsencode(item.name)
        facts = item.lstat()
        if stat.S_ISLNK(facts.st_mode):
            entries.append((name, b"120000 " + name + b"\0" + _object(b"blob", os.fsencode(item.readlink()))))
        elif stat.S_ISDIR(facts.st_mode):
            tree = tree_id(item)
            # Git has no empty directories, and sorts directories as if they ended with a slash.
            if tree != _EMPTY:
                entries.append((name + b"/", b"40000 " + name + b"\0" + bytes.fromhex(tree)))
        elif stat.S_ISREG(facts.st_mode):
            mode = b"100755 " if facts.st_mode & stat.S_IXUSR else b"100644 "
            entries.append((name, mode + name + b"\0" + _object(b"blob", item.read_bytes())))
    return _object(b"tree", b"".join(entry for _, entry in sorted(entries))).hex()


def _object(kind: bytes, content: bytes) -> bytes:
    return hashlib.sha1(kind + b" %d\0" % len(content) + content, usedforsecurity=False).digest()


_EMPTY = _object(b"tree", b"").hex()
