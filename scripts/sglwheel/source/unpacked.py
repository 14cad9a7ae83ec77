"""Directories in a store: whether they are still what was put there."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path


def state(root: Path) -> str:
    """A hash over names, sizes, modes and times: an edit in place changes it."""
    if not root.is_dir():
        raise FileNotFoundError(root)
    digest = hashlib.sha256()
    for directory, directories, names in os.walk(root):
        directories.sort()
        for name in sorted(names):
            path = Path(directory, name)
            facts = path.lstat()
            line = f"{path.relative_to(root)}\0{facts.st_size}\0{facts.st_mode:o}\0{facts.st_mtime_ns}\n"
            digest.update(line.encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def blob(path: Path) -> str:
    """The Git id of a file's content; of a symbolic link that is where it leads."""
    content = os.fsencode(path.readlink()) if path.is_symlink() else path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def contents(root: Path) -> dict[str, tuple[str, bool]]:
    """Each file below a directory: the Git id of its content, and whether it is executable."""
    found: dict[str, tuple[str, bool]] = {}
    for directory, directories, names in os.walk(root):
        links = [name for name in directories if Path(directory, name).is_symlink()]
        for name in (*names, *links):
            path = Path(directory, name)
            mode = path.lstat().st_mode
            found[str(path.relative_to(root))] = (blob(path), stat.S_ISREG(mode) and bool(mode & 0o100))
    return found
