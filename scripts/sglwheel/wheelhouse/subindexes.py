"""`builds/<id>/`: the files that let clients and people see exactly one release."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence

from sglwheel import files, process
from sglwheel.wheelhouse.anchors import anchor, project_frame, quoted
from sglwheel.wheelhouse.documents import write_changed
from sglwheel.wheelhouse.house import Wheelhouse
from sglwheel.wheelhouse.lines import ANYWHERE, Lines
from sglwheel.wheelhouse.noted import Note, Notes
from sglwheel.wheelhouse.record import Record, rivals
from sglwheel.wheelhouse.rendering import render

# From here on one sync of everything costs less than several for each release.
_MANY = 100
# Pieces of that size from which on other interpreters are worth their start.
_FEW = 10


def write(house: Wheelhouse, records: Sequence[Record], notes: Notes) -> None:
    """Write those of all `records`, until they are on the disk, and note what they hash to."""
    durable = len(records) < _MANY
    pieces = [records[at : at + _MANY] for at in range(0, len(records), _MANY)]
    some = functools.partial(_write, house, durable=durable)
    # Tens of thousands of small files, and as many texts to render.
    for written in map(some, pieces) if len(pieces) < _FEW else process.spread(some, pieces):
        for id, digests in written.items():
            notes.setdefault(id, Note()).files.update(digests)
    if durable:
        files.sync_directory(house.root)
    else:
        os.sync()


def _write(house: Wheelhouse, records: Sequence[Record], *, durable: bool) -> dict[str, dict[str, str]]:
    """Release → path below its directory → SHA-256 of what is there now."""
    written: dict[str, dict[str, str]] = {}
    for record in records:
        house.expose(record)
        texts = subindex(record)
        for path, text in texts.items():
            write_changed(house.builds / record.id / path, text, durable=durable)
        written[record.id] = {path: files.digest(text) for path, text in texts.items()}
    return written


def subindex(record: Record) -> dict[str, str]:
    """The files of `builds/<id>/` that let flat and simple clients see exactly one release.

    The link in them never changes; the words around it follow the release's life.
    """
    head, tail = project_frame(record.project)
    return {
        "index.html": _build_page(record),
        "requirements.txt": Lines(record, ANYWHERE).requirements,
        f"simple/{record.project}/index.html": "\n".join(
            [head, *([] if record.removed else [anchor(record, "../../")]), tail]
        ),
        "simple/index.html": _single(record.project),
    }


@functools.cache
def subindex_names(project: str) -> frozenset[str]:
    """The files that `subindex` renders for a release of this project."""
    return frozenset({"index.html", "requirements.txt", f"simple/{project}/index.html", "simple/index.html"})


def _build_page(record: Record) -> str:
    return render(
        "build.html",
        record=record,
        file=quoted(record.filename),
        lines=Lines(record, ANYWHERE),
        rivals=", ".join(rivals(record)),
    )


@functools.cache
def _single(project: str) -> str:
    return render("simple.html", projects=[project])
