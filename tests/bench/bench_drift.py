"""How long drift takes beside plain git, and what it grows with: medians and ratios of one run.

    nox -s bench-drift                         on a generated history, in a minute
    SGLWHEEL_UPSTREAM=1 nox -s bench-drift     on the real one, too: some 11,000 commits

Processor time counts (this process and those that it starts), so that a busy host changes little.
"""

from __future__ import annotations

import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from packaging.version import Version

from patchworld import CMAKE, DIRECTORY, World, simple, with_line
from sglwheel import drift, recipe, series
from sglwheel.drift import Drift
from sglwheel.drift.lineage import Lineage
from sglwheel.errors import SglwheelError
from sglwheel.files import Layout
from sglwheel.git import Git, objects
from sglwheel.mirrors import Mirrors
from sglwheel.patching import trials, worktree
from sglwheel.series.predicates import Facts

FROM, TO = "2025-10-01", "71de97b264b04dcd514cf904003028aefe9775c8"  # v0.5.18, 2026-08-20
RUNS = 5
LISTS = f"{DIRECTORY}/CMakeLists.txt"


@dataclass(frozen=True)
class Cost:
    """Medians over runs, in seconds: of processors, and by the clock."""

    cpu: float
    wall: float

    def __str__(self) -> str:
        return f"{self.cpu:7.2f} CPU-s {self.wall:7.2f} s"


def processor_seconds() -> float:
    mine, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return mine.ru_utime + mine.ru_stime + children.ru_utime + children.ru_stime


def cost(work: Callable[[], object], runs: int = RUNS) -> Cost:
    cpu, wall = [], []
    for _ in range(runs):
        before, began = processor_seconds(), time.monotonic()
        work()
        cpu.append(processor_seconds() - before)
        wall.append(time.monotonic() - began)
    return Cost(statistics.median(cpu), statistics.median(wall))


def plain_loop(git: Git, found: Drift) -> None:
    """`read-tree` and `git apply --cached --3way`: finds no moved file, and stops at none."""
    with tempfile.TemporaryDirectory() as scratch:
        env = {"GIT_INDEX_FILE": str(Path(scratch) / "index")}
        for step in found.history.steps:
            git.run("read-tree", step.commit.id, env=env)
            for patch in found.series.patches:
                git.run("apply", "--cached", "--3way", input=patch.text, env=env, accept=range(256))


def am_loop(git: Git, found: Drift) -> None:
    """`git am -3` of every patch in a worktree, reset for every commit."""
    steps = found.history.steps
    directories = tuple(sorted({step.directory for step in steps if step.directory}))
    with (
        tempfile.TemporaryDirectory() as scratch,
        worktree.Worktree(git, steps[0].commit.id, Path(scratch) / "work", directories) as tree,
    ):
        for step in steps:
            tree.run("reset", "--quiet", "--hard", step.commit.id)
            for patch in found.series.patches:
                worktree.am(tree, patch)
                worktree.abort(tree)


def beside_git(name: str, git: Git, run: Callable[[], Drift], *, runs: int) -> None:
    found = run()
    objects.seed(git, trials.bases(git, found.series))
    commits, steps, patches = (
        len(found.history.line) - 1,
        len(found.history.steps),
        len(found.series.patches),
    )
    print(f"{name}: {commits} commits, {steps} looked at, {patches} patches")
    mine = cost(run)
    print(f"  drift                {mine}")
    for what, loop in (("read-tree + apply -3", plain_loop), ("git am -3", am_loop)):
        other = cost(lambda loop=loop: loop(git, found), runs=runs)  # type: ignore[misc]
        each = other.cpu / steps * 1000
        print(f"  {what:<20} {other}  {each:.0f} ms a commit, {other.cpu / mine.cpu:.0f} times drift")


def generated(root: Path, commits: int, touching: int) -> tuple[World, Callable[[], Drift]]:
    """A history of `commits`, of which `touching` change the patched file, each far from every patch."""
    world = simple(root)
    text = CMAKE
    for number in range(5, 35, 5):
        text = with_line(text, number, f"mine({number})")
        world.make_patch(f"p{number}", {LISTS: text})
    start = world.checkout().commit
    stream = bytearray()
    who = "Up Stream <up@example.invalid> "
    every = commits // touching
    for at in range(1, commits + 1):
        stream += f"commit refs/heads/main\ncommitter {who}{1_780_000_000 + at} +0000\n".encode()
        stream += b"data 2\nc\n"
        if at == 1:
            stream += b"from refs/heads/main^0\n"
        path, content = f"docs/{at % 50}.md", f"{at}\n"
        if at % every == 0:
            path, content = LISTS, with_line(CMAKE, 39, f"line({at})")
        stream += f"M 100644 inline {path}\ndata {len(content)}\n{content}\n".encode()
    Git(world.repository).run("fast-import", "--quiet", "--force", input=bytes(stream))
    stack, target = world.series(), world.recipe(start)
    git = Git(world.repository)
    end = git.resolve("refs/heads/main")
    versions = {name: Version("13") for name in ("cmake", "cuda", "torch")}
    facts = Facts.of(target, **versions, contains=lambda _commit: False)

    def run() -> Drift:
        return drift.run(git, stack, target, facts, start, end, fetch=lambda _ids: None, all=True)

    return world, run


def on_generated() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        world, run = generated(root / "base", 400, 40)
        beside_git("generated", Git(world.repository), run, runs=3)
        base = cost(run)
        for name, commits, touching in (("more", 4000, 40), ("denser", 400, 200)):
            _, other = generated(root / name, commits, touching)
            found = cost(other)
            print(
                f"  {commits / 400:.0f} times the commits, {touching / 40:.0f} times those that touch: "
                f"{found.cpu / base.cpu:.2f} times the time"
            )


def on_upstream() -> None:
    if not os.environ.get("SGLWHEEL_UPSTREAM"):
        print("upstream: skipped: set SGLWHEEL_UPSTREAM=1 (network or SGLWHEEL_MIRRORS)")
        return
    layout = Layout(ROOT)
    target = recipe.load(layout, "cu130")
    stack = series.load(layout, target.source.series, directory=target.source.directory)
    versions = {name: Version("13") for name in ("cmake", "cuda", "torch")}
    facts = Facts.of(target, **versions, contains=lambda _commit: False)
    try:
        lineage = Lineage.open(target, layout, Mirrors.load(layout))
        end = lineage.commit(TO, option="--to")
    except SglwheelError as error:
        print(f"upstream: skipped: {error.what}")
        return

    def run(start: str = FROM) -> Drift:
        first = lineage.commit(start, option="--from", offline=True, tip=end)
        return drift.run(lineage.git, stack, target, facts, first, end, fetch=lineage.fetch, all=True)

    beside_git("upstream", lineage.git, run, runs=1)
    whole = cost(run)
    found = run()
    for start in ("2026-01-01", "2026-05-01"):
        part = run(start)
        less = cost(lambda start=start: run(start))  # type: ignore[misc]
        print(
            f"  from {start}: {len(part.history.line) / len(found.history.line):.2f} times the commits, "
            f"{len(part.history.steps) / len(found.history.steps):.2f} times those that touch: "
            f"{less.cpu / whole.cpu:.2f} times the time"
        )


if __name__ == "__main__":
    on_generated()
    on_upstream()
