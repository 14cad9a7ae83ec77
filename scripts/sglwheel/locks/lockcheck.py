"""Compare a recipe's locks with the recipe, stores, remotes and registries, and name what differs.

Nothing here trusts a lock's own checksum: whoever changes a value can adjust that, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sglwheel.errors import SourceError
from sglwheel.files import Layout
from sglwheel.locks.findings import Finding
from sglwheel.locks.packagecheck import PackageCheck
from sglwheel.locks.sourcecheck import SourceCheck
from sglwheel.mirrors import Mirrors
from sglwheel.recipe import Recipe
from sglwheel.source import HasPath, sourcelock


@dataclass(frozen=True)
class LockCheck:
    """The check of one recipe's locks; `online` also asks remotes and registries.

    `overrides` are sources that a person has from elsewhere: only what the lock says of them is compared.
    """

    recipe: Recipe
    layout: Layout
    mirrors: Mirrors
    online: bool = True
    overrides: Mapping[str, str] = field(default_factory=dict)

    def run(self, patched: HasPath | Path | None) -> tuple[Finding, ...]:
        """Everything that is wrong; `patched` None when there is no patched tree to compare with."""
        path = sourcelock.path_of(self.layout, self.recipe.id)
        lock = self.layout.relative(path)
        if not path.is_file():
            return (Finding(lock, "there is no lock: sglwheel lock writes it"),)
        try:
            data = sourcelock.read(self.layout, self.recipe.id)
            pins = sourcelock.load(self.layout, self.recipe.id, edited=True)
        except SourceError as error:
            return (Finding(lock, error.what),)
        sources = SourceCheck(self.recipe, self.layout, self.mirrors, self.online, lock, self.overrides)
        found = list(sources.upstream(data))
        for pin in pins.values():
            found += sources.source(pin)
        own = list(_own(lock, data))
        if patched is not None and not found and not own:
            found += sources.declared(pins, patched)
        found = own + found
        found += PackageCheck(self.recipe, self.layout, self.mirrors, self.online).run(lock, data)
        return tuple(dict.fromkeys(found))


def _own(lock: str, data: dict[str, Any]) -> Iterator[Finding]:
    if "checksum" not in data.get("lock", {}):
        yield Finding(lock, "has no checksum: sglwheel lock completes it")
    elif not sourcelock.sealed(data):
        yield Finding(lock, "was edited: its checksum is of other values")
