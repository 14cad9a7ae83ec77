"""A bundle: all that a recipe's build takes from elsewhere, each file by its hash.

A directory, or the same as one file: a tar in zstd, with the same bytes for the same content.
"""

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zstandard

from sglwheel import files
from sglwheel.console import counted
from sglwheel.errors import SourceError, UsageError
from sglwheel.files import Layout
from sglwheel.mirrors import Mirrors

MANIFEST = "bundle.json"
SCHEMA = 1
ARCHIVE = ".tar.zst"
# Nearly all of it are wheels, which are compressed already.
_LEVEL = 3


@dataclass(frozen=True)
class Bundle:
    """A bundle as its manifest describes it."""

    root: Path
    recipe: str
    files: Mapping[str, str]
    """Path below the root → SHA-256."""
    places: Mapping[str, str]
    """Url → path below the root of the repository or file that stands for it."""

    @classmethod
    def open(cls, root: Path) -> Bundle:
        """Read a bundle's manifest. Raises UsageError when there is none."""
        path = root / MANIFEST
        try:
            data: dict[str, Any] = json.loads(path.read_text("utf-8"))
            if data["schema"] != SCHEMA:
                raise ValueError(f"schema {data['schema']}")
            return cls(root.absolute(), data["recipe"], data["files"], data["places"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UsageError(
                f"{root} is no bundle: {error}", next="sglwheel vendor <recipe> -o <directory>"
            ) from None

    @classmethod
    def at(cls, place: Path, scratch: Path) -> Bundle:
        """The bundle at a place; one that is a file is unpacked below `scratch`, once.

        Raises UsageError for what is none, SourceError for an archive that is damaged.
        """
        if not (place.name.endswith(ARCHIVE) and place.is_file()):
            return cls.open(place)
        facts = place.stat()
        key = files.digest(f"{place.absolute()}\n{facts.st_size}\n{facts.st_mtime_ns}")[:16]
        into = scratch / key
        if not into.is_dir():
            with files.directory_atomic(into) as half:
                _unpack(place, half)
        return cls.open(into)

    def pack(self, target: Path) -> None:
        """Write this bundle as one file, whole or not at all."""
        part = target.with_name(f"{target.name}.part")
        target.parent.mkdir(parents=True, exist_ok=True)
        compressor = zstandard.ZstdCompressor(level=_LEVEL, threads=0)
        try:
            with (
                part.open("wb") as stream,
                compressor.stream_writer(stream, closefd=False) as packed,
                tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as tar,
            ):
                for name in sorted((*self.files, MANIFEST)):
                    path = self.root / name
                    member = tarfile.TarInfo(name)
                    member.size, member.mode = path.stat().st_size, 0o644
                    with path.open("rb") as content:
                        tar.addfile(member, content)
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)

    def verify(self) -> None:
        """Compare every file with its hash. Raises SourceError naming those that differ."""
        wrong: dict[str, str] = {}
        for name, sha256 in self.files.items():
            path = self.root / name
            if not path.is_file():
                wrong[name] = "is missing"
            elif files.sha256_once(path) != sha256:
                wrong[name] = "is damaged"
        if wrong:
            raise SourceError(
                f"{counted(len(wrong), 'file')} of the bundle differ from what it was made with",
                where={"bundle": str(self.root), **wrong},
                next=f"copy it again, or complete it: sglwheel vendor {self.recipe} -o {self.root}",
            )

    def fits(self, layout: Layout) -> None:
        """Refuse a bundle that was made for other locks. Raises SourceError naming the file."""
        for name, sha256 in self.files.items():
            path = layout.root / name
            if name.startswith("recipes/") and (not path.is_file() or files.sha256(path) != sha256):
                raise SourceError(
                    f"the bundle was made for another {name}",
                    where={"bundle": str(self.root), "file": layout.relative(path)},
                    next=f"make it anew: sglwheel vendor {self.recipe} -o <directory>",
                )

    def mirrors(self, mirrors: Mirrors) -> Mirrors:
        """The mirrors with the bundle in front."""
        return mirrors.with_entries({url: self.root / path for url, path in self.places.items()})

    def adopt(self, layout: Layout) -> None:
        """Give the bundle's wheels their places in the store, without copying where that can be."""
        files.cache_directory(layout.cache)
        for name, sha256 in self.files.items():
            if name.startswith("wheels/"):
                target = layout.cache / "wheels" / sha256 / name.removeprefix("wheels/")
                if not target.is_file():
                    target.parent.mkdir(parents=True, exist_ok=True)
                    files.link(self.root / name, target)

    def isolate(self) -> None:
        """Tell every uv of this process to ask nobody and to take what the bundle has."""
        os.environ["UV_NO_INDEX"] = "1"
        os.environ["UV_FIND_LINKS"] = str(self.root / "wheels")


def _unpack(archive: Path, into: Path) -> None:
    try:
        with (
            archive.open("rb") as stream,
            zstandard.ZstdDecompressor().stream_reader(stream) as content,
            tarfile.open(fileobj=content, mode="r|") as tar,
        ):
            tar.extractall(into, filter="data")
    except (tarfile.TarError, zstandard.ZstdError, EOFError) as error:
        raise SourceError(
            f"{archive.name} is damaged: {error}",
            where={"file": str(archive)},
            next="copy it again, or make it anew: sglwheel vendor <recipe> -o <file>",
        ) from None


def no_network() -> None:
    """Tell every uv of this process to ask nobody."""
    os.environ["UV_OFFLINE"] = "1"
