"""Read a wheel's own words and hold them against its name and bytes."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import os
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.metadata import parse_email
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from sglwheel.errors import WheelhouseError
from sglwheel.nodecheck.node import by_installer


@dataclass(frozen=True)
class WheelFile:
    """A wheel whose name, METADATA, WHEEL and RECORD agree with each other and with its bytes."""

    path: Path
    name: str
    version: Version
    tag: str
    sha256: str
    size: int
    requires_python: str | None
    requires_dist: tuple[str, ...]
    metadata: bytes
    contents_sha256: str
    provenance: dict[str, Any]

    @property
    def filename(self) -> str:
        return self.path.name

    @property
    def id(self) -> str:
        """The release's directory and handle: the file's name without `+`, which urls have to escape."""
        return release_id(self.path.name)

    @classmethod
    def read(cls, path: Path) -> WheelFile:
        """Read and check all of it, also every file's hash.

        Raises WheelhouseError for a torn archive, a renamed wheel, or a RECORD that does not tell the truth.
        """
        try:
            name, version, _build, tags = parse_wheel_filename(path.name)
        except (InvalidWheelFilename, InvalidVersion) as error:
            raise _refused(path, f"its name is not a wheel's: {error}") from None
        try:
            # One open file: what is hashed is what is read, also if somebody swaps the name meanwhile.
            with path.open("rb") as stream, zipfile.ZipFile(stream) as archive:
                stream.seek(0)
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
                size = os.fstat(stream.fileno()).st_size
                return cls._checked(
                    path, archive, str(name), version, {str(tag) for tag in tags}, digest, size
                )
        except OSError as error:
            raise _refused(path, f"cannot be read: {error.strerror or error}") from error
        except (zipfile.BadZipFile, EOFError, ValueError, KeyError) as error:
            raise _refused(path, f"is not a whole zip archive: {error}") from error

    @classmethod
    def _checked(
        cls,
        path: Path,
        archive: zipfile.ZipFile,
        name: str,
        version: Version,
        tags: set[str],
        digest: str,
        size: int,
    ) -> WheelFile:
        info = _dist_info(path, archive)
        if archive.testzip() is not None:
            raise _refused(path, "holds a file whose checksum is wrong")
        metadata = archive.read(f"{info}/METADATA")
        fields, _unparsed = parse_email(metadata)
        said_name, said_version = fields.get("name", ""), fields.get("version", "0")
        if canonicalize_name(said_name) != name:
            raise _refused(path, f"METADATA says {said_name!r}: it was renamed")
        if Version(said_version) != version:
            raise _refused(path, f"METADATA says version {said_version}: it was renamed")
        lines = archive.read(f"{info}/WHEEL").decode().splitlines()
        said_tags = {line.partition(":")[2].strip() for line in lines if line.startswith("Tag:")}
        if said_tags != tags:
            raise _refused(
                path, f"WHEEL says {', '.join(sorted(said_tags)) or 'no tag'}: it was retagged by renaming"
            )
        _check_record(path, archive, info)
        return cls(
            path=path,
            name=said_name,
            version=version,
            tag="-".join(path.name.removesuffix(".whl").split("-")[-3:]),
            sha256=digest,
            size=size,
            requires_python=fields.get("requires_python"),
            requires_dist=tuple(fields.get("requires_dist", ())),
            metadata=metadata,
            contents_sha256=contents_sha256(record_of(archive, info)),
            provenance=_provenance(archive, info),
        )


def release_id(filename: str) -> str:
    """`sgl_kernel-0.3.21+cu130.….whl` → the same without `.whl` and with `_` for `+`.

    Neither a distribution's name nor a version in a file name holds `+`, so two files never share an id.
    """
    return filename.removesuffix(".whl").replace("+", "_")


def contents_sha256(record: dict[str, str]) -> str:
    """What `nodecheck` computes from an installed distribution, here from the wheel's RECORD."""
    lines = [f"{name},{said}" for name, said in record.items() if not by_installer(name)]
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()


def record_of(archive: zipfile.ZipFile, info: str) -> dict[str, str]:
    """Each file that RECORD lists with a hash → that hash (`sha256=…`, urlsafe base64 without padding)."""
    rows = csv.reader(io.StringIO(archive.read(f"{info}/RECORD").decode()))
    return {row[0]: row[1] for row in rows if len(row) >= 2 and row[1]}


def _dist_info(path: Path, archive: zipfile.ZipFile) -> str:
    names = {name.partition("/")[0] for name in archive.namelist()}
    infos = sorted(name for name in names if name.endswith(".dist-info"))
    if len(infos) != 1:
        raise _refused(path, f"has {len(infos)} .dist-info directories, not one")
    hostile = [
        name for name in archive.namelist() if name.startswith("/") or ".." in name.split("/") or "\\" in name
    ]
    if hostile:
        raise _refused(path, f"holds a path that leaves the environment: {hostile[0]!r}")
    return infos[0]


def _check_record(path: Path, archive: zipfile.ZipFile, info: str) -> None:
    record = record_of(archive, info)
    # The three files that RECORD cannot or need not hash.
    free = {f"{info}/RECORD", f"{info}/RECORD.jws", f"{info}/RECORD.p7s"}
    present = {item.filename for item in archive.infolist() if not item.is_dir()}
    for name in sorted(present - free - record.keys()):
        raise _refused(path, f"RECORD does not list {name}")
    for name in sorted(record.keys() - present):
        raise _refused(path, f"RECORD lists {name}, which is not there")
    for name, said in record.items():
        algorithm, _, value = said.partition("=")
        if algorithm not in ("sha256", "sha384", "sha512"):
            raise _refused(path, f"RECORD hashes {name} with {algorithm!r}")
        digest = hashlib.new(algorithm)
        with archive.open(name) as stream:
            while chunk := stream.read(1 << 20):
                digest.update(chunk)
        if base64.urlsafe_b64encode(digest.digest()).rstrip(b"=").decode() != value:
            raise _refused(path, f"RECORD's hash of {name} is not that of its bytes")


def _provenance(archive: zipfile.ZipFile, info: str) -> dict[str, Any]:
    """What the finishing stage wrote about the inputs; wheels made elsewhere have none."""
    for name in (f"{info}/provenance.json", f"{info}/sglwheel.json"):
        try:
            value = json.loads(archive.read(name))
        except KeyError:
            continue
        return value if isinstance(value, dict) else {}
    return {}


def _refused(path: Path, why: str) -> WheelhouseError:
    return WheelhouseError(
        f"not a wheel to publish: {path.name} {why}",
        where={"file": str(path)},
        next="copy it again from the host that built it, under its own name, or build it again",
    )
