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

import httpx
import tenacity

from sglwheel import files
from sglwheel.errors import SourceError
from sglwheel.files import Layout
from sglwheel.mirrors import Mirrors, local_path

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
    """The unpacked archive, if the store has it."""
    path = _directory(sha256, layout) / "tree"
    return _top(path) if path.is_dir() else None


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
    failures: dict[str, str] = {}
    root = files.cache_directory(layout.cache) / "urls"
    root.mkdir(exist_ok=True)
    for url in urls:
        for candidate in mirrors.candidates(url):
            with tempfile.TemporaryDirectory(prefix=".download-", dir=root) as scratch:
                archive = Path(scratch) / "archive"
                try:
                    _get(candidate, archive)
                    actual = files.sha256(archive)
                    _verify(archive, algorithm, digest.lower(), sha256, actual)
                    size = archive.stat().st_size
                    via = "origin" if candidate == url else "mirror"
                    path = _keep(archive, actual, url, via, layout)
                    return Download(actual, path, via, size)
                except SourceError as error:
                    failures[candidate] = error.what
    raise SourceError(
        "cannot get an archive with the right content" if failures else "no place is known for this url",
        where=failures or {"url": urls[0]},
        next=f"name a mirror: SGLWHEEL_MIRRORS='{urls[0]}=<url or path>'",
    )


def _get(candidate: str, target: Path) -> None:
    local = local_path(candidate)
    if local is not None:
        if not local.is_file():
            raise SourceError("no such file")
        shutil.copyfile(local, target)
        return

    @tenacity.retry(
        retry=tenacity.retry_if_exception_type((httpx.TransportError, _ServerError)),
        stop=tenacity.stop_after_attempt(3),
        wait=tenacity.wait_exponential(min=1, max=10),
        reraise=True,
    )
    def attempt() -> None:
        with httpx.stream("GET", candidate, follow_redirects=True, timeout=60) as response:
            if response.status_code >= 500 or response.status_code == 429:
                raise _ServerError(f"HTTP {response.status_code}")
            if response.status_code != 200:
                raise SourceError(f"HTTP {response.status_code}")
            with target.open("wb") as stream:
                for chunk in response.iter_bytes():
                    stream.write(chunk)

    try:
        attempt()
    except (httpx.HTTPError, httpx.InvalidURL, _ServerError) as error:
        raise SourceError(str(error) or type(error).__name__) from error


class _ServerError(Exception):
    pass


def _verify(archive: Path, algorithm: str, digest: str, locked: str | None, actual: str) -> None:
    if digest:
        with archive.open("rb") as stream:
            found = hashlib.file_digest(stream, algorithm.lower()).hexdigest()
        if found != digest:
            raise SourceError(f"has other content: {algorithm} is {found}, must be {digest}")
    if locked and actual != locked:
        raise SourceError(f"has other content: SHA256 is {actual}, the lock says {locked}")


def _keep(archive: Path, sha256: str, url: str, via: str, layout: Layout) -> Path:
    target = _directory(sha256, layout)
    if not target.is_dir():
        with files.directory_atomic(target) as scratch:
            _unpack(archive, scratch / "tree")
            archive.rename(scratch / "archive")
            (scratch / "via").write_text(via)
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
