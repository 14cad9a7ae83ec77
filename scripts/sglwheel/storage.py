"""How big the stores are, and what in them no recipe, lock or recent build needs any more."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sglwheel import files
from sglwheel import recipe as recipes
from sglwheel.errors import ToolchainError
from sglwheel.files import Layout
from sglwheel.mirrors import normal
from sglwheel.source import sourcelock
from sglwheel.toolchain import packages, wheels
from sglwheel.toolchain.pylocks import Pylocks

KINDS = ("git", "sources", "urls", "wheels", "envs", "toolkits", "torch-symbols", "compiler-cache")
_DAY = 86_400.0
# Younger scratch may be somebody's download that is still running.
_SCRATCH_DAYS = 1.0


@dataclass(frozen=True)
class Garbage:
    """Something that may go, and why."""

    kind: str
    path: Path
    bytes: int
    why: str


@dataclass(frozen=True)
class _Roots:
    """What is needed: by hash, by commit, by url."""

    wheels: frozenset[str]
    archives: frozenset[str]
    commits: frozenset[str]
    urls: frozenset[str]
    torches: frozenset[str]


def sizes(layout: Layout) -> dict[str, int]:
    """Bytes on disk of each store; a file with several names counts once over all."""
    seen: set[tuple[int, int]] = set()
    return {kind: _bytes(layout.cache / kind, seen) for kind in KINDS}


def garbage(layout: Layout, days: float, *, now: float | None = None) -> tuple[Garbage, ...]:
    """What no lock of this checkout names and nobody used for so many days.

    Raises the error of a recipe or lock that cannot be read: nothing is garbage then.
    """
    roots = _roots(layout)
    cache, moment = layout.cache, now if now is not None else time.time()
    found: list[Garbage] = []

    def old(path: Path, limit: float = days) -> bool:
        return moment - path.lstat().st_mtime > limit * _DAY

    def add(kind: str, path: Path, why: str) -> None:
        found.append(Garbage(kind, path, _bytes(path, set()), why))

    for path in _children(cache / "wheels"):
        if path.is_dir() and path.name not in roots.wheels and old(path):
            add("wheels", path, "no lock names it")
    for path in _children(cache / "urls"):
        if path.is_dir() and len(path.name) == 64 and path.name not in roots.archives and old(path):
            add("urls", path, "no lock names it")
    pieces: set[str] = set()
    kept: set[str] = set()
    stale: dict[Path, str] = {}
    for receipt in sorted((cache / "sources").glob("*.json")):
        try:
            facts: dict[str, Any] = json.loads(receipt.read_text())
            outer, *inner = facts["pieces"]
            needed = outer["commit"] in roots.commits or not old(receipt)
            if needed:
                kept.add(facts["directory"])
                pieces |= {piece["url"] for piece in (outer, *inner)}
            else:
                stale[receipt] = facts["directory"]
        except (OSError, ValueError, KeyError, TypeError):
            stale[receipt] = ""
    for receipt, directory in stale.items():
        add("sources", receipt, "no lock names its commit")
        target = cache / "sources" / directory
        if directory and directory not in kept and target.is_dir():
            add("sources", target, "no lock names its commit")
    needed_stores = {_slug(url) for url in roots.urls | pieces}
    for path in _children(cache / "git"):
        if path.suffix == ".git" and path.stem.rpartition("-")[2] not in needed_stores and old(path):
            add("git", path, "no recipe or lock names its url")
    for kind in ("envs", "toolkits"):
        for path in _children(cache / kind):
            marker = path / "complete.json"
            if path.is_dir() and old(marker if marker.is_file() else path):
                add(kind, path, f"not used for {days:g} days" if marker.is_file() else "never completed")
    for path in _children(cache / "torch-symbols"):
        label = path.name.removeprefix("torch-").removesuffix(".symbols.xz")
        if label != path.name and label.split("+")[0] not in roots.torches and old(path):
            add("torch-symbols", path, "no recipe uses that torch")
    for path in cache.glob("*/.*"):
        if path.parent.name in KINDS and old(path, _SCRATCH_DAYS):
            add(path.parent.name, path, "left over from an interrupted run")
    for pattern in ("wheels/*/*.part", "urls/*.part"):
        for path in cache.glob(pattern):
            if old(path, _SCRATCH_DAYS):
                add(path.relative_to(cache).parts[0], path, "left over from an interrupted run")
    unique = {item.path: item for item in found}
    return tuple(sorted(unique.values(), key=lambda item: (item.kind, item.path.name)))


def collect(items: Sequence[Garbage]) -> tuple[Garbage, ...]:
    """Delete garbage; return what stayed because somebody holds it.

    What goes is first taken out of sight, so that nobody meets half of it.
    """
    held: list[Garbage] = []
    for item in items:
        guard = item.path.with_suffix(".lock")
        try:
            with files.locked(guard, failure=ToolchainError, what=item.path.name, timeout=0):
                _remove(item.path)
        except ToolchainError:
            held.append(item)
    return tuple(held)


def _remove(path: Path) -> None:
    if not path.is_dir() or path.is_symlink():
        path.unlink(missing_ok=True)
        return
    aside = path.with_name(f".gone-{path.name}-{os.getpid()}")
    path.rename(aside)
    for directory, names, _ in os.walk(aside):
        for name in (".", *names):
            inner = Path(directory, name)
            if not inner.is_symlink():
                inner.chmod(inner.stat().st_mode | stat.S_IRWXU)
    shutil.rmtree(aside)


def _roots(layout: Layout) -> _Roots:
    hashes: set[str] = set()
    archives: set[str] = set()
    commits: set[str] = set()
    urls: set[str] = set()
    torches: set[str] = set()
    for name in recipes.names(layout):
        loaded = recipes.load(layout, name)
        urls.add(loaded.source.git)
        torches.add(str(loaded.torch.version))
        commits.add(str(loaded.source.commit))
        for pin in sourcelock.load(layout, name).values():
            urls.add(pin.url)
            archives |= {pin.sha256} if pin.sha256 else set()
            commits |= {pin.commit} if pin.commit else set()
        locks = [*Pylocks.files_of(name, layout), *(layout.work / name / "locks").glob("pylock.*.toml")]
        for path in locks:
            lock = packages.read(path)
            hashes |= {item.sha256 for item in wheels.every(lock)} if lock else set()
    return _Roots(
        frozenset(hashes), frozenset(archives), frozenset(commits), frozenset(urls), frozenset(torches)
    )


def _children(path: Path) -> Iterable[Path]:
    return sorted(one for one in path.iterdir() if not one.name.startswith(".")) if path.is_dir() else ()


def _slug(url: str) -> str:
    return hashlib.sha256(normal(url).encode()).hexdigest()[:8]


def _bytes(path: Path, seen: set[tuple[int, int]]) -> int:
    total = 0
    names = [path] if path.is_file() else (Path(d, n) for d, _, every in os.walk(path) for n in every)
    for name in names:
        facts = name.lstat()
        key = (facts.st_dev, facts.st_ino)
        if facts.st_nlink > 1:
            if key in seen:
                continue
            seen.add(key)
        total += facts.st_blocks * 512
    return total
