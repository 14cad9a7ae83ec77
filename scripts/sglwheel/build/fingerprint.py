"""What a build depends on, as one digest: two builds with one fingerprint may share objects."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sglwheel.patching import PatchedTree
    from sglwheel.recipe import Recipe
    from sglwheel.source import Dependencies
    from sglwheel.toolchain import BuildEnv

# Of the inputs' format; raised only when objects of older trees must not be used again. 2: objects no longer
# depend on where and when they were compiled.
_VERSION = 2


def inputs(recipe: Recipe, patched: PatchedTree, dependencies: Dependencies, env: BuildEnv) -> dict[str, Any]:
    """Everything that can change an object file, by name.

    Content only: no path, no date, nothing of the tool's own version or of the recipe's prose.
    """
    return {
        "version": _VERSION,
        "source": {"tree": patched.tree, "directory": recipe.source.directory},
        "dependencies": {dependency.name: dependency.content for dependency in dependencies.sources},
        "toolchain": env.identity,
        "architectures": [str(architecture) for architecture in recipe.build.architectures],
        "cmake": {key: cmake_value(value) for key, value in recipe.options.items()},
        "environment": dict(recipe.build.environment),
    }


def digest(values: Mapping[str, Any]) -> str:
    """SHA-256 of the values, independent of key order."""
    return hashlib.sha256(json.dumps(values, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def flavour(values: Mapping[str, Any]) -> str:
    """Which measured costs of units can be expected again: those of the same flags and compilers."""
    return digest({key: values[key] for key in ("toolchain", "architectures", "cmake", "environment")})[:12]


def changes(before: Mapping[str, Any], after: Mapping[str, Any], *, prefix: str = "") -> list[str]:
    """Dotted names of the inputs that differ: why a build starts anew."""
    found: list[str] = []
    for key in sorted({*before, *after}):
        old, new = before.get(key), after.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            found += changes(old, new, prefix=f"{prefix}{key}.")
        elif old != new:
            found.append(f"{prefix}{key}")
    return found


def cmake_value(value: bool | int | str) -> str:
    """A recipe's value as CMake reads it."""
    if isinstance(value, bool):
        return "ON" if value else "OFF"
    return str(value)
