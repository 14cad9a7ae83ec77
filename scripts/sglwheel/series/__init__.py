"""Patch series: `patches/<name>/series` and its patch files, parsed once into frozen values."""

from __future__ import annotations

import difflib
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from sglwheel.errors import PatchError
from sglwheel.files import Layout
from sglwheel.series.patchfile import Patch, parse_patch
from sglwheel.series.predicates import Facts, Predicate, Verdict
from sglwheel.series.trailers import Problem, Proof, Status

__all__ = [
    "Facts",
    "Patch",
    "Predicate",
    "Problem",
    "Proof",
    "Series",
    "Status",
    "Verdict",
    "load",
    "problems_error",
]

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*\.patch")


@dataclass(frozen=True)
class Series:
    """Patches in the order in which they apply; an empty series is one, too."""

    name: str
    directory: Path
    patches: tuple[Patch, ...]

    @cached_property
    def digest(self) -> str:
        """SHA-256 over order, names and bytes."""
        digest = hashlib.sha256()
        for patch in self.patches:
            digest.update(f"{patch.name} {len(patch.text)}\n".encode() + patch.text)
        return digest.hexdigest()

    @cached_property
    def files(self) -> tuple[str, ...]:
        """Every file that any patch touches, sorted."""
        return tuple(sorted({file for patch in self.patches for file in patch.files}))


def load(layout: Layout, name: str, *, directory: str | None = None) -> Series:
    """Read `patches/<name>`; `directory` is the source directory that patches must stay inside.

    Raises PatchError with every problem of the series and of all its files at once.
    """
    folder = layout.patches / name
    listing = folder / "series"
    if not listing.is_file():
        known = sorted(path.parent.name for path in layout.patches.glob("*/series"))
        near = difflib.get_close_matches(name, known, n=1)
        raise PatchError(
            f"no series {name!r}" + (f": did you mean {near[0]!r}?" if near else ""),
            where={"looked for": layout.relative(listing), "known": ", ".join(known) or "none"},
        )
    files, problems = _listing(layout, folder, listing.read_bytes())
    patches: list[Patch] = []
    for path in files:
        shown = layout.relative(path)
        found = parse_patch(path.stem, path, path.read_bytes(), shown=shown, directory=directory)
        if isinstance(found, Patch):
            patches.append(found)
        else:
            problems.extend(found)
    if problems:
        raise problems_error(layout.relative(folder), problems)
    return Series(name, folder, tuple(patches))


def problems_error(what: str, problems: Sequence[Problem], *, next: str | None = None) -> PatchError:
    """One error that names every problem, in order of place."""
    where: dict[str, str] = {}
    for problem in problems:
        before = where.get(problem.where)
        where[problem.where] = f"{before}\n{problem.reason}" if before else problem.reason
    count = len(problems)
    return PatchError(f"{what} has {count} mistake{'s' if count != 1 else ''}", where=where, next=next)


def _listing(layout: Layout, folder: Path, text: bytes) -> tuple[list[Path], list[Problem]]:
    shown = layout.relative(folder / "series")
    problems: list[Problem] = []
    files: dict[str, Path] = {}
    for number, raw in enumerate(text.decode("utf-8", "replace").split("\n"), 1):
        line = raw.partition("#")[0].strip()
        if not line:
            continue
        where = f"{shown}:{number}"
        path = folder / line
        if raw.endswith("\r"):
            problems.append(Problem(where, "CRLF damage: the line ends in CR LF"))
        elif "/" in line or line.startswith("."):
            problems.append(Problem(where, f"{line!r} is not a file of this directory"))
        elif not _NAME.fullmatch(line):
            problems.append(Problem(where, f"{line!r}: names are lower-case and end in .patch"))
        elif re.match(r"\d+-", line):
            problems.append(Problem(where, f"{line!r}: names carry no numbers, the series gives the order"))
        elif line in files:
            problems.append(Problem(where, f"{line} stands twice"))
        elif path.is_symlink() or not path.is_file():
            near = difflib.get_close_matches(line, [other.name for other in folder.glob("*.patch")], n=1)
            hint = f": did you mean {near[0]}?" if near else ""
            problems.append(Problem(where, f"{line} does not exist, or is no plain file{hint}"))
        else:
            files[line] = path
    listed = re.findall(r"^\s*([^\s#]+)", text.decode("utf-8", "replace"), re.MULTILINE)
    for path in sorted(folder.iterdir()):
        if path.name not in listed and path.name not in ("series", "README.md"):
            problems.append(Problem(f"{layout.relative(path)}:1", "not listed in series"))
    return list(files.values()), problems
