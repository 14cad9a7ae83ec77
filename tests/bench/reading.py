"""Reading many files as plainly as Python can: what `verify` is held against."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor


def hash_all(paths: Sequence[str], readers: int) -> None:
    """SHA-256 of each file by so many threads, and nothing else."""
    shares = [paths[start::readers] for start in range(readers)]
    with ThreadPoolExecutor(readers) as pool:
        list(pool.map(_hash, shares))


def _hash(paths: Sequence[str]) -> None:
    buffer = memoryview(bytearray(1 << 18))
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        digest = hashlib.sha256()
        while size := os.readv(descriptor, [buffer]):
            digest.update(buffer[:size])
        os.close(descriptor)


def evict(paths: Sequence[str]) -> None:
    """Have the system forget the contents of these files, so that they are read from the disk again."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
