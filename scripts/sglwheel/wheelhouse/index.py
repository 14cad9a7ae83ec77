"""What clients and people read, derived from the releases: catalogue, `simple/`, subindexes, the page.

Our own templates: of the generators looked at, dumb-pypi writes absolute urls and knows no subindexes, and
simple-repository's HTML does not escape what it is given. pypi-simple, an independent parser, checks ours
in tests.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from sglwheel import __version__
from sglwheel.wheelhouse import subindexes
from sglwheel.wheelhouse.anchors import SPLIT, anchor, project_frame, quoted
from sglwheel.wheelhouse.documents import Document, write_changed
from sglwheel.wheelhouse.house import Wheelhouse
from sglwheel.wheelhouse.lines import ANYWHERE, Lines
from sglwheel.wheelhouse.noted import Notes
from sglwheel.wheelhouse.record import Record
from sglwheel.wheelhouse.rendering import listing, render, template
from sglwheel.wheelhouse.wheelfile import release_id


def derive(house: Wheelhouse, notes: Notes, *, fresh: bool = False) -> list[Record]:
    """Bring all but lines and page up to date with the releases in flight; return those. Needs the lock.

    What is rendered is noted in `notes`, which `write_page` keeps.
    `fresh` reads and writes all of it, as does a wheelhouse that another version of the tool wrote, or whose
    catalogue does not list what is on disk.
    """
    flight = [id for id in house.in_flight() if (house.builds / id).is_dir()]
    changed = sorted(map(house.read, flight), key=Record.order)
    if fresh or not _current(house, flight):
        # The stamp comes back when all of it is on the disk.
        house.stamp.unlink(missing_ok=True)
        changed = sorted(map(house.read, house.ids()), key=Record.order)
    whole = not house.stamp.is_file()
    subindexes.write(house, changed, notes)
    # The catalogue first: it decides whether the next refresh may splice, so it must not be behind the rest
    # while the journal still names what is missing there.
    _update([catalogue(house.root)], changed, house, notes, whole=whole)
    for project in sorted({record.project for record in changed}):
        members = [record for record in changed if record.project == project]
        _update(simple_documents(house.root, project), members, house, notes, whole=whole)
    _project_list(house)
    return changed


def write_page(
    house: Wheelhouse, changed: Sequence[Record], lines: Iterable[Any], notes: Notes, *, fresh: bool = False
) -> None:
    """Write `index.html`, last of all, and say that everything is in step."""
    whole = fresh or not house.stamp.is_file()
    _update([page(house.root, lines)], list(changed), house, notes, whole=whole)
    notes.write(house.notes, changed, stamp(), whole=whole)
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


def documents(house: Wheelhouse, projects: Iterable[str], lines: Iterable[Any]) -> list[Document]:
    """Every derived document that has a line for each release."""
    found = [catalogue(house.root), page(house.root, lines)]
    for project in projects:
        found += simple_documents(house.root, project)
    return found


def _update(
    documents: Iterable[Document], changed: list[Record], house: Wheelhouse, notes: Notes, *, whole: bool
) -> None:
    """Write documents in their order: spliced, or whole where that is not sure to be right."""
    for silent in documents:
        document = notes.recording(silent, str(silent.path.relative_to(house.root)))
        text = None
        if not whole:
            with suppress(OSError, UnicodeDecodeError):
                text = document.spliced(document.path.read_text("utf-8"), changed)
        if text is None:
            shown = changed if whole else sorted(house.records().values(), key=Record.order)
            text = document.whole(record for record in shown if document.holds(record))
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


def catalogue(root: Path) -> Document:
    """`releases.json`: one record a line, so that a difference between two states reads well."""
    return Document(
        root / "releases.json",
        line=lambda record: record.model_dump_json(by_alias=True, exclude_defaults=True),
        frame=lambda _: ('{"schema": 1, "', "}\n"),
        opening='releases": [',
        closing="]",
        separator=",\n",
        key=lambda line: release_id(line.partition('"filename":"')[2].partition('"')[0]),
    )


def simple_documents(root: Path, project: str) -> tuple[Document, Document]:
    """`simple/<project>/`: PEP 691 and 700 as JSON; PEP 503 with 592, 658 and 714 as HTML."""

    def holds(record: Record) -> bool:
        return record.project == project

    def json_line(record: Record) -> str | None:
        return None if record.removed else json.dumps(_entry(record))

    def json_frame(lines: list[str]) -> tuple[str, str]:
        # A wheel's name holds its normalized version.
        versions = (
            [json.loads(line)["filename"].split("-")[1] for line in lines]
            if len(lines) < 50
            else [line.partition('"filename": "')[2].split("-", 2)[1] for line in lines]
        )
        known = {"meta": {"api-version": "1.1"}, "name": project, "versions": list(dict.fromkeys(versions))}
        return json.dumps(known)[:-1] + ', "', "}\n"

    directory = root / "simple" / project
    return (
        Document(
            directory / "index.json",
            json_line,
            json_frame,
            opening='files": [',
            closing="]",
            separator=",\n",
            holds=holds,
        ),
        Document(
            directory / "index.html",
            line=lambda record: None if record.removed else anchor(record, f"../../builds/{record.id}/"),
            frame=lambda _: project_frame(project),
            holds=holds,
        ),
    )


def page(root: Path, lines: Iterable[Any] = ()) -> Document:
    """`index.html`: for people, and the flat links for clients, which have none to a yanked wheel."""
    row = template("row.html")

    def line(record: Record) -> str | None:
        if record.removed:
            return None
        text = row.render(record=record, href=f"builds/{record.id}/{quoted(record.filename)}")
        return "".join(part.strip() for part in text.splitlines())

    head, _, tail = render("page.html", split=SPLIT, lines=list(lines)).partition(SPLIT)
    return Document(root / "index.html", line, lambda _: (head, tail), newest_first=True)


def _entry(record: Record) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "filename": record.filename,
        "url": f"../../builds/{record.id}/{quoted(record.filename)}",
        "hashes": {"sha256": record.sha256},
        "size": record.size,
        "upload-time": record.published.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "core-metadata": {"sha256": record.metadata_sha256},
        "yanked": record.yanked if record.yanked is not None else False,
    }
    return entry | ({"requires-python": record.requires_python} if record.requires_python else {})
