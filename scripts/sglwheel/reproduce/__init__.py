"""Build a wheel once more, in another place, and hold the two against each other."""

from __future__ import annotations

import os
import shutil
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from sglwheel import build, files, finish
from sglwheel.errors import BuildError
from sglwheel.files import Layout
from sglwheel.reproduce.difference import Difference, compare

if TYPE_CHECKING:
    from sglwheel.build.budget import Allowance
    from sglwheel.finish import FinishedWheel
    from sglwheel.patching import PatchedTree
    from sglwheel.recipe import KernelRecipe
    from sglwheel.source import Checkout, Dependencies
    from sglwheel.toolchain import BuildEnv

__all__ = ["Difference", "Reproduction", "again", "compare"]

# As unlike an ordinary build as can be: private files, the far end of the calendar's day, another user.
_UMASK = 0o077
_VARIABLES = {"TZ": "Pacific/Kiritimati", "USER": "somebody", "LOGNAME": "somebody"}


@dataclass(frozen=True)
class Reproduction:
    """Two builds that gave the same bytes, and what the second took."""

    sha256: str
    seconds: float
    cpu_seconds: float


def again(
    first: FinishedWheel,
    recipe: KernelRecipe,
    patched: PatchedTree,
    dependencies: Dependencies,
    env: BuildEnv,
    checkout: Checkout,
    layout: Layout,
    *,
    allowance: Allowance | None = None,
) -> Reproduction:
    """Compile everything a second time, in another directory, with another umask, time zone and home.

    The compiler cache is shared by all checkouts of a host, so it is not asked: its objects are the first
    build's own.

    Raises BuildError that names every difference by file and section; both trees then stay. Interrupted, it
    continues the next time.
    """
    place = layout.work / recipe.id / "again"
    elsewhere = Layout(place / "another" / "checkout")
    home = place / "home"
    home.mkdir(parents=True, exist_ok=True)
    env = replace(env, environment={**env.environment, **_VARIABLES, "HOME": str(home)})
    with _umask(_UMASK):
        _check_out(layout, elsewhere)
        _lend_costs(layout, elsewhere, recipe)
        built = build.build(
            recipe,
            patched,
            dependencies,
            env,
            elsewhere,
            date=checkout.date,
            allowance=allowance,
            cached=False,
        )
        second = finish.finish(built, recipe, patched, dependencies, env, checkout, elsewhere)
    try:
        differences = compare(first.path, second.path)
    except (OSError, zipfile.BadZipFile) as error:
        raise BuildError(f"cannot compare the two wheels: {error}") from error
    if differences or first.path.name != second.path.name:
        raise _unlike(first.path, second.path, differences)
    done = Reproduction(files.sha256(first.path), built.seconds, built.cpu_seconds)
    shutil.rmtree(place, ignore_errors=True)
    return done


def _unlike(first: Path, second: Path, differences: tuple[Difference, ...]) -> BuildError:
    where: dict[str, str] = {}
    for one in differences:
        where[one.file] = f"{where[one.file]}\n{one}" if one.file in where else str(one)
    return BuildError(
        f"the second build gave another wheel: {len(differences)} differences in {len(where)} files",
        where={"first": str(first), "second": str(second), **where},
        next="docs/reproducible.md says what makes objects differ",
    )


def _check_out(layout: Layout, elsewhere: Layout) -> None:
    """Give the other checkout what a build reads of one beside the tree: the series, for its proofs."""
    shutil.rmtree(elsewhere.patches, ignore_errors=True)
    if layout.patches.is_dir():
        shutil.copytree(layout.patches, elsewhere.patches)


def _lend_costs(layout: Layout, elsewhere: Layout, recipe: KernelRecipe) -> None:
    """What this host measured holds for the second build, too."""
    known, copy = (each.work / recipe.id / "units.jsonl" for each in (layout, elsewhere))
    if known.is_file() and not copy.is_file():
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(known, copy)


@contextmanager
def _umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)
