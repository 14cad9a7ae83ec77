"""A Python environment that is not ours, read from its files."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from packaging.utils import canonicalize_name

from sglwheel import process
from sglwheel.errors import DoctorError, ToolchainError
from sglwheel.inspect import TorchSymbols, symbols

_QUESTION = "import json, sys; print(json.dumps([list(sys.version_info[:2]), sys.executable, sys.path]))"


@dataclass(frozen=True)
class Environment:
    """Where an interpreter looks for packages, and what lies there."""

    python: Path
    version: tuple[int, int]
    path: tuple[Path, ...]

    @classmethod
    def of(cls, where: Path | None) -> Environment:
        """Ask an interpreter, that of a virtual environment, or the first `python3` on PATH.

        Raises DoctorError when there is none, or it does not answer.
        """
        if where is None:
            found = shutil.which("python3")
            if found is None:
                raise DoctorError("no python3 on PATH", next="name the environment: --python VENV")
            where = Path(found)
        python = where / "bin" / "python" if where.is_dir() else where
        if not python.exists():
            raise DoctorError(
                f"no Python there: {where}",
                where={"looked for": str(python)},
                next="name a virtual environment or an interpreter",
            )
        # An empty directory's view: what lies where the tool was started is not the environment's.
        done = process.run(
            [python, "-c", _QUESTION],
            failure=DoctorError,
            cwd=Path("/"),
            env={key: value for key, value in os.environ.items() if key != "PYTHONHOME"},
            timeout=60,
            what=f"asking {python} where it looks for packages",
        )
        try:
            version, executable, path = json.loads(done.stdout)
        except ValueError as error:
            raise DoctorError(f"{python} does not answer like a Python: {done.stdout[:200]}") from error
        return cls(Path(executable), (version[0], version[1]), tuple(Path(entry) for entry in path if entry))

    def distribution(self, name: str) -> metadata.Distribution | None:
        """What is installed under a name."""
        wanted = canonicalize_name(name)
        for found in metadata.distributions(path=[str(entry) for entry in self.path]):
            # A directory without METADATA, of an interrupted uninstall, has no name.
            if canonicalize_name(found.metadata["Name"] or "") == wanted:
                return found
        return None

    def package(self, name: str) -> Path | None:
        """The directory of an importable package."""
        return next((entry / name for entry in self.path if (entry / name).is_dir()), None)

    def torch(self) -> TorchSymbols | None:
        """The installed torch, with every symbol that it exports; a damaged one counts as none."""
        package = self.package("torch")
        if package is None:
            return None
        try:
            return symbols.installed(package)
        except ToolchainError:
            return None
