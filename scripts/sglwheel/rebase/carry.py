"""Carry a patch to where its files are now, and a recipe to where its source is, touching nothing else."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import tomlkit

from sglwheel import recipe
from sglwheel.errors import PatchError
from sglwheel.recipe import Recipe
from sglwheel.series import patchfile
from sglwheel.series.patchfile import Patch
from sglwheel.types import CommitId


def patch(original: Patch, paths: Mapping[str, str]) -> Patch:
    """The same patch with its files, and those that its proofs name, under their new names.

    Only headers and trailers change; blob ids stay, so `git am -3` still finds what it was made from.
    """
    moved = {old: new for old, new in paths.items() if old != new}
    if not moved:
        return original
    text = original.text
    start = text.index(b"\n---\n") + 1
    message, rest = text[:start].decode("utf-8", "surrogateescape"), text[start:]
    for old, new in moved.items():
        message = re.sub(rf"(?m)^Proves: file {re.escape(old)}(?= )", f"Proves: file {new}", message)
    lines = rest.split(b"\n")
    for diff in original.diffs:
        if diff.path in moved:
            _rename(lines, diff.path.encode(), moved[diff.path].encode())
    carried = message.encode("utf-8", "surrogateescape") + b"\n".join(lines)
    found = patchfile.parse_patch(original.name, original.path, carried, shown=original.path.name)
    if not isinstance(found, Patch):
        reasons = "; ".join(problem.reason for problem in found)
        raise PatchError(f"cannot carry {original.name} to its new place: {reasons}")
    return found


def _rename(lines: list[bytes], old: bytes, new: bytes) -> None:
    """Rename a file in the headers of its diff; the lines of a hunk never look like them there."""
    start = lines.index(b"diff --git a/%s b/%s" % (old, old))
    lines[start] = b"diff --git a/%s b/%s" % (new, new)
    for at in range(start + 1, len(lines)):
        if lines[at].startswith((b"@@ ", b"diff --git ")):
            break
        if lines[at] == b"--- a/" + old:
            lines[at] = b"--- a/" + new
        elif lines[at] == b"+++ b/" + old:
            lines[at] = b"+++ b/" + new


def recipe_text(
    text: str, name: str, *, commit: CommitId, directory: str, series: str, path: Path
) -> tuple[str, Recipe]:
    """A recipe's text with another pin, every comment kept; also parsed."""
    document = tomlkit.parse(text)
    source = document["source"]
    assert isinstance(source, tomlkit.items.Table)
    for key, value in (("commit", str(commit)), ("directory", directory), ("series", series)):
        if source.get(key) != value:
            source[key] = value
    result = tomlkit.dumps(document)
    return result, recipe.parse(result.encode(), name=name, path=path.name)
