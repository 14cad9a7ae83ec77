"""Second names for wheels: hard links, so that a flat directory costs no room, or else copies."""

from __future__ import annotations

import errno
import os
import shutil
from contextlib import suppress
from pathlib import Path

from sglwheel import files


def link(source: Path, target: Path) -> None:
    """Give a file a second name at once, replacing what is there; a copy where hard links cannot be had."""
    # Nothing there, mostly.
    with suppress(OSError):
        os.link(source, target)
        return
    temporary = target.with_name(f".{target.name}.{os.urandom(4).hex()}")
    try:
        try:
            os.link(source, temporary)
        except OSError as error:
            if error.errno not in (
                errno.EPERM,
                errno.EXDEV,
                errno.EMLINK,
                errno.ENOTSUP,
                errno.EACCES,
                errno.ENOSYS,
            ):
                raise
            copy_synced(source, temporary)
        temporary.replace(target)
    finally:
        # rename() of two names of one file does nothing and keeps both.
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def copy_synced(source: Path, target: Path) -> None:
    """Copy bytes and push them to the disk."""
    with source.open("rb") as reader, target.open("wb") as writer:
        shutil.copyfileobj(reader, writer, 1 << 20)
        writer.flush()
        os.fsync(writer.fileno())


def same(one: Path, other: Path) -> bool:
    """Whether two paths hold the same bytes; one that is a symlink does not count."""
    try:
        a, b = one.stat(follow_symlinks=False), other.stat()
    except FileNotFoundError:
        return False
    return (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino) or (
        a.st_size == b.st_size and not one.is_symlink() and files.sha256(one) == files.sha256(other)
    )
