"""What was looked at on a node, as values, and the two ways to show them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

Status = Literal["passed", "failed", "warning", "unknown"]
_MARKS = {"passed": "ok", "failed": "WRONG", "warning": "!", "unknown": "?"}


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at; `unknown` says why nothing can be said, and is not `passed`."""

    check: str
    status: Status
    detail: str
    remedy: str | None = None


@dataclass(frozen=True)
class Diagnosis:
    """A node, and everything that was found about it."""

    python: str
    torch: str | None
    kernels: str | None
    gpus: tuple[str, ...]
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        return not any(finding.status == "failed" for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        """Everything, in types that JSON has; keys are stable."""
        return {"schema": 1, "role": "node", "ok": self.ok, **asdict(self)}

    def render(self) -> list[str]:
        """The same for people, as lines."""
        lines = [f"python   {self.python}"]
        lines += [f"GPU      {gpu}" for gpu in self.gpus] or ["GPU      none answers (nvidia-smi)"]
        lines += [f"torch    {self.torch or 'none'}", f"kernels  {self.kernels or 'none'}", ""]
        return [*lines, *render(self.findings)]


def render(findings: Sequence[Finding]) -> list[str]:
    """Aligned lines for people; a remedy stands under what it mends."""
    lines: list[str] = []
    width = max((len(finding.check) for finding in findings), default=0)
    for finding in findings:
        lines.append(f"{_MARKS[finding.status]:<5} {finding.check:<{width}}  {finding.detail}")
        if finding.remedy and finding.status != "passed":
            lines.append(f"      {'':<{width}}  → {finding.remedy}")
    return lines
