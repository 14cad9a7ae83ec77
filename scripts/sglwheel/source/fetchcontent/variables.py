"""CMake's variables while nobody configures: known values, unset names, and what only CMake knows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sglwheel.source.fetchcontent.cmake import UNKNOWN


@dataclass(frozen=True)
class Environment:
    """The environment of a configure run: `values`, names that a host may set, and no others."""

    values: Mapping[str, str]
    open: frozenset[str] = frozenset()

    def value(self, name: str) -> str:
        """The value of `$ENV{name}`."""
        return self.values.get(name, UNKNOWN if name in self.open else "")

    def defined(self, name: str) -> bool | None:
        """The answer to `DEFINED ENV{name}`."""
        return True if name in self.values else (None if name in self.open else False)


@dataclass
class Variables:
    """Variables of one scope, the cache, and the environment; a name that nothing assigned is unknown."""

    environment: Environment
    cache: dict[str, str]
    normal: dict[str, str | None] = field(default_factory=dict)
    fixed: dict[str, str] = field(default_factory=dict)
    """Shared by all scopes: where fetched sources lie."""

    def child(self) -> Variables:
        """A scope that starts with a copy and shares the cache."""
        return Variables(self.environment, self.cache, dict(self.normal), self.fixed)

    def lookup(self, kind: str, name: str) -> str:
        """The value of `${name}`, `$ENV{name}` or `$CACHE{name}`."""
        if kind == "ENV":
            return self.environment.value(name)
        if kind == "" and name in self.fixed:
            return self.fixed[name]
        if kind == "" and name in self.normal:
            return self.normal[name] or ""
        return self.cache.get(name, UNKNOWN)

    def assigned(self, name: str) -> bool:
        """Whether something gave the name a value."""
        return name in self.fixed or self.normal.get(name) is not None or name in self.cache

    def defined(self, name: str) -> bool | None:
        """The answer to `DEFINED name`."""
        if name.startswith("ENV{"):
            return self.environment.defined(name[4:-1])
        if name in self.normal:
            return None if self.normal[name] == UNKNOWN else self.normal[name] is not None
        return True if self.assigned(name) else None

    def assign(self, name: str, value: str | None) -> None:
        """Set a normal variable; None unsets it."""
        self.normal[name] = value

    def forget(self, name: str) -> None:
        """Say that only CMake knows the value."""
        self.normal[name] = UNKNOWN

    def merge(self, outcomes: list[tuple[dict[str, str | None], dict[str, str]]]) -> None:
        """Become what all outcomes agree on."""
        normals = [normal for normal, _ in outcomes]
        caches = [cache for _, cache in outcomes]
        self.normal = {
            key: normals[0][key]
            if all(key in normal and normal[key] == normals[0].get(key, UNKNOWN) for normal in normals)
            else UNKNOWN
            for key in {key for normal in normals for key in normal}
        }
        agreed = {
            key: caches[0][key]
            if all(cache.get(key) == caches[0].get(key, UNKNOWN) for cache in caches)
            else UNKNOWN
            for key in {key for cache in caches for key in cache}
        }
        self.cache.clear()
        self.cache.update(agreed)
