"""What a smoke test found, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Status = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True)
class Check:
    """One thing that was tried. `skipped` says why it proves nothing; it is not `passed`."""

    name: str
    status: Status
    detail: str


@dataclass(frozen=True)
class SmokeReport:
    """What came of smoke-testing one wheel with one torch."""

    wheel_sha256: str
    torch: str
    checks: tuple[Check, ...]
    seconds: float
    log: Path
    gpu: Mapping[str, Any] | None = None
    """What the GPU suite found, where it ran: its whole report."""

    @property
    def ok(self) -> bool:
        """Nothing failed, and something passed."""
        statuses = {check.status for check in self.checks}
        return "failed" not in statuses and "passed" in statuses

    @property
    def gpu_checked(self) -> bool:
        """A GPU took part and agreed."""
        return any(check.name == "gpu" and check.status == "passed" for check in self.checks)

    @classmethod
    def from_json(cls, data: Mapping[str, Any], *, log: Path) -> SmokeReport:
        """Read back what `to_json` wrote. Raises KeyError or TypeError for another form."""
        checks = tuple(Check(**check) for check in data["checks"])
        return cls(data["wheel_sha256"], data["torch"], checks, data["seconds"], log, data.get("gpu"))

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": 1,
            "wheel_sha256": self.wheel_sha256,
            "torch": self.torch,
            "ok": self.ok,
            "gpu_checked": self.gpu_checked,
            "seconds": round(self.seconds, 1),
            "checks": [
                {"name": check.name, "status": check.status, "detail": check.detail} for check in self.checks
            ],
            **({"gpu": dict(self.gpu)} if self.gpu is not None else {}),
        }
