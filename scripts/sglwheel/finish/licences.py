"""Licence texts of everything that ends up inside a wheel (PEP 639)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sglwheel.source import Dependencies

_NAMES = re.compile(r"(LICEN[CS]E|COPYING|NOTICE|THIRDPARTYNOTICES|AUTHORS)([.-].*)?", re.IGNORECASE)
# Distributions whose headers are compiled into every unit.
_HEADERS = ("torch", "nvidia_cuda_runtime", "nvidia_cuda_cccl")


def of_sources(source: Path, directory: str, dependencies: Dependencies) -> dict[str, bytes]:
    """Texts by place under `licenses/`: the project's own, then a folder for each fetched source."""
    found: dict[str, bytes] = {}
    for folder in (source / directory, source):
        found |= {path.name: path.read_bytes() for path in _in(folder.iterdir()) if path.name not in found}
        if any(name.upper().startswith(("LICENSE", "LICENCE", "COPYING")) for name in found):
            break
    for dependency in dependencies.sources:
        for path in dependency.license_files:
            absolute = path if path.is_absolute() else dependency.path / path
            inside = absolute.relative_to(dependency.path)
            found[f"{dependency.name}/{inside.as_posix()}"] = absolute.read_bytes()
    return found


def of_headers(site_packages: Path) -> dict[str, bytes]:
    """Texts of torch and of what of CUDA was installed as wheels, a folder for each."""
    return {
        f"{name}/{path.name}": path.read_bytes()
        for name in _HEADERS
        for info in sorted(site_packages.glob(f"{name}-*.dist-info"))
        for path in _in(info.rglob("*"))
    }


def _in(paths: Iterator[Path]) -> list[Path]:
    return [path for path in sorted(paths) if path.is_file() and _NAMES.fullmatch(path.name)]
