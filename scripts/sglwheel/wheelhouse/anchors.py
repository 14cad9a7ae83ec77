"""A release's link as HTML indexes have it, and what stands around such links."""

from __future__ import annotations

import functools
from urllib.parse import quote

from sglwheel.wheelhouse.record import Record
from sglwheel.wheelhouse.rendering import render

SPLIT = "@releases@"
quoted = functools.lru_cache(maxsize=4096)(quote)


def anchor(record: Record, base: str) -> str:
    """The release's link in a simple index; each has two, which differ in where the wheel lies from there."""
    before, after = _anchor_parts(
        record.filename, record.sha256, record.metadata_sha256, record.requires_python, record.yanked
    )
    return f"{before}{base}{after}"


@functools.lru_cache(maxsize=1 << 15)
def _anchor_parts(
    filename: str, sha256: str, metadata_sha256: str, requires_python: str | None, yanked: str | None
) -> tuple[str, str]:
    text = render(
        "anchor.html",
        href=f"{SPLIT}{quoted(filename)}",
        filename=filename,
        sha256=sha256,
        metadata_sha256=metadata_sha256,
        requires_python=requires_python,
        yanked=yanked,
    )
    before, _, after = text.partition(SPLIT)
    return before, after


@functools.cache
def project_frame(project: str) -> tuple[str, str]:
    """What stands around the links of `simple/<project>/index.html`."""
    head, _, tail = render("project.html", project=project, split=SPLIT).partition(SPLIT)
    return head, tail
