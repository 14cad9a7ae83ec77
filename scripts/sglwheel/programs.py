"""Programs of ours that run elsewhere, packed as archives that Python runs; the same bytes every time."""

from __future__ import annotations

import functools
import io
import zipfile
from pathlib import Path
from types import ModuleType

from sglwheel import gpucheck, nodecheck

GPU_CHECK = "gpu-check.pyz"
INSTALL_CHECK = "install-check.pyz"
ALL = (INSTALL_CHECK, GPU_CHECK)
_MAIN = "import sys\n\nfrom {name}.program import main\n\nsys.exit(main())\n"


@functools.cache
def packed(name: str) -> bytes:
    """`GPU_CHECK` or `INSTALL_CHECK`: its package alone, and what starts it."""
    package: ModuleType = {GPU_CHECK: gpucheck, INSTALL_CHECK: nodecheck}[name]
    root = Path(str(package.__file__)).parent
    members = {"__main__.py": _MAIN.format(name=package.__name__), "sglwheel/__init__.py": ""}
    for path in sorted(root.rglob("*.py")):
        members[f"sglwheel/{path.relative_to(root.parent).as_posix()}"] = path.read_text("utf-8")
    buffer = io.BytesIO()
    buffer.write(b"#!/usr/bin/env python3\n")
    with zipfile.ZipFile(buffer, "a") as archive:
        for member, text in members.items():
            archive.writestr(zipfile.ZipInfo(member, (1980, 1, 1, 0, 0, 0)), text)
    return buffer.getvalue()
