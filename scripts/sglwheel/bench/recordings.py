"""What the recordings of real builds here say, without building anything."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from sglwheel import console, recipe, timeline
from sglwheel.bench import Ratio, Setting
from sglwheel.build.costs import Cost, Costs
from sglwheel.build.happened import Compile
from sglwheel.build.simulation import Job, in_order, play
from sglwheel.errors import UsageError
from sglwheel.timeline import Timeline


def built(setting: Setting) -> Iterator[Timeline]:
    """The last recording of each recipe that was built here; of `setting.recipes` alone where it names some.

    Raises UsageError for one that is named and was never built.
    """
    for name in setting.recipes or recipe.names(setting.layout):
        try:
            yield timeline.load(setting.layout, name)
        except UsageError:
            if setting.recipes:
                raise


def recorded(setting: Setting) -> Iterator[Ratio]:
    """What the recordings of real builds here say: the tool's own CPU, and wall against the bound."""
    for found in built(setting):
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
