"""Which wheel is installed: the report must be about the bytes that ran."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import re
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple


class WheelError(Exception):
    """The wheel cannot be read, or is not what is installed."""


class Wheel(NamedTuple):
    """What a report needs to know of a wheel file."""

    sha256: str
    version: str
    capabilities: list[str]
    """What it was built for, by its own provenance; empty for another builder's wheel."""


def read(path: Path) -> Wheel:
    """Hash a wheel and hold every installed file against its RECORD. Raises WheelError."""
    digest = hashlib.sha256()
    try:
        with path.open("rb") as stream:
            while chunk := stream.read(1 << 20):
                digest.update(chunk)
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            info = next(name.split("/")[0] for name in names if name.endswith(".dist-info/RECORD"))
            record = archive.read(f"{info}/RECORD").decode("utf-8")
            origin = f"{info}/sglwheel.json"
            provenance: Any = json.loads(archive.read(origin)) if origin in names else {}
    except (OSError, zipfile.BadZipFile, StopIteration, KeyError, ValueError) as error:
        raise WheelError(f"cannot read {path}: {error or 'no RECORD in it'}") from error
    name, _, version = info.removesuffix(".dist-info").partition("-")
    _demand_installed(name, version, record)
    return Wheel(digest.hexdigest(), version, _capabilities(provenance))


def _demand_installed(name: str, version: str, record: str) -> None:
    try:
        distribution = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        raise WheelError(f"{name} is not installed here") from None
    if distribution.version != version:
        raise WheelError(f"{name} {distribution.version} is installed, not {version}")
    for row in csv.reader(io.StringIO(record)):
        if len(row) != 3 or not row[1].startswith("sha256="):
            continue
        file = Path(str(distribution.locate_file(row[0])))
        try:
            content = file.read_bytes()
        except OSError:
            raise WheelError(f"{row[0]} of the wheel is not installed") from None
        real = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        if real != row[1].removeprefix("sha256="):
            raise WheelError(f"{row[0]} is installed with other contents than the wheel's")


def _capabilities(provenance: Any) -> list[str]:
    flags = provenance.get("flags") if isinstance(provenance, dict) else None
    given = flags.get("architectures") if isinstance(flags, dict) else None
    found = [re.match(r"\d+\.\d+", str(each)) for each in given or []]
    return [match[0] for match in found if match]
