"""The wheelhouse at size: `nox -s bench-wheelhouse -- [index publish verify serve clients publishers]`.

Seconds hold for one machine and moment; a ratio is of one run, turn by turn, against the plainest loop or
server that does the same reading or sending. Ends with 1 when a bar is missed.

The house has 10,000 releases of 512 KiB each (`--releases`, `--kib`): 5.5 GB below `--house`, or in a
temporary directory. A house that is there already is not filled again. On two cores all of it takes about
half an hour, of which five minutes are for filling.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

from filledhouse import bare, fill, index, put
from measuring import Report, machine, seconds, turn_by_turn
from reading import evict, hash_all
from serving import clients, serve

from killedpublishers import publish_and_kill
from sglwheel.wheelhouse import Wheelhouse
from sglwheel.wheelhouse.index import stamp
from sglwheel.wheelhouse.verify import verify

# What the real wheel of SM120 has.
REAL = 4_500_000
ROUNDS = 7
VERIFIED = 3
# Of reading alone: beside wheels of 512 KiB, small files weigh nine times what they weigh beside real ones.
BAR = 1.5


@dataclass(frozen=True)
class World:
    """What the parts share."""

    base: Path
    releases: int
    kib: int
    report: Report

    def filled(self) -> Wheelhouse:
        """A house with so many releases, all of it indexed."""
        house = Wheelhouse(self.base / "wheelhouse")
        known = len(house.ids())
        took = seconds(lambda: fill(self.base, self.releases, self.kib * 1024))
        if known < self.releases:
            what = f"filling: {self.releases - known} wheels of {self.kib} KiB"
            self.report.say(what, f"{took:.0f} s", "not measured, only said")
        # One that was filled before may have been written by other templates.
        if not house.stamp.is_file() or house.stamp.read_text() != stamp() or known < self.releases:
            index(house)
        return house


def from_scratch(world: World) -> None:
    """Derive everything from the releases alone: of a tree that came without it, and where it was deleted."""
    house = world.filled()
    taken = []
    with tempfile.TemporaryDirectory(prefix="bench-aside-", dir=world.base) as aside:
        for number in range(3):
            bare(house, Path(aside, str(number)))
            taken.append(seconds(lambda: index(house)))
    count = len(house.ids())
    world.report.times(f"index of {count} releases, from scratch", taken, bar=20)
    bare(house)
    world.report.times("the same, where all of it was just deleted", [seconds(lambda: index(house))])


def one_more(world: World) -> None:
    """Publish a wheel of the real one's size."""
    start = len(world.filled().ids()) + 1
    taken = [seconds(partial(put, world.base, start + number, REAL)) for number in range(ROUNDS)]
    world.report.times(f"publish one more, of {REAL / 1e6} MB", taken, bar=1)


def verifying(world: World) -> None:
    """Look at everything, beside loops that only hash it."""
    house, report = world.filled(), world.report
    everything = [path for path in house.root.rglob("*") if path.is_file() and ".state" not in path.parts]
    # A wheel's other names are the same bytes.
    files = list({path.stat().st_ino: str(path) for path in everything}.values())
    total = sum(Path(path).stat().st_size for path in files)
    wrong = 0

    def look() -> None:
        nonlocal wrong
        wrong += len(verify(house).findings)

    runs: dict[str, Callable[[], object]] = {
        "verify": look,
        "one": lambda: hash_all(files, 1),
        "four": lambda: hash_all(files, 4),
    }
    report.say("to read", f"{total / 1e9:.1f} GB", f"{len(files)} files of {len(house.ids())} releases")
    hash_all(files, 4)
    for state, before in (("from memory", lambda: None), ("from disk", partial(evict, files))):
        taken = turn_by_turn(runs, VERIFIED, before)
        report.times(f"{state}: hashing all of it, a plain loop", taken["one"])
        report.times(f"{state}: the same by four readers", taken["four"])
        mine = report.times(f"{state}: verify", taken["verify"])
        best = min(taken["one"], taken["four"], key=statistics.median)
        report.ratio(f"{state}: verify ÷ the faster of both", taken["verify"], best, bar=BAR)
        each = (mine - statistics.median(best)) / len(house.ids()) * 1000
        report.say("  more than hashing, for each release", f"{each:.2f} ms")
    report.count("findings of verify", wrong, bar=0)


def publishers(world: World) -> None:
    """Eight publishers of 200 wheels each, killed at random."""
    report = world.report
    with tempfile.TemporaryDirectory(prefix="bench-publishers-") as name:
        done = publish_and_kill(Path(name), 8, 200)
        names = {path.name for path in done.house.root.glob("*.whl")}
        report.say("8 publishers of 200 wheels: kills", str(done.kills), f"{done.hits} of them in a copy")
        report.count("wheels that are lost", len(done.names - names), bar=0, detail=f"of {len(done.names)}")
        found = [finding for finding in verify(done.house).findings if finding.rule != "leftover"]
        report.count("torn wheels, untrue indexes", len(found), bar=0, detail=f"{found[:2]}" if found else "")
        verify(done.house, repair=True)
        report.count("findings after a repair", len(verify(done.house).findings), bar=0)


PARTS: dict[str, Callable[[World], None]] = {
    "index": from_scratch,
    "publish": one_more,
    "verify": verifying,
    "serve": lambda world: serve(world.filled(), world.report),
    "clients": lambda world: clients(world.filled(), world.report),
    "publishers": publishers,
}


@contextlib.contextmanager
def _place(given: Path | None) -> Iterator[Path]:
    if given is not None:
        yield given.absolute()
        return
    with tempfile.TemporaryDirectory(prefix="bench-wheelhouse-") as name:
        yield Path(name)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], default=[])
    parser.add_argument("--releases", type=int, default=10_000)
    parser.add_argument("--kib", type=int, default=512, help="of each wheel")
    parser.add_argument("--house", type=Path, help="fill it here, and leave it")
    options = parser.parse_args()
    report = Report()
    print(machine(), flush=True)

    def run() -> None:
        with _place(options.house) as base:
            for name in options.parts or PARTS:
                PARTS[name](World(base, options.releases, options.kib, report))

    report.say("all of this", f"{seconds(run) / 60:.0f} min")
    for missed in report.missed:
        print(f"missed: {missed}")
    return bool(report.missed)


if __name__ == "__main__":
    sys.exit(main())
