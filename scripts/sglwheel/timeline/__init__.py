"""Where a build's time went: its recording as lines, as a trace for Perfetto, and as a page to look at."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sglwheel import console
from sglwheel.build import happened, recording_path
from sglwheel.build.happened import History, short_name
from sglwheel.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from sglwheel.files import Layout


@dataclass(frozen=True)
class Timeline:
    """One tree's history; `tree` is the directory's name, with the beginning of the fingerprint in it."""

    recipe: str
    tree: str
    history: History

    def to_json(self) -> dict[str, Any]:
        """For scripts."""
        return {"recipe": self.recipe, "tree": self.tree, **self.history.to_json()}

    def trace(self) -> dict[str, Any]:
        """The Trace Event Format, which https://ui.perfetto.dev and chrome://tracing open; microseconds."""
        events: list[dict[str, Any]] = [
            {"name": "process_name", "ph": "M", "pid": 1, "args": {"name": f"{self.recipe} {self.tree}"}}
        ]
        for lane in sorted(set(self.history.lanes())):
            name = {"name": f"slot {lane + 1}"}
            events.append({"name": "thread_name", "ph": "M", "pid": 1, "tid": lane + 1, "args": name})
        for item, lane in zip(self.history.compiles, self.history.lanes(), strict=True):
            events.append(
                {
                    "name": short_name(item.unit),
                    "cat": item.outcome,
                    "ph": "X",
                    "pid": 1,
                    "tid": lane + 1,
                    "ts": round(item.start * 1e6),
                    "dur": round(item.seconds * 1e6),
                    "args": {"cpu_seconds": item.cpu, "peak_bytes": item.peak, "cached": item.cached},
                }
            )
        events += [
            {"name": "memory", "ph": "C", "pid": 1, "ts": round(at * 1e6), "args": {"bytes": resident}}
            for at, resident in self.history.samples
        ]
        return {"traceEvents": events, "displayTimeUnit": "ms"}

    def lines(self, *, slowest: int = 10) -> Iterator[str]:
        """What a terminal shows."""
        yield f"{self.recipe} {self.tree}: {console.counted(len(self.history.sessions), 'run')}"
        yield from happened.summary(self.history, slowest=slowest)


def load(layout: Layout, recipe: str, tree: str | None = None) -> Timeline:
    """The recording of `tree` (a name, or the beginning of one), or of the one that was built last.

    Raises UsageError when nothing was recorded.
    """
    logs = layout.work / recipe / "logs"
    wanted = f"build-{(tree or '').removeprefix('build-')}"
    found = sorted(
        (path for path in _recordings(logs) if path.stem.startswith(wanted)),
        key=lambda path: path.stat().st_mtime_ns,
    )
    if not found:
        names = ", ".join(path.stem for path in _recordings(logs))
        raise UsageError(
            f"no recording of a build of {recipe}" + (f" named {tree}" if tree else ""),
            where={"directory": layout.relative(logs), **({"there are": names} if names else {})},
            next=f"sglwheel build {recipe}",
        )
    history = happened.read(found[-1])
    if not history.compiles:
        console.warn(f"{layout.relative(found[-1])} holds no compile: everything was there already")
    return Timeline(recipe, found[-1].stem, history)


def _recordings(logs: Path) -> list[Path]:
    return sorted(logs.glob(f"build-*{recording_path(logs / 'build-x.log').suffix}"))
