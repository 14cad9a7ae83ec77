"""What the tool itself costs: beside the compilers, and when there is nothing to do."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from sglwheel import console, process, timeline
from sglwheel.bench import Ratio, Setting
from sglwheel.build.costs import Cost, Costs
from sglwheel.build.happened import Compile
from sglwheel.build.simulation import Job, in_order, play
from sglwheel.errors import SglwheelError, UsageError


def recorded(setting: Setting) -> Iterator[Ratio]:
    """What the recordings of real builds here say: the tool's own CPU, and wall against the bound."""
    for path in sorted(setting.layout.recipes.glob("*.toml")):
        if path.name.startswith("pylock."):
            continue
        try:
            found = timeline.load(setting.layout, path.stem)
        except UsageError:
            continue  # not built here
        history = found.history
        compiled = [item for item in history.compiles if item.outcome == "done" and not item.cached]
        if not compiled or history.cpu <= 0:
            continue
        units = f"{len(compiled)} compiled, {console.format_seconds(history.cpu)} of CPU"
        if history.overhead:
            share = 100 * history.overhead / history.cpu
            yield Ratio(f"overhead / compilers' CPU, {found.recipe}", [share], 2.0, "%", units)
        if len(history.sessions) == 1:
            slots = history.sessions[0].slots
            bound = max(history.cpu / slots, max(item.cpu for item in compiled))
            wall = max(item.end for item in compiled) - min(item.start for item in compiled)
            name = f"wall / max(CPU / {slots}, longest unit), {found.recipe}"
            yield Ratio(name, [wall / bound], 1.10 if slots == 16 else None, note=units)
            yield from _against_plain(found.recipe, compiled, slots, wall)


def _against_plain(recipe: str, compiled: Sequence[Compile], slots: int, wall: float) -> Iterator[Ratio]:
    """Against `ninja -j` of as many slots: its order, which never changes, with the seconds that these took.

    Played through, so neighbours that slow one of two runs cannot decide it; and with all memory there is.
    """
    order = {stem: index for index, stem in enumerate(Costs().stems)}
    stems = [item.unit.rsplit("/", 1)[-1].split(".", 1)[0] for item in compiled]
    if not set(stems) <= order.keys():
        return  # a wheel whose order is not known
    jobs = [
        Job(Cost(item.seconds, item.peak))
        for _, item in sorted(zip(stems, compiled, strict=True), key=lambda pair: order[pair[0]])
    ]
    plain = play(jobs, room=sys.maxsize, slots=slots, choose=in_order, evict=False)
    took, most = console.format_seconds(plain.seconds), console.format_bytes(plain.most)
    note = f"simulated: {took}, up to {most} at once"
    name = f"wall / unlimited ninja -j{slots}, played through, {recipe}"
    yield Ratio(name, [wall / plain.seconds], note=note)


def noop(setting: Setting) -> Iterator[Ratio]:
    """A second build of the sample, and of what else is built here, by the tool and by its nox session."""
    tool = [str(Path(sys.executable).with_name("sglwheel"))]
    names = ["sample", *(["cu130"] if (setting.layout.work / "cu130").is_dir() else [])]
    nox = shutil.which("nox")
    for name in names:
        if name == "sample":
            console.detail("building the sample, so that there is nothing to do")
            _timed(setting, [*tool, "build", name])
        yield Ratio(f"no-op of {name}, tool", _several(setting, [*tool, "build", name]), 1.0, " s")
        if nox is not None:
            argv = [nox, "-s", f"build-{name}"]
            yield Ratio(f"no-op of {name}, nox session", _several(setting, argv), 3.0, " s")


def _several(setting: Setting, argv: Sequence[str]) -> list[float]:
    return [_timed(setting, argv) for _ in range(setting.repeat)]


def _timed(setting: Setting, argv: Sequence[str]) -> float:
    started = time.monotonic()
    process.run(argv, failure=SglwheelError, cwd=Path(setting.layout.root))
    return time.monotonic() - started
