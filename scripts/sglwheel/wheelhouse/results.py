"""What checks said of a release: JSON beside the wheel, with the hash of the wheel that it is about."""

from __future__ import annotations

from pydantic_core import from_json

from sglwheel.wheelhouse.record import Record

# Those that publishing writes; `gpu` comes with a promotion.
PUBLISHED = ("inspection", "smoke", "provenance")
KINDS = (*PUBLISHED, "gpu")


def name(record: Record, kind: str) -> str:
    """The file's name in `builds/<id>/`."""
    return f"{record.filename}.{kind}.json"


def is_about(text: bytes, record: Record) -> bool:
    """Whether a result speaks of this release's wheel."""
    try:
        return bool(from_json(text)["wheel_sha256"] == record.sha256)
    except (ValueError, KeyError, TypeError):
        return False
