"""What of all that a recipe's locks name lies in the store."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from sglwheel import recipe as recipes
from sglwheel.errors import ToolchainError
from sglwheel.files import Layout
from sglwheel.locks import torchchoice
from sglwheel.source import downloads, sourcelock
from sglwheel.source.sourcelock import Pin
from sglwheel.toolchain import packages, wheels
from sglwheel.toolchain.pylocks import Pylocks


@dataclass(frozen=True)
class Holding:
    """One input of a recipe: `kind` is environment, toolkit or source; `bytes` None where no lock says."""

    recipe: str
    kind: str
    name: str
    version: str
    bytes: int | None
    stored: bool


def of(layout: Layout, name: str) -> tuple[Holding, ...]:
    """The inputs of a recipe on this host, those that are not stored too. Nothing is read through or fetched.

    Raises the error of a recipe or lock that cannot be read, ToolchainError where no Python is.
    """
    return (*_wheels(layout, name), *_sources(layout, name))


def _wheels(layout: Layout, name: str) -> Iterator[Holding]:
    python = torchchoice.python_of(recipes.load(layout, name))
    for kind, path in zip(("environment", "toolkit"), Pylocks.files_of(name, layout), strict=True):
        lock = packages.read(path)
        if lock is None:
            continue
        try:
            chosen = wheels.of(lock, python)
        except ToolchainError:
            # Of a recipe for another platform.
            chosen = wheels.every(lock)
        for item in chosen:
            here = wheels.path_of(item, layout).is_file()
            yield Holding(name, kind, item.name, str(item.version), item.size, here)


def _sources(layout: Layout, name: str) -> Iterator[Holding]:
    exported = _exported(layout)
    for pin in sourcelock.load(layout, name).values():
        known = (pin.commit or pin.sha256 or pin.requested)[:12]
        yield Holding(name, "source", pin.name, known, None, _has(pin, exported, layout))


def _has(pin: Pin, exported: frozenset[str], layout: Layout) -> bool:
    if pin.commit in exported:
        return True
    return pin.sha256 is not None and downloads.archive_of(pin.sha256, layout).is_file()


def _exported(layout: Layout) -> frozenset[str]:
    """Commits of which files were taken."""
    found: set[str] = set()
    for receipt in (layout.cache / "sources").glob("*.json"):
        try:
            facts = json.loads(receipt.read_text("utf-8"))
            if (receipt.parent / facts["directory"]).is_dir():
                found.add(facts["pieces"][0]["commit"])
        except (OSError, ValueError, KeyError, TypeError, IndexError):
            continue
    return frozenset(found)


def summary(held: tuple[Holding, ...]) -> list[str]:
    """One line per recipe and kind: how much of it is there."""
    lines: list[str] = []
    for recipe, kind in dict.fromkeys((one.recipe, one.kind) for one in held):
        mine = [one for one in held if (one.recipe, one.kind) == (recipe, kind)]
        absent = [one.name for one in mine if not one.stored]
        torch = next((f", torch {one.version}" for one in mine if one.name == "torch"), "")
        told = f"; not {', '.join(absent[:5])}{' …' if len(absent) > 5 else ''}" if absent else ""
        lines.append(f"{recipe}  {kind}: {len(mine) - len(absent)} of {len(mine)}{torch}{told}")
    return lines
