"""A virtual environment, seen as a node sees its own: through uv, the shell and its files."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from sglwheel import files, process, programs
from sglwheel.errors import WheelhouseError
from sglwheel.toolchain import uvtool
from sglwheel.wheelhouse.record import Release
from sglwheel.wheelhouse.wheelfile import record_of

_INSTALL_PATIENCE_S = 900.0
_IMPORT_PATIENCE_S = 300.0
_BUILDS_OWN = ("UV_OFFLINE", "UV_NO_INDEX", "UV_FIND_LINKS")


class Environment:
    """Where a release is tried."""

    def __init__(self, home: Path) -> None:
        self.home = home
        uv_directory = Path(uvtool.uv_binary()).parent
        clean = {
            key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "CONDA", "LD_"))
        }
        self.environment = {
            **clean,
            "VIRTUAL_ENV": str(home),
            "PATH": f"{home / 'bin'}{os.pathsep}{uv_directory}{os.pathsep}{clean.get('PATH', os.defpath)}",
        }

    def make(self, python: str | Path, torch: Sequence[str]) -> None:
        self.home.parent.mkdir(parents=True, exist_ok=True)
        self.uv("venv", "--quiet", "--clear", "--python", str(python), str(self.home))
        if torch:
            self.uv("pip", "install", "--quiet", *torch)

    def uv(self, *words: str) -> process.Completed:
        return process.run(
            [uvtool.uv_binary(), *words],
            failure=WheelhouseError,
            env=self.environment,
            timeout=_INSTALL_PATIENCE_S,
            what=f"uv {words[0]}",
            next="the environment for the install check could not be made",
        )

    def shell(self, line: str) -> process.Completed:
        """Run the line as it is printed, in a directory where its by-products may lie."""
        # What a build tells its own uv is nothing that a node has.
        given = {key: value for key, value in self.environment.items() if key not in _BUILDS_OWN}
        return process.run(
            ["bash", "-c", line],
            failure=WheelhouseError,
            env=given,
            cwd=self.home,
            accept=range(-64, 256),
            timeout=_INSTALL_PATIENCE_S,
            what="the printed line",
        )

    def python(self, *words: str, env: Mapping[str, str]) -> process.Completed:
        return process.run(
            [self.home / "bin/python", "-I", *words],
            failure=WheelhouseError,
            env={**self.environment, **env},
            cwd=self.home,
            accept=range(-64, 256),
            timeout=_IMPORT_PATIENCE_S,
            what="import",
        )

    def program(self, release: Release) -> tuple[bool, str]:
        """What the node's own program says of the installed wheel; importing was tried already."""
        archive = self.home / programs.INSTALL_CHECK
        archive.write_bytes(programs.packed(programs.INSTALL_CHECK))
        words = ["after", "--release", release.id, "--wheelhouse", str(release.root), "--no-import", "--json"]
        done = self.python(str(archive), *words, env={})
        try:
            results = json.loads(done.stdout)["results"]
        except (ValueError, KeyError, TypeError):
            return False, done.stderr.strip()[-500:]
        failed = [f"{item['name']}: {item['detail']}" for item in results if item["status"] == "failed"]
        return not failed, "; ".join(failed) or f"{len(results)} checks"

    def packages(self) -> dict[str, str]:
        listed = json.loads(self.uv("pip", "list", "--quiet", "--format", "json").stdout)
        return {item["name"]: item["version"] for item in listed}

    @property
    def site(self) -> Path:
        return next(iter(sorted(self.home.glob("lib/python3*/site-packages"))))

    def contents(self, distribution: str) -> dict[str, str]:
        """Each file of an installed distribution → its hash, less the bytecode that importing writes."""
        records = sorted(self.site.glob(f"{distribution}-*.dist-info/RECORD"))
        names = {
            row.split(",")[0].strip('"') for record in records for row in record.read_text().splitlines()
        }
        paths = {name: self.site / name for name in names if not name.endswith(".pyc")}
        return {name: files.sha256(path) for name, path in sorted(paths.items()) if path.is_file()}

    def differences(self, wheel: Path) -> list[str]:
        """Files that the wheel's RECORD hashes and the environment has otherwise, or not at all."""
        with zipfile.ZipFile(wheel) as archive:
            info = next(name.partition("/")[0] for name in archive.namelist() if ".dist-info/" in name)
            record = record_of(archive, info)
        wrong = []
        for name, said in record.items():
            path = self.site / name
            if not path.is_file():
                wrong.append(f"{name} (missing)")
                continue
            algorithm, _, value = said.partition("=")
            with path.open("rb") as stream:
                digest = hashlib.file_digest(stream, algorithm).digest()
            if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != value:
                wrong.append(name)
        return wrong
