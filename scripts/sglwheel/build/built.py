"""The raw wheel of a finished tree, as later stages take it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sglwheel.build.buildtree import BuildTree, Result


@dataclass(frozen=True)
class BuiltWheel:
    """The wheel as its backend made it, and what making it took (all runs of this tree together)."""

    path: Path
    fingerprint: str
    tree: Path
    log: Path
    seconds: float
    cpu_seconds: float
    peak_bytes: int
    steps: int
    reused: bool
    cache: Mapping[str, Any] = field(default_factory=dict)
    """What the compiler cache did in the run that finished the tree."""

    @classmethod
    def of(cls, tree: BuildTree, result: Result, *, fingerprint: str, log: Path, reused: bool) -> BuiltWheel:
        """What a tree that has its `result` holds."""
        return cls(
            path=tree.raw / result.wheel,
            fingerprint=fingerprint,
            tree=tree.path,
            log=log,
            seconds=result.seconds,
            cpu_seconds=result.cpu_seconds,
            peak_bytes=result.peak_bytes,
            steps=result.steps,
            reused=reused,
            cache=tree.read("cache.json"),
        )
