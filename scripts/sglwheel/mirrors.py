"""Mirrors: where else an url's content may be had. A setting of the host, never of a recipe."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self
from urllib.parse import unquote, urlsplit, urlunsplit

from sglwheel.errors import UsageError
from sglwheel.files import Layout, expanded

CONFIG_NAME = ".sglwheel.toml"
_GITHUB = "https://github.com"


@dataclass(frozen=True)
class Mirrors:
    """A mapping of url prefixes to places that hold the same content."""

    entries: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    offline: bool = False
    """Only places on this host count."""

    @classmethod
    def load(cls, layout: Layout) -> Self:
        """Read `$SGLWHEEL_CONFIG` or the checkout's `.sglwheel.toml`, then `$SGLWHEEL_MIRRORS` over it.

        `SGLWHEEL_MIRRORS` is the path of such a file, or `from=to` pairs between newlines or semicolons.
        `GITHUB_ARTIFACTORY` is upstream's own word for a host that stands for github.com.
        Raises UsageError.
        """
        named = os.environ.get("SGLWHEEL_CONFIG")
        config = expanded(named) if named else layout.root / CONFIG_NAME
        if named and not config.is_file():
            raise UsageError("SGLWHEEL_CONFIG names no file", where={"file": str(config)})
        entries = _from_file(config) if config.is_file() else {}
        text = os.environ.get("SGLWHEEL_MIRRORS", "").strip()
        if text and "=" not in text:
            path = expanded(text)
            if not path.is_file():
                raise UsageError(
                    "SGLWHEEL_MIRRORS is neither a file nor `url=mirror` pairs",
                    where={"value": text},
                    next="name a file with [mirrors], or write pairs: https://pypi.org/simple=<url or path>",
                )
            entries |= _from_file(path)
        elif text:
            entries |= _from_pairs(text)
        artifactory = os.environ.get("GITHUB_ARTIFACTORY", "").strip().rstrip("/")
        if artifactory not in ("", "github.com"):
            place = artifactory if "://" in artifactory else f"https://{artifactory}"
            entries[_GITHUB] = tuple(dict.fromkeys((*entries.get(_GITHUB, ()), place)))
        return cls(entries)

    def with_entries(self, entries: Mapping[str, str | os.PathLike[str]]) -> Self:
        """The same mirrors with more in front; keys are prefixes, values urls or paths."""
        more = {normal(key): (os.fspath(value),) for key, value in entries.items()}
        return replace(self, entries={**self.entries, **more})

    def without_network(self) -> Self:
        """The same mirrors, less all places that are not on this host."""
        return replace(self, offline=True)

    def mapped(self, url: str) -> tuple[str, ...]:
        """What the longest matching prefix leads to; empty if none matches."""
        wanted = normal(url)
        best = max(
            (key for key in self.entries if wanted == key or url.startswith(f"{key}/")), key=len, default=None
        )
        if best is None:
            return ()
        rest = "" if wanted == best else url.removeprefix(best)
        return tuple(_below(target, rest) if rest else target for target in self.entries[best])

    def candidates(self, url: str) -> tuple[str, ...]:
        """Places to try in turn: mirrors, then the url itself unless its host cannot exist."""
        host = urlsplit(url).hostname or ""
        original = () if host == "invalid" or host.endswith(".invalid") else (url,)
        every = dict.fromkeys((*self.mapped(url), *original))
        return tuple(place for place in every if not self.offline or local_path(place) is not None)

    def original(self, url: str) -> str:
        """What a mirror's url stands for, with a user's name in it or without; itself if no mirror has it."""
        bare = _place(url)
        pairs = ((key, _place(target)) for key, targets in self.entries.items() for target in targets)
        for key, target in sorted(pairs, key=lambda pair: -len(pair[1])):
            if bare == target or bare.startswith(f"{target}/"):
                return key + bare.removeprefix(target)
        return url


def redacted(url: str) -> str:
    """An url as logs and errors may show it: without user, password and query."""
    if local_path(url) is not None or "://" not in url:
        return url
    try:
        parts = urlsplit(url)
    except ValueError:
        return re.sub(r"(?<=//)[^/]*@|\?.*", "", url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def anonymous(url: str) -> str:
    """An url without user and password, which still leads there: for what is written down."""
    if local_path(url) is not None or "://" not in url:
        return url
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def _below(target: str, rest: str) -> str:
    """What `rest` of an url means in a mirror: a path has no escapes."""
    plain = local_path(target) is not None and not target.startswith("file://")
    return target.rstrip("/") + (unquote(rest) if plain else rest)


def as_url(place: str) -> str:
    """A place as an url, a path too: uv takes a blank in a path for the end of an index."""
    path = local_path(place)
    return path.absolute().as_uri() if path is not None else place


def _place(url: str) -> str:
    """The same for each spelling of a place: who asks, a path as such or as an url, what is escaped in it."""
    return (as_url(url) if local_path(url) is not None else anonymous(url)).rstrip("/")


def normal(url: str) -> str:
    """An url without what does not tell repositories apart: a final slash or `.git`."""
    return url.rstrip("/").removesuffix(".git").rstrip("/")


def local_path(candidate: str) -> Path | None:
    """The path that a `file://` url or a plain path names; None for what is elsewhere."""
    if candidate.startswith("file://"):
        return Path(unquote(candidate.removeprefix("file://").removeprefix("localhost")))
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", candidate) or re.match(r"[^/]+@[^/]+:", candidate):
        return None
    return expanded(candidate)


def _from_file(path: Path) -> dict[str, tuple[str, ...]]:
    try:
        data: dict[str, Any] = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"cannot read mirrors: {error}", where={"file": str(path)}) from None
    table = data.get("mirrors", {})
    if not isinstance(table, dict):
        raise UsageError("[mirrors] must be a table", where={"file": str(path)})
    entries: dict[str, tuple[str, ...]] = {}
    mistakes: dict[str, str] = {}
    for key in data.keys() - {"mirrors"}:
        mistakes[key] = "is nothing that this file says: there is [mirrors] alone"
    for key, value in table.items():
        targets = [value] if isinstance(value, str) else value
        if isinstance(targets, list) and targets and all(isinstance(item, str) and item for item in targets):
            try:
                # A relative path means: beside the file that says it.
                entries[_key(key)] = tuple(_absolute(item, path.parent) for item in targets)
            except ValueError as error:
                mistakes[f"mirrors.{key}"] = str(error)
        else:
            mistakes[f"mirrors.{key}"] = "must be an url or path, or a list of them"
    if mistakes:
        raise UsageError(f"{path} has mistakes", where=mistakes, next=f"edit {path}")
    return entries


def _from_pairs(text: str) -> dict[str, tuple[str, ...]]:
    entries: dict[str, tuple[str, ...]] = {}
    for pair in re.split(r"[\n;]+", text):
        if not pair.strip():
            continue
        key, separator, target = pair.strip().partition("=")
        try:
            if not separator or not key or not target:
                raise ValueError("is no pair")
            key = _key(key)
            entries[key] = (*entries.get(key, ()), _absolute(target, Path.cwd()))
        except ValueError as error:
            raise UsageError(
                "SGLWHEEL_MIRRORS wants `url=mirror` pairs",
                where={redacted(key or pair.strip()): str(error)},
                next="name a file with [mirrors], or write pairs: https://pypi.org/simple=<url or path>",
            ) from None
    return entries


def _key(text: str) -> str:
    """What is mapped. Raises ValueError for what no url begins with: it would never be taken."""
    if urlsplit(text).scheme not in ("https", "http", "file"):
        raise ValueError("maps no url: write it like https://github.com")
    return normal(text)


def _absolute(target: str, base: Path) -> str:
    """A place as it is wherever we run. Raises ValueError for an url that is none."""
    path = local_path(target)
    if path is None and "://" in target and not urlsplit(target).hostname:
        raise ValueError("leads to an url without a host")
    return target if path is None or target.startswith("file://") else str(base / path)
