"""What derived files of a release hash to, noted when they are written: `verify` then need not render them.

Only a shortcut. A file whose hash is not noted, or is another, is judged by rendering it; a note that is lost
or torn costs time and nothing else.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from sglwheel.wheelhouse.record import Record

Notes = dict[str, tuple[str, dict[str, str]]]


def key(record: Record, stamp: str) -> str:
    """Names all that a release's derived files are rendered from."""
    return hashlib.sha256(f"{stamp}\n{record.to_json()}".encode()).hexdigest()


def write(
    path: Path, records: Iterable[tuple[Record, Mapping[str, str]]], stamp: str, *, whole: bool
) -> None:
    """Note the files of these releases; `whole` forgets all others."""
    with path.open("w" if whole else "a", encoding="utf-8") as stream:
        for record, texts in records:
            hashes = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()}
            stream.write(json.dumps([record.id, key(record, stamp), hashes], separators=(",", ":")) + "\n")


def read(path: Path) -> Notes:
    """For each release the key and its files' hashes, as they were last noted."""
    notes: Notes = {}
    lines = 0
    try:
        with path.open(encoding="utf-8", errors="replace") as stream:
            for line in stream:
                lines += 1
                try:
                    id, noted, hashes = json.loads(line)
                    notes[str(id)] = str(noted), dict(hashes)
                except (ValueError, TypeError):
                    continue
    except OSError:
        return {}
    if lines > 2 * len(notes) + 100:
        text = "".join(json.dumps([id, *note], separators=(",", ":")) + "\n" for id, note in notes.items())
        path.write_text(text, "utf-8")
    return notes
