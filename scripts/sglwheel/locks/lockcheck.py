"""Compare a recipe's locks with the recipe, stores, remotes and registries, and name what differs.

Nothing here trusts a lock's own checksum: whoever changes a value can adjust that, too.
"""

from __future__ import annotations

import platform
import re
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from packaging.utils import parse_wheel_filename

from sglwheel import files, source
from sglwheel.errors import SglwheelError, SourceError, ToolchainError
from sglwheel.files import Layout
from sglwheel.mirrors import Mirrors
from sglwheel.recipe import Recipe
from sglwheel.source import HasPath, downloads, kept, sourcelock
from sglwheel.source.sourcelock import Pin
from sglwheel.source.store import GitStore
from sglwheel.toolchain import packages, torchindex, torchpin, wheels
from sglwheel.toolchain.packages import Lock
from sglwheel.toolchain.pylocks import Pylocks
from sglwheel.types import CommitId


@dataclass(frozen=True)
class Finding:
    """Something that is not what it should be, and the file that says or holds it."""

    file: str
    what: str


@dataclass(frozen=True)
class LockCheck:
    """The check of one recipe's locks; `online` also asks remotes and registries."""

    recipe: Recipe
    layout: Layout
    mirrors: Mirrors
    online: bool = True

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
        found = list(self._upstream(lock, data))
        for pin in pins.values():
            found += self._source(lock, pin)
        own = list(self._own(lock, data))
        if patched is not None and not found and not own:
            found += self._declared(lock, pins, patched)
        found = own + found
        found += self._packages(lock, data)
        return tuple(dict.fromkeys(found))

    def _own(self, lock: str, data: dict[str, Any]) -> Iterator[Finding]:
        if "checksum" not in data.get("lock", {}):
            yield Finding(lock, "has no checksum: sglwheel lock completes it")
        elif not sourcelock.sealed(data):
            yield Finding(lock, "was edited: its checksum is of other values")

    def _upstream(self, lock: str, data: dict[str, Any]) -> Iterator[Finding]:
        upstream = data.get("upstream")
        if upstream is None:
            yield Finding(lock, "does not name the upstream: sglwheel lock completes it")
            return
        want = {"url": self.recipe.source.git, "commit": str(self.recipe.source.commit)}
        for key, value in want.items():
            if upstream.get(key) != value:
                yield Finding(lock, f"upstream.{key} is {upstream.get(key)}, the recipe says {value}")
        yield from self._commit(lock, "upstream", want["url"], want["commit"], upstream.get("tree"))

    def _source(self, lock: str, pin: Pin) -> Iterator[Finding]:
        if pin.commit:
            asked = pin.requested
            if re.fullmatch(r"[0-9a-f]{40}", asked) and asked != pin.commit:
                yield Finding(lock, f"{pin.name}: the build asks for {asked}, commit is {pin.commit}")
                return
            yield from self._commit(lock, pin.name, pin.url, pin.commit, pin.tree)
            if self.online and asked and asked != pin.commit and pin.kind == "git":
                yield from self._moved(lock, pin)
        elif pin.sha256:
            yield from self._archive(lock, pin)

    def _commit(self, lock: str, name: str, url: str, commit: str, tree: str | None) -> Iterator[Finding]:
        try:
            forge = downloads.forge_archive(url)
            store = GitStore.open(forge[0] if forge else url, self.layout, self.mirrors)
            damaged = [pack for pack in store.packs() if not store.intact(pack)]
            for pack in damaged:
                yield Finding(self.layout.relative(pack), f"{name}: stored objects are damaged")
            wanted = CommitId.parse(commit)
            # What is stored of it cannot be asked then.
            if damaged or not (self.online or store.has(wanted)):
                return
            store.commit(wanted)
            if tree and (actual := store.git.tree(wanted)) != tree:
                yield Finding(lock, f"{name}: the tree of {commit} is {actual}, the lock says {tree}")
            for path, why in kept.edited(name, store, wanted, self.layout):
                yield Finding(self.layout.relative(path), f"{name}: {why}")
        except (SglwheelError, ValueError) as error:
            detail = "; ".join(error.where.values()) if isinstance(error, SglwheelError) else ""
            yield Finding(lock, f"{name}: {getattr(error, 'what', error)} {detail}".strip())

    def _moved(self, lock: str, pin: Pin) -> Iterator[Finding]:
        store = GitStore.open(pin.url, self.layout, self.mirrors)
        try:
            now = store.resolve(pin.requested)
        except SourceError as error:
            yield Finding(lock, f"{pin.name}: {error.what}")
            return
        if now != pin.commit:
            yield Finding(
                lock, f"{pin.name}: {pin.requested} is {now} at its remote, the lock says {pin.commit}"
            )

    def _archive(self, lock: str, pin: Pin) -> Iterator[Finding]:
        assert pin.sha256 is not None
        algorithm, _, digest = pin.requested.partition("=")
        if algorithm.upper() == "SHA256" and digest.lower() != pin.sha256:
            yield Finding(lock, f"{pin.name}: the build asks for SHA256 {digest}, the lock says {pin.sha256}")
            return
        archive = downloads.archive_of(pin.sha256, self.layout)
        if archive.is_file() and files.sha256(archive) != pin.sha256:
            yield Finding(
                self.layout.relative(archive), f"{pin.name}: stored bytes are not those of its hash"
            )
        elif archive.is_file():
            for path in downloads.edited(pin.sha256, self.layout):
                yield Finding(self.layout.relative(path), f"{pin.name}: differs from the archive")
        if self.online and not (digest and archive.is_file()):
            try:
                downloads.ask(pin.url, pin.requested, pin.sha256, self.layout, self.mirrors)
            except SourceError as error:
                yield Finding(lock, f"{pin.name}: {error.what}: {'; '.join(error.where.values())}")

    def _declared(self, lock: str, pins: dict[str, Pin], patched: HasPath | Path) -> Iterator[Finding]:
        try:
            declared = source.declared(patched, self.recipe, self.layout, self.mirrors)
        except SglwheelError as error:
            yield Finding(lock, error.what)
            return
        names = {item.name for item in declared}
        for item in declared:
            pin = pins.get(item.name)
            if pin is None:
                yield Finding(lock, f"{item.name}: the build fetches it, the lock does not name it")
            elif (pin.kind, pin.url, pin.requested) != (item.kind, item.url, item.requested):
                build = f"{item.url} {item.requested}".strip()
                yield Finding(lock, f"{item.name}: the build asks for {build}, not {pin.url} {pin.requested}")
        for name in sorted(pins.keys() - names):
            yield Finding(lock, f"{name}: the build does not fetch it")

    def _packages(self, lock: str, data: dict[str, Any]) -> Iterator[Finding]:
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
                now = packages.resolve(
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


def error(recipe_id: str, findings: tuple[Finding, ...]) -> ToolchainError:
    """One error that names every file."""
    where: dict[str, str] = {}
    for finding in findings:
        where[finding.file] = (
            f"{where[finding.file]}\n{finding.what}" if finding.file in where else finding.what
        )
    return ToolchainError(
        f"the locks of {recipe_id} and what they speak of disagree in {len(findings)} places",
        where=where,
        next=f"restore it from git (delete it under .cache/), or sglwheel lock --upgrade {recipe_id}",
    )


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
