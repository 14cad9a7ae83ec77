"""Prove a release by its own printed line: in a new environment, with the real uv, and torch left alone."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sglwheel import files, process
from sglwheel.errors import WheelhouseError
from sglwheel.files import Layout
from sglwheel.wheelhouse.environment import Environment
from sglwheel.wheelhouse.lines import Lines
from sglwheel.wheelhouse.record import Release


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
            where={**failed, "printed line": self.line, "environment": str(self.environment)},
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
    node = Environment(home)
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
    release: Release, node: Environment, line: str, imports: Sequence[str], variables: Mapping[str, str]
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
