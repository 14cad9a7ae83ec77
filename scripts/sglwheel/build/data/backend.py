"""Call a project's build backend in this interpreter: PEP 517 without isolation, and without uv.

Started as `python -P backend.py <project> <out> <settings.json>`: standard library only.
"""

import importlib
import json
import os
import sys
import tomllib
from pathlib import Path


def main(project: str, out: str, settings: str) -> int:
    """Build the wheel, with the project as current directory as the specification wants it."""
    into = Path(out).absolute()
    into.mkdir(parents=True, exist_ok=True)
    os.chdir(project)
    system = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["build-system"]
    sys.path[:0] = [str(Path(path).absolute()) for path in system.get("backend-path", ())]
    module, _, attributes = system["build-backend"].partition(":")
    backend = importlib.import_module(module)
    for name in filter(None, attributes.split(".")):
        backend = getattr(backend, name)
    backend.build_wheel(str(into), json.loads(settings))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
