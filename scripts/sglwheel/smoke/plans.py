"""What a smoke test tries, for each kind of recipe: the order of checks, and what they need to know."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from sglwheel.errors import SmokeError
from sglwheel.inspect import Inspection
from sglwheel.recipe import KernelRecipe, PythonRecipe, Recipe

_FA3_OPTION = re.compile(r"\w*ENABLE_FA3")
Steps = list[list[Any]]


def installs(recipe: Recipe, torch: str, wheel: Path) -> list[list[str | Path]]:
    """What uv is asked to install, in order, beside each other's dependencies."""
    match recipe:
        case PythonRecipe():
            # Its hundred requirements are the node's business; most are gigabytes or services.
            return [[torch], ["--no-deps", wheel]]
        case _:
            return [[torch, wheel]]


def steps(facts: Inspection, recipe: Recipe) -> Steps:
    """Checks of the child, in order: a title, a function's name, its arguments."""
    match recipe:
        case PythonRecipe():
            return _python(facts, recipe)
        case KernelRecipe():
            return _kernels(facts, recipe)
        case _:
            raise SmokeError(f"{recipe.id} is of a kind that has no smoke test")


def _kernels(facts: Inspection, recipe: KernelRecipe) -> Steps:
    inside = frozenset(
        name for library in facts.libraries for name in (library.soname, library.file_name) if name
    )
    needed = {name for library in facts.libraries for name in library.needed}
    off = [key for key, value in recipe.options.items() if _FA3_OPTION.fullmatch(key) and _is_off(value)]
    package = recipe.smoke.imports[0].split(".")[0]
    schemas = {
        name: schema
        for library in facts.libraries
        for name, schema in zip(
            facts.operators_by_library.get(library.path, ()), library.schemas, strict=True
        )
        if not name.startswith("?")
    }
    namespaces = sorted({name.split("::")[0] for name in (*recipe.operators, *facts.operators)} - {"?"})
    libraries = [library.path for library in facts.libraries if not library.broken]
    flash = f"{package}.flash_attn"
    has_flash = any(file.path == f"{package}/flash_attn.py" for file in facts.wheel.files)
    return [
        ["libraries", "resolve", sorted(needed - inside)],
        ["load", "load", libraries],
        *([f"import {module}", "import_module", module] for module in recipe.smoke.imports),
        ["operators", "operators", namespaces],
        ["schemas", "schemas", schemas],
        ["kernels", "kernels", namespaces],
        ["cpu", "cpu", namespaces],
        ["meta", "meta", namespaces],
        *([["fa3-less flash_attn", "without_fa3", flash, off[0]]] if off and has_flash else []),
    ]


def _python(facts: Inspection, recipe: PythonRecipe) -> Steps:
    sources = sorted(file.path for file in facts.wheel.files if file.path.endswith(".py"))
    return [
        ["syntax", "syntax", sources],
        *([f"load {module} alone", "load_alone", module] for module in recipe.smoke.alone),
        *([f"import {module}", "import_light", module] for module in recipe.smoke.imports),
        [
            "gpu",
            "skip",
            "nothing here computes by itself: it takes its requirements and several GPUs",
        ],
    ]


def _is_off(value: object) -> bool:
    return value is False or str(value).upper() in ("OFF", "0", "FALSE", "NO", "N")
