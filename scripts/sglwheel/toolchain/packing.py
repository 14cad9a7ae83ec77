"""The environment that packs a project of Python alone: torch, setuptools, and nothing that compiles."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sglwheel.files import Layout
from sglwheel.mirrors import Mirrors
from sglwheel.recipe import PythonRecipe
from sglwheel.toolchain import environments, packages, preflight, torchpin
from sglwheel.toolchain.packages import Lock, Package
from sglwheel.toolchain.pylocks import Pylocks
from sglwheel.toolchain.torchpin import InstalledTorch, TorchPin


@dataclass(frozen=True)
class PackingEnv:
    """What packs, and the environment to start it in, of which nothing is inherited.

    torch takes no part in packing; it is there because the wheel is tried beside it. `identity` is the same
    wherever the same bytes come out. There is no driver `stub`: nothing here links to a driver.
    """

    python: Path
    torch: InstalledTorch
    environment: Mapping[str, str]
    packages: tuple[Package, ...]
    description: Mapping[str, str]
    identity: str
    lock: Lock
    sources: tuple[str, ...] = ()
    stub: Path | None = None


def prepare(recipe: PythonRecipe, pin: TorchPin, layout: Layout, mirrors: Mirrors) -> PackingEnv:
    """Make or reuse the environment. Raises ToolchainError."""
    interpreter = preflight.require_python(recipe, layout)
    locks = Pylocks(recipe, pin, layout, mirrors)
    lock = locks.environment()
    torchpin.foresee(lock.version("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12"), pin)
    supply = environments.Supply(layout, mirrors, locks.index)
    logs = layout.work / recipe.id / "toolchain"
    site, python, installed = environments.environment(lock, interpreter, layout, logs, supply)
    wheel = next((package.sha256 for package in installed if package.name == "torch"), None)
    torch = torchpin.read(site, sha256=wheel)
    torchpin.verify(torch, pin)
    tools = recipe.build.tools
    packing = [package for package in installed if package.name in tools]
    description = {"python": interpreter.minor, **{name: str(version) for name, version in tools.items()}}
    facts = [description, packages.to_json(packing), dict(recipe.build.environment)]
    return PackingEnv(
        python=python,
        torch=torch,
        environment=_clean(recipe, layout, python.parent),
        packages=installed,
        description=description,
        identity=hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest(),
        lock=lock,
        sources=supply.sources(lock, interpreter.version),
    )


def _clean(recipe: PythonRecipe, layout: Layout, bin_directory: Path) -> dict[str, str]:
    work = layout.work / recipe.id
    home, temporary = work / "home", work / "tmp"
    for directory in (home, temporary):
        directory.mkdir(parents=True, exist_ok=True)
    return {
        **recipe.build.environment,
        "PATH": f"{bin_directory}:/usr/bin:/bin",
        "HOME": str(home),
        "TMPDIR": str(temporary),
        "LANG": "C.UTF-8",
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
        "PYTHONNOUSERSITE": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
