"""Where a wheel comes from, as plain data that travels inside it: inputs, nothing of the building host."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from sglwheel.build.fingerprint import cmake_value

if TYPE_CHECKING:
    from sglwheel.patching import PatchedTree
    from sglwheel.recipe import Recipe
    from sglwheel.source import Checkout, Dependencies
    from sglwheel.source.fetched import FetchedSource
    from sglwheel.toolchain.packages import Package
    from sglwheel.toolchain.torchpin import InstalledTorch

FILE = "sglwheel.json"  # in .dist-info/
SCHEMA = 1


class Environment(Protocol):
    """What of a build environment travels inside the wheel."""

    @property
    def torch(self) -> InstalledTorch: ...
    @property
    def identity(self) -> str: ...
    @property
    def description(self) -> Mapping[str, str]: ...
    @property
    def packages(self) -> tuple[Package, ...]: ...


def describe(
    recipe: Recipe,
    patched: PatchedTree,
    dependencies: Dependencies,
    env: Environment,
    checkout: Checkout,
    fingerprint: str,
) -> dict[str, Any]:
    """Every input of a build by name. No path, user or host; the same inputs give the same data anywhere."""
    kind = {"kind": "python"} if recipe.pure else {}  # kernels were there before there were kinds
    return {
        "schema": SCHEMA,
        "recipe": {"id": recipe.id, "digest": recipe.digest, "build": recipe.wheel.build, **kind},
        "fingerprint": fingerprint,
        "upstream": {
            "url": recipe.source.git,
            "commit": checkout.commit,
            "date": checkout.date.isoformat(),
            "tree": checkout.tree,
            "directory": recipe.source.directory,
        },
        "patched": {
            "series": recipe.source.series,
            "commit": patched.commit,
            "tree": patched.tree,
            "patches": [
                {
                    "name": patch.name,
                    "state": patch.state,
                    "because": patch.because,
                    "commit": patch.commit,
                    "files": list(patch.files),
                }
                for patch in patched.patches
            ],
        },
        "sources": [_source(item) for item in sorted(dependencies.sources, key=lambda item: item.name)],
        "overridden": dependencies.overridden,
        "torch": {
            "version": str(env.torch.version),
            "full-version": env.torch.full_version,
            "cuda": env.torch.cuda,
            "git-version": env.torch.git_version,
            "sha256": env.torch.sha256,
            "cxx11-abi": env.torch.cxx11_abi,
            # One that lay there: no wheel's hash says which it is, its RECORD does.
            **({"installed": {"record-sha256": env.torch.record}} if env.torch.record else {}),
        },
        "toolchain": {
            "identity": env.identity,
            **env.description,
            "packages": [
                {"name": package.name, "version": str(package.version), "sha256": package.sha256}
                for package in sorted(env.packages, key=lambda package: package.name)
            ],
        },
        "flags": {
            "architectures": [str(architecture) for architecture in recipe.build.architectures],
            "cmake": {key: cmake_value(value) for key, value in sorted(recipe.options.items())},
            "environment": dict(sorted(recipe.build.environment.items())),
            "exclude": list(recipe.excluded),
        },
    }


def marks(origin: Mapping[str, Any]) -> tuple[str, ...]:
    """What makes this wheel no ordinary release, in words."""
    return tuple(f"overridden: {item['name']}" for item in origin["sources"] if item["via"] == "override")


def to_json(origin: Mapping[str, Any]) -> bytes:
    """The data as the file in .dist-info has it."""
    return (json.dumps(origin, indent=2, sort_keys=True) + "\n").encode()


def _source(item: FetchedSource) -> dict[str, Any]:
    return {
        "name": item.name,
        "kind": item.kind,
        # An override is somebody's directory: its content is named, its place is not.
        "url": item.url,
        "requested": item.requested,
        "commit": item.commit,
        "sha256": item.sha256,
        "tree": item.tree,
        "via": item.via,
    }
