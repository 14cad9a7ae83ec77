"""Put the programs that nodes run into a wheelhouse: `install-check.pyz` and `gpu-check.pyz`."""

from __future__ import annotations

from pathlib import Path

from sglwheel import programs
from sglwheel.wheelhouse.documents import write_changed


def write(directory: Path) -> None:
    """Write those that changed."""
    for name in programs.ALL:
        write_changed(directory / name, programs.packed(name))
