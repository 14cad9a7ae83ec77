"""Wheels under `cache/wheels/<sha256>/`: kept when their index drops them, verified when they are read."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

import packaging.tags
from packaging.markers import default_environment
from packaging.pylock import PackageWheel, PylockSelectError
from packaging.version import Version

from sglwheel import console, files, transfer
from sglwheel.errors import SourceError, ToolchainError
from sglwheel.files import Layout
from sglwheel.mirrors import Mirrors
from sglwheel.toolchain.packages import Lock

# PyPI does not drop a file while people use it; other indexes do after some weeks.
_LASTING = ("files.pythonhosted.org", "pypi.org")
_AT_ONCE = 4


@dataclass(frozen=True)
class LockedWheel:
    """One wheel as a lock names it."""

    name: str
    version: Version
    filename: str
    url: str
    sha256: str
    size: int | None

    @property
    def lasting(self) -> bool:
        """Whether its index will have it in a year."""
        return (urlsplit(self.url).hostname or "") in _LASTING


def of(lock: Lock, python: Version) -> tuple[LockedWheel, ...]:
    """The wheels of a lock that a Python of this version would install here. Raises ToolchainError."""
    full = str(python) if len(python.release) > 2 else f"{python.major}.{python.minor}.0"
    environment = default_environment()
    environment["python_version"] = f"{python.major}.{python.minor}"
    environment["python_full_version"] = full
    tags = [
        *packaging.tags.cpython_tags((python.major, python.minor)),
        *packaging.tags.compatible_tags((python.major, python.minor), f"cp{python.major}{python.minor}"),
    ]
    try:
        chosen = [
            _locked(str(package.name), package.version, wheel)
            for package, wheel in lock.pins.select(environment=environment, tags=tags)
            if isinstance(wheel, PackageWheel)
        ]
    except PylockSelectError as error:
        raise ToolchainError(f"the lock has no wheel for this host: {error}") from None
    return tuple(sorted(chosen, key=lambda item: item.filename))


def every(lock: Lock) -> tuple[LockedWheel, ...]:
    """All wheels of a lock, for any host."""
    return tuple(
        _locked(str(package.name), package.version, wheel)
        for package in lock.pins.packages
        for wheel in package.wheels or ()
    )


def path_of(item: LockedWheel, layout: Layout) -> Path:
    """Where a wheel lies when it is stored."""
    return layout.cache / "wheels" / item.sha256 / item.filename


def stored(item: LockedWheel, layout: Layout) -> Path | None:
    """A wheel in the store, with the bytes of its name; one with others is put aside, and said."""
    path = path_of(item, layout)
    if not path.is_file():
        return None
    if files.sha256_once(path) == item.sha256:
        # `store gc` goes by the last use. A store that only others may write to keeps its own books.
        with contextlib.suppress(OSError):
            os.utime(path.parent)
        return path
    console.warn(f"{path} is damaged: fetching it again")
    path.unlink(missing_ok=True)
    return None


def keep(items: Sequence[LockedWheel], layout: Layout, mirrors: Mirrors, *, title: str = "wheels") -> int:
    """Have wheels in the store; return the bytes received.

    Raises ToolchainError for those that no place has, all of them in one.
    """
    absent = [item for item in items if stored(item, layout) is None]
    if not absent:
        return 0
    files.cache_directory(layout.cache / "wheels")
    total = sum(item.size or 0 for item in absent) or None
    guard, got = threading.Lock(), 0
    with console.progress(f"fetching {title}", unit="bytes") as bar, ThreadPoolExecutor(_AT_ONCE) as pool:

        def count(received: int) -> None:
            nonlocal got
            with guard:
                got += received
                bar.update(got, total, f"{len(absent)} files")

        running = [pool.submit(_keep, item, layout, mirrors, count) for item in absent]
        errors = [error for future in running if (error := future.exception()) is not None]
    for error in errors:
        if not isinstance(error, ToolchainError):
            raise error
    if len(errors) == 1:
        raise errors[0]
    if errors:
        told = [error for error in errors if isinstance(error, ToolchainError)]
        raise ToolchainError(
            f"{len(told)} of {len(absent)} wheels cannot be had",
            where={error.what: "\n".join(f"{k}: {v}" for k, v in error.where.items()) for error in told},
            next=told[0].next,
        )
    return got


def links(items: Sequence[LockedWheel], layout: Layout) -> tuple[tuple[str, ...], bool]:
    """Words with which uv finds those of the wheels that are stored, and whether all are.

    A directory for each wheel, and always the same one: uv knows what it has unpacked by path, so that a
    second environment with that torch costs it neither a minute nor gigabytes.
    """
    found = [path for item in items if (path := stored(item, layout)) is not None]
    words = tuple(word for path in found for word in ("--find-links", str(path.parent)))
    return words, bool(found) and len(found) == len(items)


def check(item: LockedWheel) -> Callable[[Path], None]:
    """A check that a file is this wheel. Raises SourceError."""

    def same(path: Path) -> None:
        actual = files.sha256(path)
        if actual != item.sha256:
            raise SourceError(f"has other content: SHA256 is {actual}, the lock says {item.sha256}")

    return same


def _keep(item: LockedWheel, layout: Layout, mirrors: Mirrors, on_bytes: transfer.OnBytes) -> None:
    path = path_of(item, layout)
    guard = layout.cache / "wheels" / f"{item.sha256}.lock"
    with files.locked(guard, failure=ToolchainError, what=item.filename):
        if stored(item, layout) is not None:
            return
        transfer.fetch(
            item.url,
            mirrors.candidates(item.url),
            path,
            check=check(item),
            failure=ToolchainError,
            what=item.filename,
            on_bytes=on_bytes,
        )
        path.chmod(0o444)
        files.sync_directory(path.parent)


def _locked(name: str, version: Version | None, wheel: PackageWheel) -> LockedWheel:
    assert version is not None
    return LockedWheel(
        name, version, unquote(wheel.filename), wheel.url or "", wheel.hashes["sha256"], wheel.size
    )
