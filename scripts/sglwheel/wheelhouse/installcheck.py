"""Prove a release by its own printed line: in a new environment, with the real uv, and torch left alone."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import sys
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sglwheel import files, packages, process
from sglwheel.errors import WheelhouseError
from sglwheel.files import Layout
from sglwheel.wheelhouse import nodeprogram
from sglwheel.wheelhouse.lines import Lines
from sglwheel.wheelhouse.record import Release
from sglwheel.wheelhouse.wheelfile import record_of

_INSTALL_PATIENCE_S = 900.0
_IMPORT_PATIENCE_S = 300.0


@dataclass(frozen=True)
class InstallFact:
    """One thing that the check looked at."""

    name: str
    status: Literal["passed", "failed"]
    detail: str = ""


@dataclass(frozen=True)
class InstallReport:
    """What installing a release did to an environment."""

    release: str
    wheel_sha256: str
    line: str
    environment: Path
    checks: tuple[InstallFact, ...]

    @property
    def ok(self) -> bool:
        return all(check.status == "passed" for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        return {
            "release": self.release,
            "wheel_sha256": self.wheel_sha256,
            "line": self.line,
            "ok": self.ok,
            "checks": [vars(check) for check in self.checks],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> InstallReport:
        """Read back what `to_json` wrote; the environment is gone by then."""
        checks = tuple(InstallFact(**check) for check in data["checks"])
        return cls(data["release"], data["wheel_sha256"], data["line"], Path(), checks)

    def demand(self) -> InstallReport:
        """Return itself, or raise WheelhouseError with every check that failed."""
        if self.ok:
            return self
        failed = {check.name: check.detail for check in self.checks if check.status == "failed"}
        raise WheelhouseError(
            f"the printed line does not install {self.release} as it should",
            where={**failed, "line": self.line, "environment": str(self.environment)},
        )


def install_check(
    release: Release,
    layout: Layout,
    *,
    torch: Sequence[str] = (),
    environment: Path | None = None,
    python: str | Path | None = None,
    location: str | None = None,
    imports: Sequence[str] = ("sgl_kernel",),
    variables: Mapping[str, str] | None = None,
    keep: bool = False,
) -> InstallReport:
    """Run the release's printed line in an environment that has its torch, and look at what changed.

    The environment is made new with `torch` (arguments of `uv pip install`, such as a requirement and an
    index), or is the one given, which is used as it is, less the release's own distribution. `location` is
    where the node sees the wheelhouse, if not as a directory here. `variables` reach the import alone (a
    preloaded driver stub).

    Raises WheelhouseError when no environment can be made; a failed check is in the report.
    """
    made = environment is None
    home = environment or layout.work / "install-check" / f"{release.id}-{os.getpid()}"
    node = _Node(home)
    line = Lines(release.record, location or str(release.root)).uv
    try:
        if made:
            node.make(python or release_python(release), torch)
        else:
            node.uv("pip", "uninstall", release.record.name)
        return _check(release, node, line, imports, variables or {})
    finally:
        if made and not keep:
            shutil.rmtree(home, ignore_errors=True)


def release_python(release: Release) -> str:
    """The interpreter to try a wheel with: this one, if its tag fits."""
    tag = release.record.tag.partition("-")[0]
    if tag.startswith("cp3") and "abi3" not in release.record.tag:
        return f"3.{tag.removeprefix('cp3')}"
    return sys.executable


def _check(
    release: Release, node: _Node, line: str, imports: Sequence[str], variables: Mapping[str, str]
) -> InstallReport:
    checks: list[InstallFact] = []

    def judge(name: str, ok: bool, detail: str) -> bool:
        checks.append(InstallFact(name, "passed" if ok else "failed", detail))
        return ok

    before, torch_before = node.packages(), node.contents("torch")
    done = node.shell(line)
    if judge(
        "line",
        done.returncode == 0,
        f"{process.describe_status(done.returncode)}: {done.stderr.strip()[-2000:]}",
    ):
        after = node.packages()
        changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
        judge(
            "only-this-wheel",
            changed == {release.record.project}
            and after.get(release.record.project) == release.record.version,
            ", ".join(f"{name} {before.get(name, '-')} → {after.get(name, '-')}" for name in sorted(changed)),
        )
        published = files.sha256(release.path)
        judge("published-bytes", published == release.sha256, f"sha256 {published}")
        wrong = node.differences(release.path)
        judge(
            "installed-bytes",
            not wrong,
            f"differ from the wheel: {', '.join(wrong[:5])}" if wrong else "as in the wheel",
        )
        for module in imports:
            tried = node.python("-c", f"import {module}", env=variables)
            judge(f"import {module}", tried.returncode == 0, tried.stderr.strip()[-2000:])
        judge("node-check", *node.program(release))
    torch_after = node.contents("torch")
    judge(
        "torch-unchanged",
        bool(torch_before) and torch_before == torch_after,
        f"{len(torch_before)} files of torch {before.get('torch')}" if torch_before else "there is no torch",
    )
    return InstallReport(release.id, release.sha256, line, node.home, tuple(checks))


class _Node:
    """A virtual environment, seen as a node sees its own: through uv and the shell."""

    def __init__(self, home: Path) -> None:
        self.home = home
        uv_directory = Path(packages.uv_binary()).parent
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
            [packages.uv_binary(), *words],
            failure=WheelhouseError,
            env=self.environment,
            timeout=_INSTALL_PATIENCE_S,
            what=f"uv {words[0]}",
            next="the environment for the install check could not be made",
        )

    def shell(self, line: str) -> process.Completed:
        """Run the line as it is printed, in a directory where its by-products may lie."""
        return process.run(
            ["bash", "-c", line],
            failure=WheelhouseError,
            env=self.environment,
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
        archive = self.home / "install-check.pyz"
        archive.write_bytes(nodeprogram.packed())
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
            digest = hashlib.file_digest(path.open("rb"), algorithm).digest()
            if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != value:
                wrong.append(name)
        return wrong
