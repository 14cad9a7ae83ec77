"""What derived files and lines of a release hash to, noted when written: `verify` need not render them.

Only a shortcut. What is not noted, or hashes to something else, is judged by rendering it; a note that is
lost or torn costs time and nothing else.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from sglwheel.files import digest
from sglwheel.wheelhouse.documents import Document
from sglwheel.wheelhouse.record import Record


def key(record: bytes, stamp: str) -> str:
    """Names all that a release's derived text is rendered from: the text of its record, and what renders."""
    return hashlib.sha256(stamp.encode() + record).hexdigest()


@dataclass(frozen=True)
class Note:
    """One release's, as of the record that `key` names."""

    # Empty for the record that is written with the note.
    key: str = ""
    # Below `builds/<id>/`: relative path → SHA-256.
    files: dict[str, str] = field(default_factory=dict)
    # Document, by its path below the wheelhouse → SHA-256 of the release's line in it.
    lines: dict[str, str] = field(default_factory=dict)


class Notes(dict[str, Note]):
    """By release. Filled by what renders, appended to a file, read back by `verify`."""

    def recording(self, document: Document, name: str) -> Document:
        """The document, but what it renders is noted."""

        def line(record: Record) -> str | None:
            text = document.line(record)
            if text is not None:
                self.setdefault(record.id, Note()).lines[name] = digest(text)
            return text

        return replace(document, line=line)

    def believing(self, document: Document, name: str, text: str) -> Document:
        """The document, but lines of `text` whose hashes are noted are taken from there."""
        shown = document.shown(text)

        def line(record: Record) -> str | None:
            note, there = self.get(record.id), shown.get(record.id)
            if note is not None and there is not None and note.lines.get(name) == digest(there):
                return there
            return document.line(record)

        return replace(document, line=line)

    def write(self, path: Path, records: Iterable[Record], stamp: str, *, whole: bool) -> None:
        """Note these releases; `whole` forgets all others."""
        with path.open("w" if whole else "a", encoding="utf-8") as stream:
            for record in records:
                note = self.get(record.id, Note())
                named = note.key or key(record.to_json().encode(), stamp)
                row = [record.id, named, note.files, note.lines]
                stream.write(json.dumps(row, separators=(",", ":")) + "\n")

    @classmethod
    def read(cls, path: Path) -> Notes:
        """What was noted last of each release."""
        notes, rows = cls(), 0
        try:
            with path.open(encoding="utf-8", errors="replace") as stream:
                for row in stream:
                    rows += 1
                    try:
                        id, noted, files, lines = json.loads(row)
                        notes[str(id)] = Note(str(noted), dict(files), dict(lines))
                    except (ValueError, TypeError):
                        continue
        except OSError:
            return cls()
        if rows > 2 * len(notes) + 100:
            kept = ([id, note.key, note.files, note.lines] for id, note in notes.items())
            path.write_text("".join(json.dumps(row, separators=(",", ":")) + "\n" for row in kept), "utf-8")
        return notes
