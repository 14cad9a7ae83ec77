"""Write a recipe's locks, all from one resolution, and say in words what changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sglwheel import files, source
from sglwheel.console import counted
from sglwheel.errors import ToolchainError
from sglwheel.files import Layout
from sglwheel.locks import published as identities
from sglwheel.locks import restoring
from sglwheel.mirrors import Mirrors
from sglwheel.recipe import Recipe
from sglwheel.source import Checkout, HasPath, sourcelock
from sglwheel.toolchain import packages, torchpin
from sglwheel.toolchain.packages import Lock
from sglwheel.toolchain.pylocks import Pylocks


@dataclass(frozen=True)
class Change:
    """One thing that a lock says otherwise than before; an empty side means: nothing."""

    file: str
    name: str
    before: str
    after: str

    def __str__(self) -> str:
        if not self.before:
            return f"+ {self.name}  {self.after}"
        return (
            f"~ {self.name}  {self.before} → {self.after}" if self.after else f"- {self.name}  {self.before}"
        )


@contextmanager
def alone(layout: Layout, recipe_id: str) -> Iterator[None]:
    """Change a recipe's file and locks as nobody else does meanwhile, and all of them or none.

    Raises ToolchainError where that cannot be guarded; what fails inside leaves them as they were.
    """
    work = layout.work / recipe_id
    guard, what = work / "locking.lock", f"recipes/{recipe_id}.toml with its locks"
    recipe, lock = layout.recipes / f"{recipe_id}.toml", sourcelock.path_of(layout, recipe_id)
    paths = (recipe, lock, *Pylocks.files_of(recipe_id, layout))
    with (
        files.locked(guard, failure=ToolchainError, what=what),
        restoring.restored(paths, work / "before-locking"),
    ):
        yield


def write(
    recipe: Recipe,
    checkout: Checkout,
    patched: HasPath | Path,
    layout: Layout,
    mirrors: Mirrors,
    *,
    upgrade: bool = False,
    overrides: Mapping[str, str] | None = None,
    published: Mapping[str, str] | None = None,
) -> tuple[Change, ...]:
    """Have every input of a recipe in its locks; with `upgrade` all but the recipe's own pins are found anew.

    `overrides` are sources that this host has from elsewhere; the lock gets their `published` commit or
    SHA-256, to which the first fetch will be held.

    Raises UsageError for an identity that cannot be one, SourceError or ToolchainError; then all locks are as
    they were.
    """
    with alone(layout, recipe.id):
        before = snapshot(layout, recipe.id)
        found = source.dependencies(patched, recipe, layout, mirrors, overrides, relock=upgrade, refit=True)
        # What the build no longer fetches needs no lock.
        known = sourcelock.load(layout, recipe.id, edited=upgrade)
        pins = identities.locked(recipe, found.sources, known, published or {})
        sourcelock.save(layout, recipe.id, pins, edited=upgrade)
        upstream = {"url": recipe.source.git, "commit": str(checkout.commit), "tree": checkout.tree}
        sourcelock.save_upstream(layout, recipe.id, upstream)
        write_packages(recipe, layout, mirrors, upgrade=upgrade)
        return difference(before, snapshot(layout, recipe.id))


def write_packages(
    recipe: Recipe, layout: Layout, mirrors: Mirrors, *, upgrade: bool = False, own: bool | None = None
) -> tuple[Lock, ...]:
    """Have the locks of the build environment and the toolkit, in recipes/. Raises ToolchainError."""
    pin = torchpin.pin(recipe)
    locks = Pylocks(recipe, pin, layout, mirrors, anew=upgrade, own=own, public=True)
    environment = locks.environment()
    torchpin.foresee(environment.version("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12"), pin)
    found = [environment]
    if recipe.build.assembles_toolkit:
        found.append(locks.toolkit(environment))
    paths = [path for path in locks.paths if path.is_file()]
    sourcelock.save_files(layout, recipe.id, paths)
    return tuple(found)


def snapshot(layout: Layout, recipe_id: str) -> dict[tuple[str, str], str]:
    """Everything that a recipe's locks say, in words: (file, name) → what."""
    said: dict[tuple[str, str], str] = {}
    data = sourcelock.read(layout, recipe_id)
    name = sourcelock.path_of(layout, recipe_id).name
    if upstream := data.get("upstream"):
        said[name, "upstream"] = f"{upstream.get('url')} {str(upstream.get('commit'))[:12]}"
    for table in data.get("source", []):
        exact = str(table.get("commit") or table.get("sha256") or table.get("tree"))
        said[name, str(table["name"])] = f"{table.get('requested') or table['url']} = {exact[:12]}"
    for path in Pylocks.files_of(recipe_id, layout):
        lock = packages.read(path)
        for package in lock.pins.packages if lock else ():
            hashes = sorted(wheel.hashes.get("sha256", "") for wheel in package.wheels or ())
            short = hashes[0][:12] if hashes else ""
            more = f" ({counted(len(hashes), 'wheel')}, {short}…)"
            key = (path.name, str(package.name))
            text = f"{package.version}{more}"
            said[key] = f"{said[key]}, {text}" if key in said else text
    return said


def difference(
    before: Mapping[tuple[str, str], str], after: Mapping[tuple[str, str], str]
) -> tuple[Change, ...]:
    """What two snapshots say otherwise, by file and name."""
    return tuple(
        Change(file, name, before.get((file, name), ""), after.get((file, name), ""))
        for file, name in sorted(before.keys() | after.keys())
        if before.get((file, name)) != after.get((file, name))
    )


def render(changes: tuple[Change, ...]) -> list[str]:
    """Lines for a person, grouped by file."""
    lines: list[str] = []
    for file in dict.fromkeys(change.file for change in changes):
        lines.append(f"recipes/{file}")
        lines += [f"  {change}" for change in changes if change.file == file]
    return lines or ["nothing changed"]
