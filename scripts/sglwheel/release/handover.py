"""A finished wheel on its way from the host that built it to the one that publishes it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement

from sglwheel import files, finish
from sglwheel.build.fingerprint import cmake_value
from sglwheel.errors import WheelhouseError
from sglwheel.finish import FinishedWheel, provenance
from sglwheel.recipe import Recipe
from sglwheel.wheelhouse.wheelfile import WheelFile


def notes_path(wheel: Path) -> Path:
    """Beside the wheel: who built it and what that took. The wheel holds inputs only."""
    return wheel.with_name(f"{wheel.name}.built.json")


def write(wheel: Path, who: Mapping[str, Any]) -> Path:
    """Write the notes that travel beside a finished wheel."""
    path = notes_path(wheel)
    data = {"wheel_sha256": files.sha256(wheel), "provenance": dict(who)}
    files.write_atomic(path, json.dumps(data, indent=1, sort_keys=True) + "\n")
    return path


def notes(wheel: Path) -> dict[str, Any]:
    """The notes beside a wheel, if they came along and are about these bytes; they prove nothing."""
    try:
        data = json.loads(notes_path(wheel).read_text(encoding="utf-8"))
        if data["wheel_sha256"] == files.sha256(wheel):
            return dict(data["provenance"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return {"built": "elsewhere"}


def read(wheel: Path, recipe: Recipe) -> FinishedWheel:
    """Take a wheel for a finished one of this recipe, by what it says of its inputs.

    Every file is held against RECORD. Raises WheelhouseError for a wheel that `finish` did not write, and for
    one of other inputs, naming both sides of each.
    """
    found = WheelFile.read(wheel)
    origin = found.provenance
    if origin.get("schema") != provenance.SCHEMA or not _at(origin, "upstream", "commit"):
        raise WheelhouseError(
            f"{wheel.name} does not say how it was built: it is not a wheel of ours",
            where={"file": str(wheel), "looked for": f".dist-info/{provenance.FILE}"},
            next="sglwheel inspect says what it is",
        )
    differences = {
        name: f"the wheel has {has}, the recipe {wants}"
        for name, has, wants in _comparisons(found, recipe)
        if has != wants
    }
    if differences:
        raise WheelhouseError(
            f"{wheel.name} is not what recipe {recipe.id} describes",
            where=differences,
            next="name the recipe that it was built from (--recipe), and its torch (--torch)",
        )
    return FinishedWheel(
        path=wheel,
        name=found.name,
        version=found.version,
        tag=found.tag,
        requires_torch=f"torch=={recipe.torch.version}",
        marked=provenance.marks(origin),
    )


def _comparisons(found: WheelFile, recipe: Recipe) -> list[tuple[str, str, str]]:
    origin = found.provenance
    # Also of wheels of another publisher's recipe: what counts is what it was built from.
    options = {key: cmake_value(value) for key, value in recipe.options.items()}
    architectures = [str(architecture) for architecture in recipe.build.architectures]
    version = finish.local_version(found.version.public, recipe, recipe.torch.version)
    return [
        ("recipe", _text(origin, "recipe", "id"), recipe.id),
        ("upstream", _text(origin, "upstream", "url"), recipe.source.git),
        ("commit", _text(origin, "upstream", "commit"), str(recipe.source.commit)),
        ("series", _text(origin, "patched", "series"), recipe.source.series),
        ("torch", _text(origin, "torch", "version"), str(recipe.torch.version)),
        ("requires", _requires(found), f"=={recipe.torch.version}"),
        ("version", str(found.version), str(version)),
        ("architectures", _words(_at(origin, "flags", "architectures")), ", ".join(architectures)),
        ("cmake", _words(_at(origin, "flags", "cmake")), _words(options)),
    ]


def _requires(found: WheelFile) -> str:
    specifiers = []
    for text in found.requires_dist:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        if requirement.name == "torch":
            specifiers.append(str(requirement.specifier))
    return " and ".join(specifiers) or "none"


def _words(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={value[key]}" for key in sorted(value))
    return ", ".join(str(item) for item in value) if isinstance(value, list) else "none"


def _text(data: Mapping[str, Any], *path: str) -> str:
    return str(_at(data, *path))


def _at(data: Any, *path: str) -> Any:
    for key in path:
        data = data.get(key) if isinstance(data, Mapping) else None
    return data
