"""A whole build by ninja alone, against the one under the governor that was recorded here."""

from __future__ import annotations

import os
import re
import shutil
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from sglwheel import console, process
from sglwheel.bench import Ratio, Setting, recordings, trees
from sglwheel.bench.trees import Configured
from sglwheel.bench.upstream import VARIABLE
from sglwheel.build import meter
from sglwheel.build.buildtree import BuildTree
from sglwheel.build.diagnosis import compile_error
from sglwheel.build.progress import NINJA_STATUS, Transcript
from sglwheel.errors import BuildError, UsageError
from sglwheel.files import Layout
from sglwheel.pipeline import Context
from sglwheel.recipe import KernelRecipe
from sglwheel.timeline import Timeline

_LAUNCHER = re.compile(r"^ +LAUNCHER = .*\n", re.MULTILINE)
_STARTS = 5  # a user whose compiler was killed starts ninja again, but not for ever
_LOOK = 0.5  # seconds


@dataclass(frozen=True)
class Ran:
    """What ninja took over all its starts; `peak` is the most that it had in memory at once, in bytes."""

    seconds: float
    cpu: float
    peak: int
    starts: int


def plain(setting: Setting) -> Iterator[Ratio]:
    """Wall of what was built here under the governor, with its limit, over plain `ninja -j` without any.

    The same commands with as many at once, in a tree of their own; neither launcher nor cache is in front.
    Of the real upstream only where `SGLWHEEL_UPSTREAM` is set: it takes as long as building.
    """
    whole = list(_whole(setting))
    if not whole:
        raise UsageError(
            "nothing was built here in one run, with no object from the compiler cache",
            next="SGLWHEEL_COMPILER_CACHE=off sglwheel build <recipe>",
        )
    for recording in whole:
        session = recording.history.sessions[0]
        here = setting.scratch / recording.recipe
        context = _elsewhere(setting, recording, here)
        found = _configured(context, recording)
        slots = session.slots
        console.say(f"{recording.recipe}: plain ninja -j{slots}, without a limit")
        tool, environment = found.env.bin / "ninja", found.env.environment
        ran = ninja(found.tree, tool, environment, slots=slots, log=here / "plain.log")
        shutil.rmtree(here)
        governed = recording.history
        again = f", started {ran.starts} times" if ran.starts > 1 else ""
        note = (
            f"governed {_said(governed.seconds, governed.cpu, governed.peak)}, limit"
            f" {console.format_bytes(session.memory)}, {governed.count('killed')} killed,"
            f" {governed.count('requeued')} started again;"
            f" plain {_said(ran.seconds, ran.cpu, ran.peak)}{again}"
        )
        name = f"wall, governed / plain ninja -j{slots}, {recording.recipe}"
        # A handful of small units shows the launchers' price and no more: no bar for the sample.
        bar = None if context.embedded else 1.0
        yield Ratio(name, [governed.seconds / ran.seconds], bar, note=note)


def ninja(tree: BuildTree, tool: Path, environment: Mapping[str, str], *, slots: int, log: Path) -> Ran:
    """Build a configured tree without what stands in front of its compilers.

    Starts again as a user would when a compiler was killed. Raises BuildError when that does not end it, or a
    compiler failed by itself.
    """
    listed = (tree.cmake / "build.ninja").read_text("utf-8")
    (tree.cmake / "plain.ninja").write_text(_LAUNCHER.sub("", listed), "utf-8")
    argv: list[process.Argument] = [tool, "-C", tree.cmake, "-f", "plain.ninja", "-j", str(slots)]
    environment = {**environment, "NINJA_STATUS": NINJA_STATUS}
    begun, spent = time.monotonic(), process.children_cpu()
    watch = _Watch()
    for start in range(1, _STARTS + 1):
        said = Transcript()
        done = process.stream(
            argv, failure=BuildError, log=log, env=environment, on_line=said.feed, on_start=watch.begin
        )
        watch.end()
        if not done.returncode:
            return Ran(time.monotonic() - begun, process.children_cpu() - spent, watch.peak, start)
        error = compile_error(said, done, log, tree)
        if not said.failures or not all(failure.killed for failure in said.failures):
            raise error
        console.warn(f"plain ninja, start {start} of {_STARTS}: {error.what}")
    raise BuildError(
        f"plain ninja -j{slots} did not end in {_STARTS} starts: {error.what}",
        where={**error.where, "at once": console.format_bytes(watch.peak)},
        next="free memory, or add swap, and start the bench again",
        log=log,
    )


class _Watch:
    """Looks at what a process and all below it have in memory."""

    def __init__(self) -> None:
        self.peak = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, root: int) -> None:
        self._stop.clear()
        self._thread = threading.Thread(target=self._look, args=(root,), daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _look(self, root: int) -> None:
        while not self._stop.wait(_LOOK):
            self.peak = max(self.peak, meter.resident(root))


def _whole(setting: Setting) -> Iterator[Timeline]:
    """What was built here in one run that compiled everything."""
    for found in recordings.built(setting):
        history = found.history
        if len(history.sessions) != 1 or history.hits or not history.count("done"):
            console.say(f"skipped: {found.recipe}: its last build was not one run that compiled everything")
        elif not Context.load(setting.layout, found.recipe).embedded and not os.environ.get(VARIABLE):
            console.say(f"skipped: {found.recipe}: it is the real upstream's; set {VARIABLE}=1")
        else:
            yield found


def _elsewhere(setting: Setting, recording: Timeline, here: Path) -> Context:
    """The recorded recipe in a checkout of its own, where no tree is."""
    for part in ("recipes", "patches"):
        shutil.copytree(getattr(setting.layout, part), here / part)
    # All but the tree is as it was: no torch and no toolkit is fetched again.
    (here / ".cache").symlink_to(setting.layout.cache)
    return Context.load(Layout(here), recording.recipe, setting.options)


def _configured(context: Context, recording: Timeline) -> Configured:
    """The recorded tree again, with nothing compiled."""
    assert isinstance(context.recipe, KernelRecipe)
    found = trees.configured(context, context.recipe, context.series)
    if found.tree.path.name != recording.tree:
        raise UsageError(
            f"{recording.recipe} would be built from other inputs now than it was",
            where={"built": recording.tree, "now": found.tree.path.name},
            next=f"sglwheel build {recording.recipe}, or give the options that it was built with",
        )
    return found


def _said(seconds: float, cpu: float, peak: int) -> str:
    took = console.format_seconds(seconds)
    return f"{took} with {console.format_seconds(cpu)} of CPU and {console.format_bytes(peak)} at once"
