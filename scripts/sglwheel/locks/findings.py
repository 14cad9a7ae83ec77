"""What a check of locks finds, and the one error that it makes."""

from __future__ import annotations

from dataclasses import dataclass

from sglwheel.errors import ToolchainError


@dataclass(frozen=True)
class Finding:
    """Something that is not what it should be, and the file that says or holds it."""

    file: str
    what: str


def error(recipe_id: str, findings: tuple[Finding, ...]) -> ToolchainError:
    """One error that names every file."""
    where: dict[str, str] = {}
    for finding in findings:
        where[finding.file] = (
            f"{where[finding.file]}\n{finding.what}" if finding.file in where else finding.what
        )
    return ToolchainError(
        f"the locks of {recipe_id} and what they speak of disagree in {len(findings)} places",
        where=where,
        next=f"restore it from git (delete it under .cache/), or sglwheel lock --upgrade {recipe_id}",
    )
