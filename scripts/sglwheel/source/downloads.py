"""Archives by url: downloaded once, verified, unpacked the way FetchContent would."""

from __future__ import annotations

import hashlib
import re
import shutil
import tarfile
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from sglwheel import console, files, transfer
from sglwheel.errors import SourceError
from sglwheel.files import Layout
from sglwheel.mirrors import Mirrors
from sglwheel.source import unpacked

_FORGE = re.compile(
    r"https://(?:github\.com|codeload\.github\.com)/(?P<owner>[^/]+)/(?P<name>[^/]+)/(?:archive|tar\.gz|zip)/"
    r"(?:refs/(?:tags|heads)/)?(?P<revision>.+?)(?:\.tar\.gz|\.tgz|\.zip)?"
)


@dataclass(frozen=True)
class Download:
    """An archive in the store: its hash, and the directory that FetchContent would call the source."""

    sha256: str
    path: Path
    via: str
    received: int


def forge_archive(url: str) -> tuple[str, str] | None:
    """The repository and revision of which a forge makes this archive; None if it is another url."""
    match = _FORGE.fullmatch(url)
    return (f"https://github.com/{match['owner']}/{match['name']}", match["revision"]) if match else None


def stored(sha256: str, layout: Layout) -> Path | None:
    """The unpacked archive, if the store has it as it was; unpacked again if somebody edited it."""
    root = _directory(sha256, layout)
    tree, archive, note = root / "tree", root / "archive", root / "state"
    if not tree.is_dir() and not archive.is_file():
        return None
    if tree.is_dir() and note.is_file() and note.read_text() == unpacked.state(tree):
        return _top(tree)
    with files.locked(root.with_suffix(".lock"), failure=SourceError, what=f"archive {sha256[:12]}"):
        if not archive.is_file() or files.sha256(archive) != sha256:
            shutil.rmtree(root, ignore_errors=True)
            return None
        shutil.rmtree(tree, ignore_errors=True)
        _unpack(archive, tree)
        files.write_atomic(note, unpacked.state(tree))
    return _top(tree)


def archive_of(sha256: str, layout: Layout) -> Path:
    """Where the bytes of an archive lie when it is stored."""
    return _directory(sha256, layout) / "archive"


def edited(sha256: str, layout: Layout) -> list[Path]:
    """Files of an unpacked archive that are not what the archive has, read byte by byte."""
    root = _directory(sha256, layout)
    if not (root / "tree").is_dir():
        return []
    with tempfile.TemporaryDirectory(dir=root) as scratch:
        _unpack(root / "archive", Path(scratch) / "tree")
        true, now = unpacked.contents(Path(scratch) / "tree"), unpacked.contents(root / "tree")
    return [
        root / "tree" / path for path in sorted(true.keys() | now.keys()) if true.get(path) != now.get(path)
    ]


def ask(url: str, expected: str, sha256: str, layout: Layout, mirrors: Mirrors) -> None:
    """Whether a place still has the bytes of a hash, whatever is stored. Raises SourceError."""
    algorithm, _, digest = expected.partition("=")
    root = files.cache_directory(layout.cache) / "urls"
    root.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".check-", dir=root) as scratch:
        transfer.fetch(
            url,
            mirrors.candidates(url),
            Path(scratch) / "archive",
            check=lambda path: _verify(path, algorithm, digest.lower(), sha256, files.sha256(path)),
            failure=SourceError,
            what="an archive",
        )


def download(
    urls: tuple[str, ...], expected: str, sha256: str | None, layout: Layout, mirrors: Mirrors
) -> Download:
    """Get an archive from the first place that has the right bytes.

    `expected` is CMake's `ALGORITHM=<hex>` or empty, `sha256` what the lock says. Raises SourceError.
    """
    algorithm, _, digest = expected.partition("=")
    if expected and (not digest or algorithm.lower() not in hashlib.algorithms_available):
        raise SourceError(f"cannot check {expected!r}: not a hash", where={"url": urls[0]})
    known = digest.lower() if algorithm.upper() == "SHA256" else sha256
    if known and (path := stored(known, layout)):
        return Download(known, path, _via(path), 0)
    root = files.cache_directory(layout.cache) / "urls"
    places = tuple(dict.fromkeys(place for url in urls for place in mirrors.candidates(url)))
    name = f"{known or files.digest(urls[0])}.download"
    guard = root / f"{name}.lock"
    with (
        files.locked(guard, failure=SourceError, what=urls[0]),
        console.progress(urls[0].rpartition("/")[2], unit="bytes") as bar,
    ):
        got = 0

        def count(received: int) -> None:
            nonlocal got
            got += received
            bar.update(got, None)

        def check(path: Path) -> None:
            _verify(path, algorithm, digest.lower(), sha256, files.sha256(path))

        archive = root / name
        try:
            delivery = transfer.fetch(
                urls[0],
                places,
                archive,
                check=check,
                failure=SourceError,
                what="an archive",
                # Halves of unknown wholes do not fit together.
                resume=bool(known or digest),
                on_bytes=count,
            )
            actual, size = files.sha256(archive), delivery.received
            via = "origin" if delivery.place in urls else "mirror"
            path = _keep(archive, actual, via, layout)
        finally:
            archive.unlink(missing_ok=True)
    return Download(actual, path, via, size)


def _verify(archive: Path, algorithm: str, digest: str, locked: str | None, actual: str) -> None:
    if digest:
        with archive.open("rb") as stream:
            found = hashlib.file_digest(stream, algorithm.lower()).hexdigest()
        if found != digest:
            raise SourceError(f"has other content: {algorithm} is {found}, must be {digest}")
    if locked and actual != locked:
        raise SourceError(f"has other content: SHA256 is {actual}, the lock says {locked}")


def _keep(archive: Path, sha256: str, via: str, layout: Layout) -> Path:
    target = _directory(sha256, layout)
    if not target.is_dir():
        with files.directory_atomic(target) as scratch:
            _unpack(archive, scratch / "tree")
            archive.rename(scratch / "archive")
            (scratch / "via").write_text(via)
            (scratch / "state").write_text(unpacked.state(scratch / "tree"))
    path = stored(sha256, layout)
    assert path is not None
    return path


def _unpack(archive: Path, into: Path) -> None:
    into.mkdir()
    try:
        if tarfile.is_tarfile(archive):
            with tarfile.open(archive) as tar:
                tar.extractall(into, filter="data")
        elif zipfile.is_zipfile(archive):
            _unzip(archive, into)
        else:
            raise SourceError("is neither a tar nor a zip archive")
    except (tarfile.TarError, zipfile.BadZipFile, OSError, EOFError) as error:
        raise SourceError(f"cannot be unpacked: {error}") from error


def _unzip(archive: Path, into: Path) -> None:
    with zipfile.ZipFile(archive) as container:
        for member in container.infolist():
            path = Path(container.extract(member, into))
            # zipfile drops the executable bit.
            if path.is_file() and member.external_attr >> 16 & 0o100:
                path.chmod(path.stat().st_mode | 0o111)


def _via(path: Path) -> str:
    notes = [parent / "via" for parent in path.parents[:2] if parent.name != "tree"]
    return next((note.read_text() for note in notes if note.is_file()), "mirror")


def _top(path: Path) -> Path:
    inside = list(path.iterdir())
    return inside[0] if len(inside) == 1 and inside[0].is_dir() else path


def _directory(sha256: str, layout: Layout) -> Path:
    return layout.cache / "urls" / sha256
