"""Write small files by the ten thousand: whole or not at all, and by as few system calls as that takes.

They are on the disk only after the caller's `os.sync()`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress

from sglwheel import files


def place(home: str, contents: Mapping[str, bytes]) -> None:
    """Write those of `contents` that changed below the directory `home`: relative path → bytes.

    Each file appears by a rename; a subdirectory that is not there yet, by one of its own.
    """
    at = os.open(home, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with os.scandir(at) as entries:
            there = {entry.name for entry in entries}
        fresh: dict[str, str] = {}
        for path, data in contents.items():
            top, _, below = path.partition("/")
            if top not in there:
                staged = fresh.setdefault(top, f".{top}.new")
                _create(at, f"{staged}/{below}" if below else staged, data)
            elif not _holds(f"{home}/{path}", data):
                head, slash, name = path.rpartition("/")
                temporary = f"{head}{slash}.{name}.new"
                _create(at, temporary, data)
                os.replace(temporary, path, src_dir_fd=at, dst_dir_fd=at)
        for top, staged in fresh.items():
            os.replace(staged, top, src_dir_fd=at, dst_dir_fd=at)
    finally:
        os.close(at)


def _create(at: int, path: str, data: bytes) -> None:
    """Write a file that nobody looks for yet, also over what an interrupted one left."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    try:
        descriptor = os.open(path, flags, 0o666, dir_fd=at)
    except FileNotFoundError:
        _make_parents(at, path)
        descriptor = os.open(path, flags, 0o666, dir_fd=at)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
    finally:
        os.close(descriptor)


def _make_parents(at: int, path: str) -> None:
    parts = path.split("/")[:-1]
    for depth in range(1, len(parts) + 1):
        with suppress(FileExistsError):
            os.mkdir("/".join(parts[:depth]), dir_fd=at)


def _holds(path: str, data: bytes) -> bool:
    try:
        return files.read(path) == data
    except OSError:
        return False
