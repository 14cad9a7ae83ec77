"""Pack the node's program, `install-check.pyz`, the same bytes every time."""

from __future__ import annotations

import functools
import io
import zipfile
from pathlib import Path

from sglwheel import nodecheck
from sglwheel.wheelhouse.documents import write_changed

_MAIN = "import sys\n\nfrom sglwheel.nodecheck.program import main\n\nsys.exit(main())\n"


@functools.cache
def packed() -> bytes:
    """A zip archive that Python runs; it holds `sglwheel.nodecheck` alone."""
    members = {"__main__.py": _MAIN, "sglwheel/__init__.py": ""}
    for path in sorted(Path(nodecheck.__file__).parent.glob("*.py")):
        members[f"sglwheel/nodecheck/{path.name}"] = path.read_text("utf-8")
    buffer = io.BytesIO()
    buffer.write(b"#!/usr/bin/env python3\n")
    with zipfile.ZipFile(buffer, "a") as archive:
        for name, text in members.items():
            archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), text)
    return buffer.getvalue()


def write(directory: Path) -> None:
    """Put the program into a wheelhouse."""
    write_changed(directory / "install-check.pyz", packed())
