"""Compare the sources of a lock with the recipe, the build, stores and remotes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sglwheel import files, source
from sglwheel.errors import SglwheelError, SourceError
from sglwheel.files import Layout
from sglwheel.locks.findings import Finding
from sglwheel.mirrors import Mirrors
from sglwheel.recipe import Recipe
from sglwheel.source import HasPath, downloads, kept
from sglwheel.source.sourcelock import Pin
from sglwheel.source.store import GitStore
from sglwheel.types import CommitId


@dataclass(frozen=True)
class SourceCheck:
    """The check of one lock's sources; `lock` is what findings call the file."""

    recipe: Recipe
    layout: Layout
    mirrors: Mirrors
    online: bool
    lock: str
    overrides: Mapping[str, str]

    def upstream(self, data: dict[str, Any]) -> Iterator[Finding]:
        """Whether the lock names the recipe's upstream, and that is what it was."""
        upstream = data.get("upstream")
        if upstream is None:
            yield Finding(self.lock, "does not name the upstream: sglwheel lock completes it")
            return
        want = {"url": self.recipe.source.git, "commit": str(self.recipe.source.commit)}
        for key, value in want.items():
            if upstream.get(key) != value:
                yield Finding(self.lock, f"upstream.{key} is {upstream.get(key)}, the recipe says {value}")
        yield from self._commit("upstream", want["url"], want["commit"], upstream.get("tree"))

    def source(self, pin: Pin) -> Iterator[Finding]:
        """Whether one source is still what its pin says, in the store and at its place."""
        if pin.commit:
            asked = pin.requested
            if re.fullmatch(r"[0-9a-f]{40}", asked) and asked != pin.commit:
                yield Finding(self.lock, f"{pin.name}: the build asks for {asked}, commit is {pin.commit}")
                return
            if pin.name in self.overrides:
                return
            yield from self._commit(pin.name, pin.url, pin.commit, pin.tree)
            if self.online and asked and asked != pin.commit and pin.kind == "git":
                yield from self._moved(pin)
        elif pin.sha256:
            yield from self._archive(pin)

    def _commit(self, name: str, url: str, commit: str, tree: str | None) -> Iterator[Finding]:
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
                yield Finding(self.lock, f"{name}: the tree of {commit} is {actual}, the lock says {tree}")
            for path, why in kept.edited(name, store, wanted, self.layout):
                yield Finding(self.layout.relative(path), f"{name}: {why}")
        except (SglwheelError, ValueError) as error:
            detail = "; ".join(error.where.values()) if isinstance(error, SglwheelError) else ""
            yield Finding(self.lock, f"{name}: {getattr(error, 'what', error)} {detail}".strip())

    def _moved(self, pin: Pin) -> Iterator[Finding]:
        store = GitStore.open(pin.url, self.layout, self.mirrors)
        try:
            now = store.resolve(pin.requested)
        except SourceError as error:
            yield Finding(self.lock, f"{pin.name}: {error.what}")
            return
        if now != pin.commit:
            yield Finding(
                self.lock, f"{pin.name}: {pin.requested} is {now} at its remote, the lock says {pin.commit}"
            )

    def _archive(self, pin: Pin) -> Iterator[Finding]:
        assert pin.sha256 is not None
        algorithm, _, digest = pin.requested.partition("=")
        if algorithm.upper() == "SHA256" and digest.lower() != pin.sha256:
            yield Finding(
                self.lock, f"{pin.name}: the build asks for SHA256 {digest}, the lock says {pin.sha256}"
            )
            return
        archive = downloads.archive_of(pin.sha256, self.layout)
        if archive.is_file() and files.sha256(archive) != pin.sha256:
            yield Finding(
                self.layout.relative(archive), f"{pin.name}: stored bytes are not those of its hash"
            )
        elif archive.is_file():
            for path in downloads.edited(pin.sha256, self.layout):
                yield Finding(self.layout.relative(path), f"{pin.name}: differs from the archive")
        if self.online and pin.name not in self.overrides and not (digest and archive.is_file()):
            try:
                downloads.ask(pin.url, pin.requested, pin.sha256, self.layout, self.mirrors)
            except SourceError as error:
                yield Finding(self.lock, f"{pin.name}: {error.what}: {'; '.join(error.where.values())}")

    def declared(self, pins: dict[str, Pin], patched: HasPath | Path) -> Iterator[Finding]:
        """Whether the patched tree's CMake fetches exactly what the lock names."""
        try:
            declared = source.declared(patched, self.recipe, self.layout, self.mirrors, self.overrides)
        except SglwheelError as error:
            yield Finding(self.lock, error.what)
            return
        names = {item.name for item in declared}
        for item in declared:
            pin = pins.get(item.name)
            if pin is None:
                yield Finding(self.lock, f"{item.name}: the build fetches it, the lock does not name it")
            elif (pin.kind, pin.url, pin.requested) != (item.kind, item.url, item.requested):
                build = f"{item.url} {item.requested}".strip()
                yield Finding(
                    self.lock, f"{item.name}: the build asks for {build}, not {pin.url} {pin.requested}"
                )
        for name in sorted(pins.keys() - names):
            yield Finding(self.lock, f"{name}: the build does not fetch it")
