"""What the sources of a recipe turned out to be when first fetched: `[[source]]` in `recipes/<id>.lock`."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import tomlkit

from sglwheel import files
from sglwheel.errors import SourceError
from sglwheel.files import Layout

_HEADER = "written by `sglwheel lock` and the first fetch: do not edit"


@dataclass(frozen=True)
class Pin:
    """One fetched source: what the build asks for, and what that was when it was first fetched."""

    name: str
    kind: str
    url: str
    requested: str
    commit: str | None = None
    tree: str | None = None
    sha256: str | None = None

    def merged(self, other: Pin | None) -> Pin:
        """This pin and what `other` knows more: with a Git mirror one learns other ids than without."""
        if other is None:
            return self
        more = {key: value for key, value in asdict(other).items() if getattr(self, key) is None}
        return replace(self, **more)


def path_of(layout: Layout, recipe_id: str) -> Path:
    """Where a recipe's lock lies."""
    return layout.recipes / f"{recipe_id}.lock"


def load(layout: Layout, recipe_id: str) -> dict[str, Pin]:
    """Read the sources of a lock by name; none if there is no lock. Raises SourceError."""
    path = path_of(layout, recipe_id)
    if not path.is_file():
        return {}
    known = {item.name for item in fields(Pin)}
    try:
        tables: list[dict[str, Any]] = tomllib.loads(path.read_text("utf-8")).get("source", [])
        pins = [Pin(**{key: value for key, value in table.items() if key in known}) for table in tables]
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, TypeError, AttributeError) as error:
        raise SourceError(
            f"the lock is damaged: {error}",
            where={"file": layout.relative(path)},
            next=f"restore it from git, or make it anew: sglwheel lock {recipe_id}",
        ) from None
    return {pin.name: pin for pin in pins}


def save(layout: Layout, recipe_id: str, pins: Iterable[Pin]) -> bool:
    """Make the lock's sources `pins`, other tables stay; return whether the file changed."""
    path = path_of(layout, recipe_id)
    # Two builds of one recipe may resolve at the same time; the lock of the lock is no part of recipes/.
    guard = files.cache_directory(layout.cache) / "locks" / f"{recipe_id}.source.lock"
    with files.locked(guard, failure=SourceError, what=f"the lock of {recipe_id}"):
        old = path.read_text("utf-8") if path.is_file() else ""
        document = tomlkit.parse(old) if old else tomlkit.document()
        if not old:
            document.add(tomlkit.comment(_HEADER))
        tables = tomlkit.aot()
        for pin in sorted(pins, key=lambda pin: pin.name):
            table = tomlkit.table()
            for key, value in asdict(pin).items():
                if value is not None:
                    table.add(key, value)
            tables.append(table)
        document.pop("source", None)
        document.add("source", tables)
        text = tomlkit.dumps(document)
        if text == old:
            return False
        files.write_atomic(path, text)
    return True
