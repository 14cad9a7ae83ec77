"""Read a wheel once: names, RECORD, the hash of every file, and its libraries laid out for inspection.

A wheel may come from anywhere: nothing of it is executed, sizes are bounded before anything is unpacked, and
paths inside it never become paths on this host.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import tempfile
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from email.message import Message
from pathlib import Path, PurePosixPath

from packaging.tags import Tag, parse_tag

from sglwheel.errors import InspectionError
from sglwheel.inspect import distinfo, members, operators
from sglwheel.inspect.distinfo import Name, RecordEntry
from sglwheel.inspect.skeleton import SkeletonWriter

# The largest wheel that is published unpacks to 1.6 GB in 700 files.
_MAX_MEMBERS = 50_000
_MAX_DIRECTORY = 8 << 20
_MAX_MEMBER = 4 << 30
_MAX_TOTAL = 8 << 30
_MAX_TEXT = 8 << 20
# deflate cannot do better than 1032; real files of this size stay below 100.
_MAX_RATIO = 400
_RATIO_FROM = 16 << 20


Holes = Sequence[tuple[int, int]]
Analyse = Callable[[str, Path, Holes], None]


@dataclass(frozen=True)
class File:
    """One file in the wheel."""

    path: str
    size: int
    stored: int
    sha256: str


@dataclass(frozen=True)
class WheelFile:
    """Everything that a wheel says about itself, and what it really holds; the rules compare the two."""

    path: Path
    sha256: str
    size: int
    name: Name | None
    dist_info: tuple[str, ...]
    files: tuple[File, ...]
    duplicates: tuple[str, ...]
    unsafe: tuple[str, ...]
    damaged: tuple[tuple[str, str], ...]
    metadata: Message[str, str] | None
    wheel: Message[str, str] | None
    record: tuple[RecordEntry, ...] | None
    uses: frozenset[tuple[str, str, str]]
    """(top-level package, namespace, operator): which torch operators its Python calls."""

    @property
    def file_name(self) -> str:
        return self.path.name

    @property
    def requires(self) -> tuple[str, ...]:
        return (
            tuple(map(str, self.metadata.get_all("Requires-Dist", ()))) if self.metadata is not None else ()
        )

    @property
    def wheel_tags(self) -> frozenset[Tag]:
        if self.wheel is None:
            return frozenset()
        return frozenset(tag for line in self.wheel.get_all("Tag", ()) for tag in parse_tag(line))

    @property
    def top_level(self) -> tuple[str, ...]:
        """Names that the wheel puts directly into site-packages, without its own dist-info."""
        names = {file.path.split("/", 1)[0] for file in self.files}
        return tuple(sorted(name for name in names if not name.endswith((".dist-info", ".data"))))


def read(path: Path, analyse: Analyse, *, whole: bool = False) -> WheelFile:
    """Stream every file of a wheel through SHA-256 and hand each ELF file to `analyse(path, copy, holes)`.

    The copy lacks GPU code at `holes`, unless `whole` is asked for, and is deleted when `analyse` returns: at
    most a few libraries lie on disk at a time. `analyse` runs in worker threads. Raises InspectionError for
    what is not a wheel at all, or is built to exhaust the host.
    """
    try:
        size = path.stat().st_size
        directory = members.directory_bytes(path)
        if directory > _MAX_DIRECTORY:
            raise _refused(path, f"its directory of files has {directory} bytes")
        archive = zipfile.ZipFile(path)
    except OSError as error:
        raise InspectionError(
            f"cannot read the wheel: {error.strerror}", where={"file": str(path)}
        ) from error
    # zipfile raises the last for a version of the format that it does not know.
    except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        raise InspectionError(
            f"not a wheel: {error}", where={"file": str(path)}, next="download or build it again"
        ) from error
    with archive, tempfile.TemporaryDirectory(prefix="sglwheel-inspect-") as scratch:
        listed = [member for member in archive.infolist() if not member.filename.endswith("/")]
        _refuse_bombs(path, size, listed)
        counted = Counter(member.filename for member in listed)
        job = _Job(path, Path(scratch), analyse, whole)
        # Largest first: two workers then end at about the same time.
        order = sorted(range(len(listed)), key=lambda index: -listed[index].file_size)
        with ThreadPoolExecutor(max_workers=min(4, os.cpu_count() or 1)) as pool:
            hashing = pool.submit(_sha256, path)
            done = dict(zip(order, pool.map(job.read, (listed[index] for index in order)), strict=True))
            digest = hashing.result()
        files = tuple(done[index] for index in range(len(listed)))
    return WheelFile(
        path=path,
        sha256=digest,
        size=size,
        name=distinfo.parse_name(path.name),
        dist_info=tuple(
            sorted({f.path.split("/", 1)[0] for f in files if f.path.split("/", 1)[0].endswith(".dist-info")})
        ),
        files=files,
        duplicates=tuple(sorted(name for name, count in counted.items() if count > 1)),
        unsafe=tuple(sorted(name for name in counted if _unsafe(name))),
        damaged=tuple(sorted(job.damaged)),
        metadata=distinfo.message(job.texts, "METADATA"),
        wheel=distinfo.message(job.texts, "WHEEL"),
        record=distinfo.record(job.texts),
        uses=frozenset(job.uses),
    )


class _Job:
    """What the worker threads share; each writes under its own key."""

    def __init__(self, path: Path, scratch: Path, analyse: Analyse, whole: bool) -> None:
        self.path, self.scratch, self.analyse, self.whole = path, scratch, analyse, whole
        self.texts: dict[str, bytes] = {}
        self.uses: set[tuple[str, str, str]] = set()
        self.damaged: list[tuple[str, str]] = []

    def read(self, member: zipfile.ZipInfo) -> File:
        """Hash one member, keeping small texts and handing libraries on."""
        digest = hashlib.sha256()
        name = member.filename
        try:
            content = members.chunks(self.path, member)
            first = next(content, b"")
            if first[:4] == b"\x7fELF":
                self._library(name, itertools.chain([first], content), digest)
            elif _is_text(name) and member.file_size <= _MAX_TEXT:
                text = b"".join([first, *content])
                digest.update(text)
                self._text(name, text)
            else:
                for piece in itertools.chain([first], content):
                    digest.update(piece)
        except zipfile.BadZipFile as error:
            self.damaged.append((name, str(error)))
        except OSError as error:
            raise InspectionError(
                f"cannot unpack {name}: {error.strerror}", where={"directory": str(self.scratch)}
            ) from error
        return File(name, member.file_size, member.compress_size, digest.hexdigest())

    def _text(self, name: str, content: bytes) -> None:
        if name.endswith(".py"):
            top = name.split("/", 1)[0]
            self.uses.update((top, space, operator) for space, operator in operators.uses(content))
        else:
            self.texts[name] = content

    def _library(self, name: str, content: Iterable[bytes], digest: hashlib._Hash) -> None:
        descriptor, copy = tempfile.mkstemp(dir=self.scratch)
        try:
            with os.fdopen(descriptor, "wb") as sink:
                skeleton = SkeletonWriter(sink, whole=self.whole)
                for piece in content:
                    digest.update(piece)
                    skeleton.write(piece)
                skeleton.finish()
            self.analyse(name, Path(copy), skeleton.holes)
        finally:
            Path(copy).unlink()


def _refuse_bombs(path: Path, size: int, members: list[zipfile.ZipInfo]) -> None:
    """Bound time and disk before a byte is unpacked; reading stops at a member's declared size."""
    reason = None
    if len(members) > _MAX_MEMBERS:
        reason = f"{len(members)} files"
    elif sum(member.file_size for member in members) > _MAX_TOTAL:
        reason = f"would unpack to more than {_MAX_TOTAL >> 30} GiB"
    elif sum(member.compress_size for member in members) > size:
        reason = "its files overlap"
    for member in members:
        if member.file_size > _MAX_MEMBER:
            reason = f"{member.filename} would unpack to more than {_MAX_MEMBER >> 30} GiB"
        elif member.file_size > _RATIO_FROM and member.file_size > _MAX_RATIO * max(member.compress_size, 1):
            reason = f"{member.filename} would unpack {member.file_size // max(member.compress_size, 1)}-fold"
        elif member.flag_bits & 1:
            reason = f"{member.filename} is encrypted"
    if reason is not None:
        raise _refused(path, reason)


def _refused(path: Path, reason: str) -> InspectionError:
    return InspectionError(f"refused, not a sane wheel: {reason}", where={"file": str(path)})


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _is_text(name: str) -> bool:
    if name.endswith(".py"):
        return True
    top, _, rest = name.partition("/")
    return top.endswith(".dist-info") and rest in ("METADATA", "WHEEL", "RECORD")


def _unsafe(name: str) -> bool:
    path = PurePosixPath(name)
    return not path.parts or path.is_absolute() or ".." in path.parts or any(c in name for c in "\\\0:")
