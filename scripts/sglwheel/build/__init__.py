"""Compile the patched tree into a wheel: configure, prove, compile; resumable, never twice."""

from __future__ import annotations

import resource
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sglwheel import console, files, process, series, source
from sglwheel.build import fingerprint, jobs
from sglwheel.build.admission import Governor, State
from sglwheel.build.buildtree import BuildTree, Result
from sglwheel.build.diagnosis import compile_error, configure_error
from sglwheel.build.invocation import Invocation
from sglwheel.build.jobs import Costs
from sglwheel.build.progress import Forecast, Transcript
from sglwheel.errors import BuildError, Interrupted
from sglwheel.patching import proofs

if TYPE_CHECKING:
    from sglwheel.files import Layout
    from sglwheel.patching import PatchedTree
    from sglwheel.recipe import Recipe
    from sglwheel.source import Dependencies
    from sglwheel.toolchain import BuildEnv

_NOTE_SECONDS = 3.0


@dataclass(frozen=True)
class BuiltWheel:
    """The wheel as scikit-build-core made it, and what making it took (all runs of this tree together)."""

    path: Path
    fingerprint: str
    tree: Path
    log: Path
    seconds: float
    cpu_seconds: float
    peak_bytes: int
    steps: int
    reused: bool


def build(
    recipe: Recipe,
    patched: PatchedTree,
    dependencies: Dependencies,
    env: BuildEnv,
    layout: Layout,
    *,
    date: datetime,
    jobs: int | None = None,
) -> BuiltWheel:
    """Build the raw wheel, or return the one that a finished tree holds.

    `date` is the upstream commit's: SOURCE_DATE_EPOCH. `jobs` limits how many compilers run at once (the
    cores, if None); memory limits them in any case. Raises BuildError and Interrupted, and PatchError for a
    patch that proves nothing; the tree stays and the next run continues.
    """
    inputs = fingerprint.inputs(recipe, patched, dependencies, env)
    digest = fingerprint.digest(inputs)
    tree = BuildTree(layout.work / recipe.id / f"build-{digest[:12]}")
    log = layout.work / recipe.id / "logs" / f"{tree.path.name}.log"
    epoch = int(date.timestamp())
    packing = fingerprint.digest({"exclude": list(recipe.excluded), "epoch": epoch})
    with files.locked(tree.lock, failure=BuildError, what=f"build tree {layout.relative(tree.path)}"):
        result = tree.finished(packing)
        reused = result is not None
        if result is None:
            files.cache_directory(layout.work)
            _say_what_changed(tree, inputs)
            tree.write("inputs.json", inputs)
            run = _Run(recipe, patched, dependencies, env, layout, tree, log, epoch, slots=jobs)
            result = replace(run(), packing=packing)
            tree.finish(result)
    return BuiltWheel(
        path=tree.raw / result.wheel,
        fingerprint=digest,
        tree=tree.path,
        log=log,
        seconds=result.seconds,
        cpu_seconds=result.cpu_seconds,
        peak_bytes=result.peak_bytes,
        steps=result.steps,
        reused=reused,
    )


def _say_what_changed(tree: BuildTree, inputs: Mapping[str, Any]) -> None:
    """Say why this is a new tree, compared with the last one of this recipe."""
    before = tree.previous()
    if before is None or tree.path.exists():
        return
    changed = fingerprint.changes(before.read("inputs.json"), inputs)
    if changed:
        console.detail(f"a new tree, as these inputs differ from {before.path.name}: {', '.join(changed)}")


class _Run:
    """One attempt to bring a tree to its wheel."""

    def __init__(
        self,
        recipe: Recipe,
        patched: PatchedTree,
        dependencies: Dependencies,
        env: BuildEnv,
        layout: Layout,
        tree: BuildTree,
        log: Path,
        epoch: int,
        *,
        slots: int | None,
    ) -> None:
        self.recipe, self.patched, self.dependencies = recipe, patched, dependencies
        self.env, self.layout, self.tree, self.log = env, layout, tree, log
        self.slots = slots or jobs.cores()
        self.invocation = Invocation(recipe, env, tree, epoch, self.slots)
        self.history = tree.path.parent / "units.jsonl"

    def __call__(self) -> Result:
        tree = self.tree
        tree.path.mkdir(parents=True, exist_ok=True)
        ended = tree.end_leftovers()
        if ended:
            console.detail(f"ended {ended} processes that an earlier run left behind")
        tree.copy_source(self.patched.path)
        tree.copy_launcher()
        fetched = source.materialize(self.dependencies, tree.dependencies)
        definitions = self.invocation.definitions(fetched)
        self._configure(definitions)
        self._prove()
        return self._compile(definitions, self._pending())

    def _prove(self) -> None:
        """Raise PatchError for an applied patch whose effect the configured tree does not show."""
        if not any(state.commit for state in self.patched.patches):
            return
        stack = series.load(self.layout, self.recipe.source.series, directory=self.recipe.source.directory)
        results = proofs.check_configured(proofs.applied(stack, self.patched), self.tree.cmake, self.recipe)
        proofs.require(results, stack, log=self.log)

    def _configure(self, definitions: Mapping[str, str]) -> None:
        """Configure, unless the tree is configured just so."""
        tree = self.tree
        if tree.read("configured.json") == definitions:
            return
        tree.new_configuration()
        said = Transcript()
        # ninja's dry run and an install of nothing: scikit-build-core configures and compiles nothing.
        only_configure = ("-C", "build.tool-args=-n", "-C", "install.components=none")
        dry = tree.path / "dry"
        argv = self.invocation.command(dry, definitions, *only_configure)
        with console.progress("configure"):
            done = process.stream(
                argv,
                failure=BuildError,
                log=self.log,
                env=self.invocation.environment(),
                on_line=said.feed,
            )
        shutil.rmtree(dry, ignore_errors=True)
        if done.returncode:
            raise configure_error(said, done, self.log, tree)
        tree.write("configured.json", definitions)

    def _pending(self) -> list[str]:
        """Object files that are still to be compiled."""
        # Not a dry run: with CONFIGURE_DEPENDS globs it stops at running CMake again.
        listed = process.run(
            [self.env.bin / "ninja", "-C", self.tree.cmake, "-t", "inputs", "all"],
            failure=BuildError,
            env=self.invocation.environment(),
            what="asking ninja for the units",
        )
        units = [line for line in listed.stdout.splitlines() if line.endswith((".o", ".obj"))]
        return self.tree.missing(units)

    def _compile(self, definitions: Mapping[str, str], units: Sequence[str]) -> Result:
        """Run ninja under the governor; `units` are the object files still to come."""
        tree = self.tree
        costs = Costs(self.history)
        for unit, cost in jobs.too_large(units, costs):
            console.warn(
                f"{unit} is expected to need {console.format_bytes(cost.peak)}, more than this host can give:"
                " it runs alone and may be killed"
            )
        said = Transcript()
        started, cpu = time.monotonic(), _children_cpu()
        shutil.rmtree(tree.raw, ignore_errors=True)
        room = jobs.memory_available() - jobs.reserve()
        forecast = Forecast(units, costs, slots=self.slots, room=room)
        console.detail(
            f"{len(units)} units to compile, about {console.format_seconds(forecast.total_seconds)} of CPU;"
            f" {self.slots} at a time, in {console.format_bytes(room)} of memory"
        )
        governor = Governor(costs, slots=self.slots, history=self.history)
        with console.progress("compile") as bar:
            show = _Show(bar, said, forecast)
            governor.on_tick = show
            try:
                with governor:
                    done = process.stream(
                        self.invocation.command(tree.raw, definitions),
                        failure=BuildError,
                        log=self.log,
                        env=self.invocation.environment(admission=governor.address),
                        on_line=said.feed,
                    )
            except Interrupted:
                tree.end_leftovers()
                raise
            finally:
                spent = self._account(governor.state, time.monotonic() - started, _children_cpu() - cpu, said)
        if done.returncode:
            raise compile_error(said, done, self.log, tree)
        wheels = sorted(tree.raw.glob("*.whl"))
        if len(wheels) != 1:
            raise BuildError(
                f"expected one wheel, scikit-build-core made {len(wheels)}",
                where={"directory": str(tree.raw)},
                log=self.log,
            )
        return replace(spent, wheel=wheels[0].name, sha256=files.sha256(wheels[0]))

    def _account(self, state: State, seconds: float, cpu: float, said: Transcript) -> Result:
        """Add this run's costs to those of the runs before it, in a note that survives an interruption."""
        before = self.tree.read("spent.json")
        # Compilers whose parents were killed are not in our rusage; they are in what the launchers reported.
        cpu = max(cpu, sum(done.cpu for done in state.finished))
        spent = {
            "seconds": float(before.get("seconds", 0.0)) + seconds,
            "cpu_seconds": float(before.get("cpu_seconds", 0.0)) + cpu,
            "peak_bytes": max(int(before.get("peak_bytes", 0)), state.peak),
            "steps": int(before.get("steps", 0)) + said.done,
        }
        self.tree.write("spent.json", spent)
        return Result(
            packing="",
            wheel="",
            sha256="",
            seconds=spent["seconds"],
            cpu_seconds=spent["cpu_seconds"],
            peak_bytes=int(spent["peak_bytes"]),
            steps=int(spent["steps"]),
        )


class _Show:
    """Keep the bar current from the governor's ticks, also while no step ends for minutes."""

    def __init__(self, bar: console.Progress, said: Transcript, forecast: Forecast) -> None:
        self._bar, self._said, self._forecast = bar, said, forecast
        self._noted = float("-inf")
        self._note = ""

    def __call__(self, state: State) -> None:
        now = time.monotonic()
        if now - self._noted >= _NOTE_SECONDS:
            self._noted, self._note = now, self._forecast.note(state)
        if self._said.done < self._said.total or not self._said.total:
            self._bar.update(self._said.done, self._said.total or None, self._note)


def _children_cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
