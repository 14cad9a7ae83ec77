"""Files that are never half-written, hashes, locks, and where things lie."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import filelock

from sglwheel import console
from sglwheel.errors import SglwheelError, UsageError

_PATIENCE = 1.0  # seconds before a wait is worth a word
# https://bford.info/cachedir/ : backup tools and people know by this file that a directory may be deleted.
_CACHE_TAG = "Signature: 8a477f597d28d172789f06886806bc55\n# sglwheel keeps what it can make again here.\n"


@dataclass(frozen=True)
class Layout:
    """Where a checkout of sglwheel keeps things; every other module asks here."""

    root: Path

    @property
    def recipes(self) -> Path:
        return self.root / "recipes"

    @property
    def patches(self) -> Path:
        return self.root / "patches"

    @property
    def wheelhouse(self) -> Path:
        return self.root / "wheelhouse"

    @property
    def work(self) -> Path:
        """Checkouts, build trees and logs."""
        return self.root / ".work"

    @property
    def cache(self) -> Path:
        """Stores shared by recipes: git objects, downloads, environments; `SGLWHEEL_CACHE` moves it."""
        override = os.environ.get("SGLWHEEL_CACHE")
        return expanded(override).absolute() if override else self.root / ".cache"

    def relative(self, path: Path) -> str:
        """`path` as a user reads it: relative to the checkout where it lies inside."""
        try:
            return str(path.relative_to(self.root))
        except ValueError:
            return str(path)

    @classmethod
    def find(cls, start: Path | None = None) -> Layout:
        """Find the checkout: `SGLWHEEL_ROOT`, or the nearest parent with recipes/ and patches/.

        Raises UsageError when there is none.
        """
        override = os.environ.get("SGLWHEEL_ROOT")
        if override:
            return cls(Path(override).absolute())
        here = (start or Path.cwd()).absolute()
        for candidate in (here, *here.parents):
            if (candidate / "recipes").is_dir() and (candidate / "patches").is_dir():
                return cls(candidate)
        raise UsageError(
            "no sglwheel checkout here: no recipes/ and patches/ in this directory or above it",
            where={"directory": str(here)},
            next="cd into the checkout, or set SGLWHEEL_ROOT",
        )


class _Buffer(threading.local):
    def __init__(self) -> None:
        self.view = memoryview(bytearray(1 << 18))


_buffer = _Buffer()


def sha256(path: Path | str) -> str:
    """The SHA-256 of a file's bytes, in hex."""
    # By descriptor and into one buffer: of a hundred thousand small files, most of the time would go into
    # opening streams, and of large ones into fresh memory.
    digest, view = hashlib.sha256(), _buffer.view
    descriptor = os.open(path, os.O_RDONLY)
    try:
        while size := os.readv(descriptor, [view]):
            digest.update(view[:size])
    finally:
        os.close(descriptor)
    return digest.hexdigest()


def read(path: Path | str) -> bytes:
    """A small file's bytes, by descriptor as well."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        parts = []
        while part := os.read(descriptor, 1 << 16):
            parts.append(part)
    finally:
        os.close(descriptor)
    return b"".join(parts)


_READ: dict[tuple[int, int, int, int], str] = {}


def sha256_once(path: Path) -> str:
    """The SHA-256 of a file that this process may have read before and that was not written to since."""
    facts = path.stat()
    key = (facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns)
    if key not in _READ:
        _READ[key] = sha256(path)
    return _READ[key]


def digest(text: str | bytes) -> str:
    """The SHA-256 of a text, in hex."""
    return hashlib.sha256(text.encode() if isinstance(text, str) else text).hexdigest()


def expanded(text: str) -> Path:
    """A path as people write it. In the home of a user who is not there, nothing is."""
    with suppress(RuntimeError):
        return Path(text).expanduser()
    return Path(text)


def link(source: Path, target: Path) -> None:
    """Give a file a second name, or copy it where the file system cannot."""
    try:
        target.hardlink_to(source)
    except OSError:
        shutil.copyfile(source, target)


def write_atomic(path: Path, data: bytes | str, *, mode: int = 0o644) -> None:
    """Replace `path` by `data`: a reader sees the old file or the new one, also after a power loss."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data.encode() if isinstance(data, str) else data)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.chmod(mode)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make a rename inside `path` survive a power loss."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def directory_atomic(path: Path) -> Iterator[Path]:
    """Yield a temporary sibling that becomes `path` on success and is removed on failure.

    `path` must not exist when the block ends; if another process made it meanwhile, theirs is kept.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        yield temporary
        temporary.chmod(0o755)
        try:
            temporary.rename(path)
        except OSError:
            if not path.is_dir():
                raise
        sync_directory(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def swap_directories(one: Path, other: Path) -> None:
    """Exchange two existing directories: everybody sees either the old or the new one, whole."""
    # Python has no name for renameat2(2); RENAME_EXCHANGE is 2.
    libc = ctypes.CDLL(None, use_errno=True)
    here = -100  # AT_FDCWD
    exchange = getattr(libc, "renameat2", None)
    if exchange is None or exchange(here, os.fsencode(one), here, os.fsencode(other), 2) != 0:
        # A file system that cannot: for an instant `other` is not there, and `one` still is.
        aside = other.with_name(f".{other.name}.swap")
        other.rename(aside)
        one.rename(other)
        aside.rename(one)
    sync_directory(other.parent)


@contextmanager
def locked(
    path: Path, *, failure: type[SglwheelError], what: str, timeout: float = -1, next: str | None = None
) -> Iterator[None]:
    """Hold an advisory lock that the system releases when we die, however we die.

    `timeout` in seconds, negative = wait. Who waits says for whom; who does not raises `failure` and says it.
    """
    holder = path.with_suffix(".holder")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = _acquired(path, holder, failure=failure, what=what, timeout=timeout, next=next)
    except OSError as error:
        # A read-only or full disk; a network file system whose locks nobody serves (ENOLCK).
        raise failure(
            f"{what} cannot be locked: {error.strerror or error}",
            where={"lock": str(path)},
            next="see that it is writable, has room and locks, then run the same command again",
        ) from error
    try:
        # A full disk is no reason not to hold what is held.
        with suppress(OSError):
            holder.write_text(f"process {os.getpid()} (since {time.strftime('%H:%M:%S')})\n")
        yield
    finally:
        with suppress(OSError):
            holder.unlink(missing_ok=True)
        lock.release()


def _acquired(
    path: Path, holder: Path, *, failure: type[SglwheelError], what: str, timeout: float, next: str | None
) -> filelock.BaseFileLock:
    """The lock, held. Raises OSError where there can be none."""
    lock = filelock.FileLock(path)
    try:
        lock.acquire(timeout=timeout if 0 <= timeout < _PATIENCE else _PATIENCE)
    except filelock.Timeout as error:
        used = f"{what} is in use by {_text(holder) or 'another process'}"
        if 0 <= timeout <= _PATIENCE:
            raise failure(used, where={"lock": str(path)}, next=next) from error
        console.detail(f"{used}: waiting for its end")
        try:
            lock.acquire(timeout=timeout if timeout < 0 else timeout - _PATIENCE)
        except filelock.Timeout:
            raise failure(used, where={"lock": str(path)}, next=next) from error
    return lock


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return ""


def cache_directory(path: Path) -> Path:
    """Make `path` and mark it as one that may be deleted."""
    path.mkdir(parents=True, exist_ok=True)
    tag = path / "CACHEDIR.TAG"
    if not tag.exists():
        tag.write_text(_CACHE_TAG)
    return path
