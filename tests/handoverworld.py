"""What a finished wheel says of its inputs."""

from __future__ import annotations

from typing import Any

from sglwheel import recipe
from sglwheel.build.fingerprint import cmake_value


def provenance_of(target: recipe.Recipe) -> dict[str, Any]:
    """As `finish` writes it, as far as taking a wheel over asks for it."""
    return {
        "schema": 1,
        "recipe": {"id": target.id},
        "upstream": {"url": target.source.git, "commit": str(target.source.commit)},
        "patched": {"series": target.source.series},
        "torch": {"version": str(target.torch.version)},
        "flags": {
            "architectures": [str(one) for one in target.build.architectures],
            "cmake": {key: cmake_value(value) for key, value in target.build.cmake.items()},
        },
        "sources": [{"name": "x", "via": "override"}],
    }
