"""What a kernel project's build files declare: things whose change a patch can miss that still applies."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

_COMMENT = re.compile(r"(?m)^[ \t]*#.*")
_FETCH = re.compile(r"\bFetchContent_Declare\s*\(\s*([\w.+-]+)", re.IGNORECASE)
_LIBRARY = re.compile(
    r"\b(?:Python\d*_add_library|pybind11_add_module|add_library)\s*\(\s*([\w.+-]+)\s+([\w$]*)", re.I
)
_LIST = re.compile(
    r"\b(?:set\s*\(|list\s*\(\s*(?:APPEND|PREPEND))\s*(\w+)\s([^()]*(?:\([^()]*\)[^()]*)*)\)", re.I
)
# No code of their own, or somebody else's.
_NO_LIBRARY = frozenset({"ALIAS", "INTERFACE", "IMPORTED", "UNKNOWN"})


@dataclass(frozen=True)
class Signals:
    """Declarations at one commit. `torch` are requirements by where they stand."""

    gencodes: frozenset[str] = frozenset()
    libraries: frozenset[str] = frozenset()
    sources: frozenset[str] = frozenset()
    distribution: str | None = None
    torch: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Notice:
    """Something that the series may not cover: what appeared or changed, and why it matters."""

    what: str
    why: str


def read(path: str, content: bytes) -> Signals:
    """Read the declarations of one CMake file or pyproject.toml; another file has none."""
    text = content.decode("utf-8", "replace")
    if path.endswith("pyproject.toml"):
        distribution, torch = _project(text)
        return Signals(distribution=distribution, torch=tuple(torch))
    if not path.endswith((".cmake", "CMakeLists.txt")):
        return Signals()
    text = _COMMENT.sub("", text)
    lists = _LIST.findall(text)
    return Signals(
        frozenset(name for name, body in lists if "compute_" in body or name.endswith("_ARCHITECTURES")),
        frozenset(name for name, kind in _LIBRARY.findall(text) if kind.upper() not in _NO_LIBRARY),
        frozenset(_FETCH.findall(text)),
    )


def join(parts: Iterable[Signals]) -> Signals:
    """The declarations of a project, from those of its files."""
    found = list(parts)
    return Signals(
        frozenset().union(*(part.gencodes for part in found)),
        frozenset().union(*(part.libraries for part in found)),
        frozenset().union(*(part.sources for part in found)),
        next((part.distribution for part in found if part.distribution), None),
        tuple(sorted({item for part in found for item in part.torch})),
    )


def compare(before: Signals, after: Signals, covered: Iterable[bytes]) -> list[Notice]:
    """What `after` has that `before` had not, less what a patch (its text in `covered`) names."""
    texts = list(covered)

    def fresh(old: frozenset[str], new: frozenset[str]) -> list[str]:
        return sorted(name for name in new - old if not any(name.encode() in text for text in texts))

    notices = [
        Notice(f"new list of GPU architectures: {name}", "a patch for architectures has to cover it")
        for name in fresh(before.gencodes, after.gencodes)
    ]
    notices += [
        Notice(f"new library: {name}", "is it needed, for which GPUs, and is it abi3?")
        for name in fresh(before.libraries, after.libraries)
    ]
    notices += [
        Notice(f"new FetchContent source: {name}", "it is fetched and built from now on")
        for name in sorted(after.sources - before.sources)
    ]
    if before.distribution != after.distribution and after.distribution is not None:
        change = f"{before.distribution} → {after.distribution}"
        notices.append(Notice(f"distribution renamed: {change}", "both own the same files on a node"))
    if before.torch != after.torch:
        old, new = (_torch(signals) for signals in (before, after))
        notices.append(Notice(f"required torch: {old} → {new}", "torch.version in the recipe has to fit"))
    return notices


def _torch(signals: Signals) -> str:
    return ", ".join(f"{where} {what}" for where, what in signals.torch) or "none"


def _project(text: str) -> tuple[str | None, list[tuple[str, str]]]:
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return None, []
    project, build = data.get("project", {}), data.get("build-system", {})
    torch = [
        (where, requirement)
        for where, items in (("build", build.get("requires", [])), ("run", project.get("dependencies", [])))
        for requirement in items
        if _is_torch(requirement)
    ]
    return project.get("name"), torch


def _is_torch(text: object) -> bool:
    try:
        return canonicalize_name(Requirement(str(text)).name) == "torch"
    except InvalidRequirement:
        return False
