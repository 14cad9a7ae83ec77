"""What clients and people read, derived from the releases: catalogue, `simple/`, subindexes, the page.

Our own templates: of the generators looked at, dumb-pypi writes absolute urls and knows no subindexes, and
simple-repository's HTML does not escape what it is given. pypi-simple, an independent parser, checks ours
in tests.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from sglwheel import __version__
from sglwheel.wheelhouse.anchors import anchor, project_frame
from sglwheel.wheelhouse.documents import Document, write_changed
from sglwheel.wheelhouse.house import Wheelhouse
from sglwheel.wheelhouse.lines import ANYWHERE, Lines
from sglwheel.wheelhouse.listings import catalogue, page, simple_documents
from sglwheel.wheelhouse.noted import Notes
from sglwheel.wheelhouse.record import Record
from sglwheel.wheelhouse.rendering import listing, render
from sglwheel.wheelhouse.shelving import Shelf, shelve


def derive(house: Wheelhouse, notes: Notes, *, fresh: bool = False) -> Shelf:
    """Bring all but lines and page up to date with the releases in flight; return those. Needs the lock.

    What is rendered is noted in `notes`, which `write_page` keeps.
    `fresh` reads and writes all of it, as does a wheelhouse that another version of the tool wrote, or whose
    catalogue does not list what is on disk.
    """
    changed = [id for id in house.in_flight() if (house.builds / id).is_dir()]
    if fresh or not _current(house, changed):
        # The stamp comes back when all of it is on the disk.
        house.stamp.unlink(missing_ok=True)
        changed = house.ids()
    whole = not house.stamp.is_file()
    shelf = shelve(house, changed, notes, stamp())
    # The catalogue first: it decides whether the next refresh may splice, so it must not be behind the rest
    # while the journal still names what is missing there.
    _update([catalogue(house.root)], shelf, house, notes, whole=whole)
    for project in sorted({record.project for record in shelf.records}):
        _update(simple_documents(house.root, project), shelf, house, notes, whole=whole)
    _project_list(house)
    return shelf


def write_page(
    house: Wheelhouse, shelf: Shelf, lines: Iterable[Any], notes: Notes, *, fresh: bool = False
) -> None:
    """Write `index.html`, last of all, and say that everything is in step."""
    whole = fresh or not house.stamp.is_file()
    _update([page(house.root, lines)], shelf, house, notes, whole=whole)
    notes.write(house.notes, shelf.records, stamp(), whole=whole)
    write_changed(house.stamp, stamp())


def line_files(name: str, records: list[Record]) -> dict[str, str]:
    """The files of `lines/<name>/`: a page with flat links, and a simple index of the same wheels."""
    projects = sorted({record.project for record in records})
    texts = {
        "index.html": render(
            "line.html", name=name, records=records, lines=[Lines(record, ANYWHERE) for record in records]
        ),
        "simple/index.html": render("simple.html", projects=projects),
    }
    for project in projects:
        head, tail = project_frame(project)
        # To where metadata lies beside the wheel, as these links promise; a bucket has the wheel only there.
        anchors = [
            anchor(record, f"../../../../builds/{record.id}/")
            for record in records
            if record.project == project
        ]
        texts[f"simple/{project}/index.html"] = "\n".join([head, *anchors, tail])
    return texts


def _update(
    documents: Iterable[Document], shelf: Shelf, house: Wheelhouse, notes: Notes, *, whole: bool
) -> None:
    """Write documents in their order: spliced, or whole where that is not sure to be right."""
    for silent in documents:
        name = str(silent.path.relative_to(house.root))
        document = shelf.document(notes.recording(silent, name), name)
        changed = [record for record in shelf.records if document.holds(record)]
        text = None
        if not whole:
            with suppress(OSError, UnicodeDecodeError):
                text = document.spliced(document.path.read_text("utf-8"), changed)
        if text is None:
            everything = changed if whole else sorted(house.records().values(), key=Record.order)
            text = document.whole(record for record in everything if document.holds(record))
        write_changed(document.path, text)


def _current(house: Wheelhouse, changed: Iterable[str]) -> bool:
    try:
        listed = catalogue(house.root).shown(house.catalogue.read_text("utf-8"))
        return stamped(house) and listed.keys() | set(changed) == set(house.ids())
    except (OSError, UnicodeDecodeError):
        return False


def stamped(house: Wheelhouse) -> bool:
    """Whether this very version of the tool wrote the derived files, to the last of them."""
    try:
        return house.stamp.read_text("utf-8") == stamp()
    except (OSError, UnicodeDecodeError):
        return False


@functools.cache
def stamp() -> str:
    """Changes when anything that renders changes."""
    digest = hashlib.sha256(__version__.encode())
    for name in sorted(listing()):
        digest.update((Path(__file__).parent.parent / "templates" / name).read_bytes())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _project_list(house: Wheelhouse) -> None:
    simple = house.root / "simple"
    projects = sorted(path.name for path in simple.iterdir() if path.is_dir()) if simple.is_dir() else []
    names = [{"name": project} for project in projects]
    text = json.dumps({"meta": {"api-version": "1.1"}, "projects": names}, indent=0) + "\n"
    write_changed(simple / "index.json", text)
    write_changed(simple / "index.html", render("simple.html", projects=projects))
