"""Check all series and recipes against each other, without building anything."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from unidiff.patch import PatchSet

from sglwheel import series
from sglwheel.errors import PatchError
from sglwheel.files import Layout
from sglwheel.patching import Base, exporting
from sglwheel.recipe import Recipe
from sglwheel.series import Patch, Problem, Series, problems_error

_CONTEXT = 3  # what `git format-patch` gives; more only finds reasons to conflict


def check(
    layout: Layout, recipes: Sequence[Recipe], checkouts: Mapping[str, Base] | None = None
) -> tuple[Problem, ...]:
    """Everything that is wrong in patches/ and in what recipes/ say about it.

    A series is exported again, and must come out the same, for every recipe in `checkouts` (by id).
    """
    problems: list[Problem] = []
    used: dict[str, list[Recipe]] = {}
    for recipe in recipes:
        used.setdefault(recipe.source.series, []).append(recipe)
    for name in sorted({path.name for path in layout.patches.iterdir() if path.is_dir()} | used.keys()):
        if name.startswith("."):
            continue
        if name not in used:
            problems.append(Problem(f"patches/{name}/series:1", "no recipe uses this series"))
        directories = {recipe.source.directory: recipe for recipe in used.get(name, [])}
        for directory in (*sorted(directories),) or (None,):
            try:
                stack = series.load(layout, name, directory=directory)
            except PatchError as error:
                problems += _unpack(error, layout, name, used.get(name, []))
                continue
            problems += _style(stack, layout)
            for recipe in used.get(name, []):
                checkout = (checkouts or {}).get(recipe.id)
                if checkout is not None and recipe.source.directory == directory:
                    problems += _reexport(checkout, stack, layout, recipe)
    return tuple(dict.fromkeys(problems))


def error(problems: Sequence[Problem]) -> PatchError:
    """The problems as one error."""
    return problems_error("patches/", problems, next="correct them, or sglwheel export <recipe>")


def _unpack(error: PatchError, layout: Layout, name: str, recipes: Sequence[Recipe]) -> Iterable[Problem]:
    if not (layout.patches / name / "series").is_file():
        for recipe in recipes:
            yield Problem(f"recipes/{recipe.id}.toml: source.series", error.what)
        if not recipes:
            yield Problem(f"patches/{name}", "no `series` file")
        return
    for where, reasons in error.where.items():
        for reason in reasons.split("\n"):
            yield Problem(where, reason)


def _style(stack: Series, layout: Layout) -> Iterable[Problem]:
    for patch in stack.patches:
        shown = layout.relative(patch.path)
        head = patch.text.split(b"\n\n", 1)[0].decode("utf-8", "replace").split("\n")
        if not re.match(r"From 0{40} ", head[0]):
            yield Problem(f"{shown}:1", "a commit id, which says nothing here (--zero-commit)")
        if not any(line.startswith("Subject: [PATCH] ") for line in head):
            yield Problem(f"{shown}:4", "the subject does not begin with [PATCH], without numbers")
        for diff in patch.diffs:
            if {len(diff.old_blob), len(diff.new_blob)} != {40} and diff.hunks:
                yield Problem(f"{shown}:{diff.line}", "a short blob id: -3 may not find it (--full-index)")
        yield from _context(patch, shown)


def _context(patch: Patch, shown: str) -> Iterable[Problem]:
    """More context than needed, as a parser that is not ours sees it."""
    start = patch.text.index(b"\ndiff --git ") + 1
    first = patch.text.count(b"\n", 0, start)
    # latin-1 keeps every byte; the parser looks at the first of each line only.
    parsed = PatchSet.from_string(patch.text[start:].decode("latin-1"))
    if (parsed.added, parsed.removed) != (patch.added, patch.removed):
        yield Problem(f"{shown}:{first + 1}", "unidiff counts other lines than git does: ambiguous patch")
    for file in parsed:
        for hunk in file:
            lines = list(hunk)
            kinds = "".join(" " if line.is_context else "!" for line in lines if line.line_type != "\\")
            runs = re.findall(r" +", kinds)
            leading = len(kinds) - len(kinds.lstrip())
            trailing = len(kinds) - len(kinds.rstrip())
            if max(leading, trailing) > _CONTEXT or any(len(run) > 2 * _CONTEXT for run in runs):
                number = first + lines[0].diff_line_no - 2 if lines[0].diff_line_no else first
                yield Problem(f"{shown}:{number}", f"more than {_CONTEXT} lines of context (--unified=3)")


def _reexport(checkout: Base, stack: Series, layout: Layout, recipe: Recipe) -> Iterable[Problem]:
    with tempfile.TemporaryDirectory(prefix="sglwheel-lint-") as scratch:
        exported = exporting.reexport(checkout, stack, Path(scratch), recipe.source.directory)
    for patch in stack.patches:
        text = exported.get(patch.name)
        if text is not None and text != patch.text:
            yield Problem(_difference(patch.text, text, layout.relative(patch.path)), "not as exported")


def _difference(old: bytes, new: bytes, shown: str) -> str:
    lines = zip(old.split(b"\n"), new.split(b"\n"), strict=False)
    number = next((at for at, (left, right) in enumerate(lines, 1) if left != right), 0)
    shorter = min(old.count(b"\n"), new.count(b"\n"))
    return f"{shown}:{number or shorter + 1}"
