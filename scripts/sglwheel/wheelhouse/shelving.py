"""Bring the directories of releases in step and render their lines: of many releases, on all cores."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from sglwheel import files, process
from sglwheel.wheelhouse import noted, subindexes
from sglwheel.wheelhouse.documents import Document, write_changed
from sglwheel.wheelhouse.house import Wheelhouse
from sglwheel.wheelhouse.listings import documents
from sglwheel.wheelhouse.noted import Note, Notes
from sglwheel.wheelhouse.placing import place
from sglwheel.wheelhouse.record import Record

# From here on one sync of everything costs less than several for each release.
_MANY = 100
# Pieces of that size from which on other interpreters are worth their start.
_FEW = 10


@dataclass(frozen=True)
class Shelf:
    """Releases whose directories are in step, oldest first, and those of their lines that are rendered."""

    records: list[Record]
    # Document, by its path below the wheelhouse → release → its line, None where it has none.
    lines: Mapping[str, Mapping[str, str | None]] = field(default_factory=dict)

    def document(self, document: Document, name: str) -> Document:
        """The document, but what is rendered already is taken from here."""
        known = self.lines.get(name, {})

        def line(record: Record) -> str | None:
            return known[record.id] if record.id in known else document.line(record)

        return replace(document, line=line)


@dataclass(frozen=True)
class _Shelved:
    record: Record
    note: Note
    lines: dict[str, str | None]


def shelve(house: Wheelhouse, ids: Sequence[str], notes: Notes, stamp: str) -> Shelf:
    """Write `builds/<id>/` of these releases, until it is on the disk, and note what is in it.

    Needs the lock. Raises WheelhouseError for a record that is damaged.
    """
    if len(ids) < _MANY:
        records = sorted(map(house.read, ids), key=Record.order)
        for record in records:
            notes[record.id] = Note(files=_write(house, record))
        files.sync_directory(house.root)
        return Shelf(records)
    pieces = [ids[at : at + _MANY] for at in range(0, len(ids), _MANY)]
    some = functools.partial(_shelve, house, stamp)
    # Tens of thousands of small files, and as many texts to render.
    done = map(some, pieces) if len(pieces) < _FEW else process.spread(some, pieces)
    shelved = sorted((one for piece in done for one in piece), key=lambda one: one.record.order())
    lines: dict[str, dict[str, str | None]] = {}
    for one in shelved:
        notes[one.record.id] = one.note
        for name, line in one.lines.items():
            lines.setdefault(name, {})[one.record.id] = line
    os.sync()
    return Shelf([one.record for one in shelved], lines)


def _write(house: Wheelhouse, record: Record) -> dict[str, str]:
    """Path below the release's directory → SHA-256 of what is there now, and on the disk."""
    house.expose(record)
    texts = subindexes.subindex(record)
    for path, text in texts.items():
        write_changed(house.builds / record.id / path, text)
    return {path: files.digest(text) for path, text in texts.items()}


def _shelve(house: Wheelhouse, stamp: str, ids: Sequence[str]) -> list[_Shelved]:
    """All that is read, rendered and written of each release; on the disk only after an `os.sync()`."""
    read = [house.read_text(id) for id in ids]
    shown = {
        str(document.path.relative_to(house.root)): document
        for document in documents(house.root, sorted({record.project for record, _ in read}), ())
    }
    return [_shelved(house, record, noted.key(text, stamp), shown) for record, text in read]


def _shelved(house: Wheelhouse, record: Record, key: str, shown: Mapping[str, Document]) -> _Shelved:
    house.expose(record)
    texts = {path: text.encode() for path, text in subindexes.subindex(record).items()}
    place(f"{house.builds}/{record.id}", texts)
    lines = {name: document.line(record) for name, document in shown.items() if document.holds(record)}
    note = Note(
        key,
        {path: files.digest(text) for path, text in texts.items()},
        {name: files.digest(line) for name, line in lines.items() if line is not None},
    )
    return _Shelved(record, note, lines)
