"""Smoke-test beside a torch that is installed: on a node, which has a GPU, no compilers and no index."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from sglwheel import process
from sglwheel.errors import SmokeError
from sglwheel.files import Layout
from sglwheel.inspect import Inspection
from sglwheel.smoke.report import Check
from sglwheel.toolchain import driverstub, packages, uvtool
from sglwheel.toolchain.borrowed import Borrowed
from sglwheel.toolchain.torchpin import InstalledTorch


@dataclass(frozen=True)
class Beside:
    """Somebody's environment: its torch is seen from a fresh one, and nothing of it is changed."""

    lent: Borrowed
    stub: Path | None = None

    @classmethod
    def of(cls, lent: Borrowed, layout: Layout) -> Self:
        """With a driver stub, where an earlier build left one: for hosts without a driver."""
        return cls(lent, driverstub.kept(layout))

    @property
    def python(self) -> Path:
        return self.lent.interpreter.path

    @property
    def torch(self) -> InstalledTorch:
        return self.lent.torch

    @property
    def lock(self) -> packages.Lock:
        return self.lent.lock

    @property
    def sources(self) -> tuple[str, ...]:
        """What uv is told of indexes: to ask none."""
        return ("--no-index", "--offline")

    def install(self, wheel: Path, venv: Path, log: Path) -> str | None:
        """Make `venv` with the wheel in it; what uv had against the wheel. Asks no index."""
        self.lent.fill(venv)
        argv: list[process.Argument] = [uvtool.uv_binary(), "pip", "install", "--no-config", "--no-cache"]
        argv += ["--python", venv / "bin" / "python", "--no-deps", *self.sources, wheel]
        done = process.stream(argv, failure=SmokeError, log=log, env=uvtool.environment())
        return f"uv refuses it: {done.stdout.strip()[-1500:]}" if done.returncode else None

    def judge(self, facts: Inspection) -> Check:
        """Whether METADATA asks for this torch: uv sees only the new environment, which has none."""
        wrong = [each.detail for each in facts.findings if each.rule == "requires-torch"]
        return Check(
            "requires",
            "failed" if wrong else "passed",
            "; ".join(wrong) or ", ".join(facts.wheel.requires) or "nothing",
        )
