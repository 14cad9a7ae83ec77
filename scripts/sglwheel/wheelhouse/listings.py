"""The documents that have a line for each release: catalogue, `simple/<project>/`, the page."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sglwheel.wheelhouse.anchors import SPLIT, anchor, project_frame, quoted
from sglwheel.wheelhouse.documents import Document
from sglwheel.wheelhouse.record import Record
from sglwheel.wheelhouse.rendering import render, template
from sglwheel.wheelhouse.wheelfile import release_id


def documents(root: Path, projects: Iterable[str], lines: Iterable[Any]) -> list[Document]:
    """All of them, in the order of their writing."""
    simple = [document for project in projects for document in simple_documents(root, project)]
    return [catalogue(root), *simple, page(root, lines)]


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
