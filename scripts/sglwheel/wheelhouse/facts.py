"""Pick from provenance and reports what a page, a resolver or a node asks of a release."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from sglwheel.wheelhouse.wheelfile import WheelFile


def facts(wheel: WheelFile, inspection: Any, smoke: Any) -> dict[str, Any]:
    """Arguments for `Record.of`.

    What a wheel does not say stays empty: wheels of older tools are published too.
    """
    said = wheel.provenance
    segments = str(wheel.version.local or "").split(".")
    cuda = next((item for item in segments if item.startswith("cu") and item[2:].isdigit()), None)
    recipe = _text(said, ("recipe", "id"), ("recipe",))
    extra = {
        "kind": _text(said, ("recipe", "kind")) or "kernels",
        "recipe": recipe,
        "line": recipe or cuda,
        "cuda": cuda,
        "architectures": _texts(_at(said, "flags", "architectures") or _at(said, "architectures")),
        "upstream": _text(said, ("upstream", "commit")),
        "patches": _patches(_at(said, "patched", "patches")),
        "built_with": _built_with(said),
    }
    if not extra["architectures"]:
        extra["architectures"] = tuple(item for item in segments if item.startswith("sm"))
    return {"checks": (*checks("inspection", inspection), *checks("smoke", smoke)), "extra": extra}


def _built_with(said: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    tools = _at(said, "toolchain")
    names = {"nvcc": "nvcc", "cxx": "compiler", "cmake": "CMake", "provider": "toolkit from"}
    torch = _text(said, ("torch", "full-version"))
    found = [
        (label, str(tools[key]))
        for key, label in names.items()
        if isinstance(tools, Mapping) and tools.get(key)
    ]
    return (*((("torch", torch),) if torch else ()), *found)


def _patches(value: Any) -> tuple[tuple[str, str], ...]:
    items = value if isinstance(value, list) else []
    return tuple(
        (str(item.get("name", "?")), str(item.get("state", "?")))
        for item in items
        if isinstance(item, Mapping)
    )


def checks(kind: str, report: Any) -> Iterable[tuple[str, str]]:
    """Names and outcomes of a report's checks; a skipped one keeps its reason."""
    value = json.loads(report) if isinstance(report, str) else report
    if not isinstance(value, Mapping):
        return
    if kind == "inspection":
        yield kind, "passed" if value.get("ok", True) else "failed"
    checks = value.get("checks")
    for item in checks if isinstance(checks, list) else []:
        if isinstance(item, Mapping):
            detail = f": {item['detail']}" if item.get("status") == "skipped" and item.get("detail") else ""
            yield str(item.get("name", "?")), f"{item.get('status', '?')}{detail}"


def _text(data: Mapping[str, Any], *paths: tuple[str, ...]) -> str | None:
    for path in paths:
        value = _at(data, *path)
        if isinstance(value, str) and value:
            return value
    return None


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(str(item) for item in value) if isinstance(value, list | tuple) else ()


def _at(data: Any, *path: str) -> Any:
    for key in path:
        data = data.get(key) if isinstance(data, Mapping) else None
    return data
