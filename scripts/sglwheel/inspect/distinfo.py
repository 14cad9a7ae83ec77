"""What a wheel says about itself: its file name, and the texts in .dist-info."""

from __future__ import annotations

import base64
import csv
import email.parser
import io
from collections.abc import Mapping
from dataclasses import dataclass
from email.message import Message

from packaging.tags import Tag
from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import Version


@dataclass(frozen=True)
class Name:
    """What a wheel's file name says."""

    distribution: str
    version: Version
    build: str
    tags: frozenset[Tag]


@dataclass(frozen=True)
class RecordEntry:
    """One line of RECORD."""

    path: str
    digest: str
    size: str


def parse_name(file_name: str) -> Name | None:
    """Take a file name apart; None for one that no installer accepts."""
    try:
        distribution, version, build, tags = parse_wheel_filename(file_name)
    except InvalidWheelFilename:
        return None
    return Name(str(distribution), version, "".join(map(str, build)), tags)


def _text(texts: Mapping[str, bytes], name: str) -> bytes | None:
    found = [key for key in texts if key.endswith(f".dist-info/{name}") and key.count("/") == 1]
    return texts[found[0]] if len(found) == 1 else None


def message(texts: Mapping[str, bytes], name: str) -> Message[str, str] | None:
    """METADATA or WHEEL, of the only .dist-info that has one."""
    content = _text(texts, name)
    if content is None:
        return None
    return email.parser.Parser().parsestr(content.decode("utf-8", "replace"), headersonly=True)


def record(texts: Mapping[str, bytes]) -> tuple[RecordEntry, ...] | None:
    """The lines of RECORD, whatever is in them; None when it is missing or not CSV."""
    content = _text(texts, "RECORD")
    if content is None:
        return None
    rows = csv.reader(io.StringIO(content.decode("utf-8", "replace"), newline=""))
    try:
        return tuple(RecordEntry(*[*row, "", "", ""][:3]) for row in rows if row)
    except csv.Error:
        return None


def record_digest(sha256: str) -> str:
    """A hex digest as RECORD writes it: `sha256=…` in unpadded base64."""
    encoded = base64.urlsafe_b64encode(bytes.fromhex(sha256)).rstrip(b"=").decode()
    return f"sha256={encoded}"
