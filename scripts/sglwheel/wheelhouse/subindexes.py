"""`builds/<id>/`: the files that let clients and people see exactly one release."""

from __future__ import annotations

import functools

from sglwheel.wheelhouse.anchors import anchor, project_frame, quoted
from sglwheel.wheelhouse.lines import ANYWHERE, Lines
from sglwheel.wheelhouse.record import Record, rivals
from sglwheel.wheelhouse.rendering import render


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
