"""What admission is worth: fake compilers with the real table, and the policy played through."""

from __future__ import annotations

from collections.abc import Iterator

from sglwheel import console
from sglwheel.bench import Ratio, Setting, fakes
from sglwheel.build.costs import Cost
from sglwheel.build.simulation import Job, Profile, in_order, play

_PROFILE: Profile = ((0.0, 0.35), (0.3, 0.6), (0.5, 0.85), (0.65, 1.0))  # as data/fakecc.py takes its memory


def scaled(setting: Setting) -> Iterator[Ratio]:
    """Against every fixed `-j` from 2 on, in twice the memory of the largest unit.

    The best `-j` is found in one round, which is to its advantage; then both are measured again.
    """
    units = fakes.table(memory=setting.memory, time=setting.time)
    limit = 2 * max(unit.peak for unit in units)
    console.say(
        f"scaled: {len(units)} fake compilers 1:{setting.memory:g} in {console.format_bytes(limit)}, seconds"
        f" 1:{setting.time:g}, {setting.slots} slots; over the limit kills {fakes.enforcement()}"
    )
    where = setting.scratch / "scaled"
    survived: dict[int, float] = {}
    widest = None
    for width in range(setting.slots, 1, -1):
        ran = fakes.fixed(units, where, width=width, limit=limit)
        widest = widest or ran
        console.detail(f"-j{width}: {_words(ran)}")
        if not ran.failed and not ran.killed:
            survived[width] = ran.seconds
    best = min(survived, key=lambda width: survived[width])
    ratios, kills, requeued = [], 0, 0
    for _ in range(setting.repeat):
        ours = fakes.governed(units, where, slots=setting.slots, limit=limit)
        console.detail(f"governed: {_words(ours)}")
        theirs = fakes.fixed(units, where, width=best, limit=limit)
        console.detail(f"-j{best}: {_words(theirs)}")
        ratios.append(ours.seconds / theirs.seconds)
        kills, requeued = kills + ours.killed + ours.failed, requeued + ours.requeued
    assert widest is not None
    note = f"-j{setting.slots} is {'killed' if widest.killed else 'NOT killed'}; {requeued} requeued"
    yield Ratio(f"wall, governed / best fixed -j that survives (-j{best})", ratios, 1.05, note=note)
    yield Ratio("compilers killed while governed", [float(kills)], 0.0)


def sixteen(setting: Setting) -> Iterator[Ratio]:
    """16 slots and memory for all: wall against what no schedule can beat.

    The interpreters of launchers and fakes start at full size on however few cores there are (a hundred of
    them take two cores 2 to 3 s), so time is scaled less than elsewhere. Plain ninja's order never changes:
    it runs once.
    """
    units = fakes.table(memory=setting.memory * 4, time=setting.time / 4)
    bound = fakes.bound(units, 16)
    console.say(
        f"sixteen: {len(units)} fake compilers 1:{setting.memory * 4:g}, seconds 1:{setting.time / 4:g},"
        f" bound {bound:.1f} s"
    )
    ours = []
    for _ in range(setting.repeat):
        ran = fakes.governed(units, setting.scratch / "sixteen", slots=16, limit=None)
        ours.append(ran.seconds / bound)
        console.detail(f"governed: {_words(ran)}")
    ran = fakes.fixed(units, setting.scratch / "sixteen", width=16, limit=None)
    console.detail(f"-j16: {_words(ran)}")
    yield Ratio("wall, governed / max(CPU / 16, longest unit)", ours, 1.10)
    yield Ratio("wall, plain ninja -j16 / the same bound", [ran.seconds / bound])


def simulated(setting: Setting) -> Iterator[Ratio]:
    """The same comparisons without processes, at full size."""
    units = fakes.table(memory=1, time=1)
    jobs = [Job(Cost(unit.seconds, unit.peak), profile=_PROFILE) for unit in units]
    largest = max(unit.peak for unit in units)
    for slots, room in ((2, 20 << 30), (8, 2 * largest), (16, 60 << 30), (16, 1 << 60)):
        ours = play(jobs, room=room, slots=slots)
        fixed = [
            played.seconds
            for width in range(1, slots + 1)
            if (played := play(jobs, room=room, slots=width, choose=in_order, evict=False)).over <= 0
        ]
        area = sum(unit.seconds * unit.peak for unit in units) / room
        bound = max(fakes.bound(units, slots), area)
        size = "any memory" if room == 1 << 60 else console.format_bytes(room)
        name = f"simulated, {slots} slots, {size}"
        yield Ratio(f"{name}: governed / best fixed -j", [ours.seconds / min(fixed)], 1.05)
        yield Ratio(f"{name}: governed / bound of cores and memory", [ours.seconds / bound])


def _words(ran: fakes.Ran) -> str:
    end = "failed" if ran.failed else "ended"
    words = f"{end} after {ran.seconds:.1f} s"
    if ran.killed:
        words += f", {ran.killed} killed"
    if ran.requeued:
        words += f", {ran.requeued} requeued"
    return words
