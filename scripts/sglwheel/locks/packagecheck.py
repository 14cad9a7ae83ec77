"""Compare a recipe's package locks with the recipe, the stored wheels and registries."""

from __future__ import annotations

import platform
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from packaging.utils import parse_wheel_filename

from sglwheel import files
from sglwheel.errors import SglwheelError, ToolchainError
from sglwheel.files import Layout
from sglwheel.locks.findings import Finding
from sglwheel.mirrors import Mirrors
from sglwheel.recipe import Recipe
from sglwheel.toolchain import packages, resolving, torchindex, torchpin, wheels
from sglwheel.toolchain.packages import Lock
from sglwheel.toolchain.pylocks import Pylocks


@dataclass(frozen=True)
class PackageCheck:
    """The check of one recipe's two package locks."""

    recipe: Recipe
    layout: Layout
    mirrors: Mirrors
    online: bool

    def run(self, lock: str, data: dict[str, Any]) -> Iterator[Finding]:
        """Everything that is wrong; `lock` is the file with `data`, which has the hashes of these locks."""
        pin = torchpin.pin(self.recipe)
        locks = Pylocks(self.recipe, pin, self.layout, self.mirrors, own=True)
        environment: Lock | None = None
        for path in locks.paths if self.recipe.build.assembles_toolkit else locks.paths[:1]:
            name = self.layout.relative(path)
            try:
                found = packages.read(path)
            except SglwheelError as error:
                yield Finding(name, error.what)
                continue
            if found is None:
                yield Finding(name, "there is no lock of the packages: sglwheel lock writes it")
                continue
            noted = data.get("lock", {}).get("files", {}).get(path.name)
            if noted != files.sha256(path):
                yield Finding(
                    name,
                    f"was edited: {lock} has another hash of it" if noted else f"{lock} does not know it",
                )
            first = environment is None
            asked = locks.requirements() if first else locks.toolkit_requirements(environment or found)
            environment = environment or found
            if found.requirements != asked:
                yield Finding(
                    name, f"answers {', '.join(found.requirements)}; the recipe asks {', '.join(asked)}"
                )
            wrong = [*self._wheels(name, found, pin.index_url)]
            yield from wrong
            if self.online and not wrong:
                yield from self._resolution(name, found, pin.index_url if first else None)

    def _wheels(self, name: str, lock: Lock, index: str | None) -> Iterator[Finding]:
        every = wheels.every(lock)
        for item in every:
            path = wheels.path_of(item, self.layout)
            if path.is_file() and files.sha256(path) != item.sha256:
                yield Finding(
                    self.layout.relative(path), f"{item.name}: stored bytes are not those of its hash"
                )
            own, version, _, _ = parse_wheel_filename(item.filename)
            if (own, version) != (item.name, item.version) or unquote(
                item.url.rpartition("/")[2]
            ) != item.filename:
                yield Finding(name, f"{item.name} {item.version} is said to be {item.url}")
        if self.online:
            yield from self._registered(name, every, index)

    def _registered(
        self, name: str, every: tuple[wheels.LockedWheel, ...], index: str | None
    ) -> Iterator[Finding]:
        wanted = {
            (torchindex.PYPI if item.lasting else index or torchindex.PYPI, item.name) for item in every
        }
        with ThreadPoolExecutor(8) as pool:
            pages = {key: pool.submit(torchindex.page, *key, self.mirrors) for key in sorted(wanted)}
        silent: set[str] = set()
        for (place, project), future in pages.items():
            mine = [item for item in every if item.name == project]
            absent = [item for item in mine if not wheels.path_of(item, self.layout).is_file()]
            try:
                served = {one.filename: (one.digests or {}).get("sha256") for one in future.result()}
            except ToolchainError as error:
                # What is stored was compared with its hash; what is not cannot be had either.
                if absent and place not in silent:
                    silent.add(place)
                    yield Finding(name, f"{project}: {error.what}: {'; '.join(error.where.values())}")
                continue
            for item in mine:
                if item.filename not in served:
                    if item in absent and _needed(item):
                        yield Finding(name, f"{item.filename}: {place} no longer has it, nor has the store")
                elif served[item.filename] not in (None, item.sha256):
                    has = served[item.filename]
                    yield Finding(name, f"{item.filename}: {place} says SHA256 {has}, the lock {item.sha256}")

    def _resolution(self, name: str, lock: Lock, index: str | None) -> Iterator[Finding]:
        """Whether a resolver that may take nothing but these versions comes to these packages."""
        exact = [f"{one.name}=={one.version}" for one in lock.pins.packages if not one.marker]
        exact += [f"{one.name}=={one.version} ; {one.marker}" for one in lock.pins.packages if one.marker]
        floor = self.recipe.build.python
        python = f"{floor.major}.{floor.minor}" if floor else "3.11"
        with tempfile.TemporaryDirectory() as scratch:
            try:
                now = resolving.resolve(
                    lock.requirements,
                    Path(scratch) / "pylock.check.toml",
                    python=python,
                    index=index,
                    mirrors=self.mirrors,
                    constraints=exact,
                )
            except ToolchainError as error:
                # A version that its index dropped cannot be resolved any more; the store has its wheels.
                stored = all(
                    wheels.path_of(one, self.layout).is_file()
                    for one in wheels.every(lock)
                    if not one.lasting
                )
                dropped = any(not one.lasting for one in wheels.every(lock))
                if not (dropped and stored):
                    says = error.where.get("says") or "; ".join(error.where.values())
                    yield Finding(name, f"no resolver comes to these packages: {says[:600]}")
                return
        mine, theirs = _by_name(lock), _by_name(now)
        for key in sorted(mine.keys() | theirs.keys()):
            if key not in theirs:
                yield Finding(name, f"{' '.join(key)}: nothing asks for it")
            elif key not in mine:
                yield Finding(name, f"{' '.join(key)} is missing")
            elif lost := mine[key] - theirs[key]:
                yield Finding(name, f"{' '.join(key)}: the registry does not have {', '.join(sorted(lost))}")


def _by_name(lock: Lock) -> dict[tuple[str, str], frozenset[str]]:
    found: dict[tuple[str, str], frozenset[str]] = {}
    for one in lock.pins.packages:
        key = (str(one.name), str(one.version))
        digests = frozenset(wheel.hashes.get("sha256", "") for wheel in one.wheels or ())
        found[key] = found.get(key, frozenset()) | digests
    return found


def _needed(item: wheels.LockedWheel) -> bool:
    """Whether this host's kind of machine would ever install it."""
    return platform.machine() in item.filename or item.filename.endswith("-any.whl")
