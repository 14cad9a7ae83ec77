"""Compile the patched tree into a wheel: configure, prove, compile; resumable, never twice."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sglwheel import console, files, process, series, source
from sglwheel.build import cacheledger, cachewatch, configuring, fingerprint, happened
from sglwheel.build.admission import Governor
from sglwheel.build.budget import Allowance, Budget
from sglwheel.build.buildtree import BuildTree, Result
from sglwheel.build.built import BuiltWheel
from sglwheel.build.costs import Costs, too_large
from sglwheel.build.diagnosis import compile_error, exceeds_host
from sglwheel.build.forecast import Forecast
from sglwheel.build.invocation import Invocation
from sglwheel.build.live import Live
from sglwheel.build.progress import Transcript
from sglwheel.build.recording import Recording
from sglwheel.build.units import State
from sglwheel.errors import BuildError, Interrupted
from sglwheel.patching import proofs

if TYPE_CHECKING:
    from sglwheel.files import Layout
    from sglwheel.patching import PatchedTree
    from sglwheel.recipe import KernelRecipe
    from sglwheel.source import Dependencies
    from sglwheel.toolchain import BuildEnv

__all__ = ["BuiltWheel", "build", "configure", "recording_path"]

# What a waiting launcher has for itself (two interpreters and ccache), measured with CPython 3.11 and 3.13;
# all together get this part of the memory, so that the governor can choose among as many units as possible.
_LAUNCHER_BYTES = 12 << 20
_LAUNCHERS_SHARE = 50
_LAUNCHERS_MOST = 512


def build(
    recipe: KernelRecipe,
    patched: PatchedTree,
    dependencies: Dependencies,
    env: BuildEnv,
    layout: Layout,
    *,
    date: datetime,
    allowance: Allowance | None = None,
    cached: bool = True,
) -> BuiltWheel:
    """Build the raw wheel, or return the one that a finished tree holds.

    `date` is the upstream commit's: SOURCE_DATE_EPOCH. `allowance` is what the user lets it take; the host's
    own limits hold in any case. Without `cached` every unit is compiled, whatever a compiler cache has.
    Raises BuildError and Interrupted, and PatchError for a patch that proves
    nothing; the tree stays and the next run continues.
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
            budget = (allowance or Allowance()).budget()
            flavour = fingerprint.flavour(inputs)
            run = _Run(recipe, patched, dependencies, env, layout, tree, log, epoch, budget, flavour, cached)
            result = replace(run(), packing=packing)
            tree.finish(result)
    return BuiltWheel.of(tree, result, fingerprint=digest, log=log, reused=reused)


def configure(
    recipe: KernelRecipe,
    patched: PatchedTree,
    dependencies: Dependencies,
    env: BuildEnv,
    layout: Layout,
    *,
    date: datetime,
) -> Path:
    """Configure a tree and compile nothing: CMake's `compile_commands.json`, which says what would run.

    Raises BuildError.
    """
    inputs = fingerprint.inputs(recipe, patched, dependencies, env)
    tree = BuildTree(layout.work / recipe.id / f"build-{fingerprint.digest(inputs)[:12]}")
    log = layout.work / recipe.id / "logs" / f"{tree.path.name}.log"
    with files.locked(tree.lock, failure=BuildError, what=f"build tree {layout.relative(tree.path)}"):
        epoch = int(date.timestamp())
        budget = Allowance().budget()
        _Run(recipe, patched, dependencies, env, layout, tree, log, epoch, budget, "").prepare()
    return tree.cmake / "compile_commands.json"


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
        recipe: KernelRecipe,
        patched: PatchedTree,
        dependencies: Dependencies,
        env: BuildEnv,
        layout: Layout,
        tree: BuildTree,
        log: Path,
        epoch: int,
        budget: Budget,
        flavour: str,
        cached: bool = True,
    ) -> None:
        self.recipe, self.patched, self.dependencies = recipe, patched, dependencies
        self.env, self.layout, self.tree, self.log = env, layout, tree, log
        self.budget, self.cached = budget, cached
        self.invocation = Invocation(recipe, env, tree, epoch)
        self.history = tree.path.parent / "units.jsonl"
        self.costs = Costs(self.history, flavour=flavour)
        self.recording = recording_path(log)

    def __call__(self) -> Result:
        definitions = self.prepare()
        self._prove()
        return self._compile(definitions, self._pending())

    def prepare(self) -> Mapping[str, str]:
        """Copy what is compiled into the tree and configure it; return CMake's definitions."""
        tree = self.tree
        if not tree.source.is_dir():
            # What is recorded there is of a tree that somebody deleted: no part of this one's history.
            self.recording.unlink(missing_ok=True)
        tree.path.mkdir(parents=True, exist_ok=True)
        ended = tree.end_leftovers()
        if ended:
            console.detail(f"ended {ended} processes that an earlier run left behind")
        doubtful = tree.distrust_unsynced()
        if doubtful:
            console.detail(f"this host started again meanwhile: {doubtful} objects are made again")
        tree.copy_source(self.patched.path)
        tree.copy_programs()
        fetched = source.materialize(self.dependencies, tree.dependencies)
        definitions = self.invocation.definitions(fetched)
        configuring.configure(self.invocation, definitions, self.log)
        return definitions

    def _prove(self) -> None:
        """Raise PatchError for an applied patch whose effect the configured tree does not show."""
        if not any(state.commit for state in self.patched.patches):
            return
        stack = series.load(self.layout, self.recipe.source.series, directory=self.recipe.source.directory)
        results = proofs.check_configured(proofs.applied(stack, self.patched), self.tree.cmake, self.recipe)
        proofs.require(results, stack, log=self.log)

    def _pending(self) -> list[str]:
        """Object files that are still to be compiled."""
        # Not a dry run: with CONFIGURE_DEPENDS globs it stops at running CMake again.
        listed = self._ninja("-t", "inputs", "all", what="asking ninja for the units")
        units = [line for line in listed.stdout.splitlines() if line.endswith((".o", ".obj"))]
        return self.tree.missing(units)

    def _compile(self, definitions: Mapping[str, str], units: Sequence[str]) -> Result:
        """Run ninja under the governor; `units` are the object files still to come."""
        tree, budget = self.tree, self.budget
        giants = too_large(units, self.costs, budget.ever())
        if giants:
            raise exceeds_host(giants, budget.ever())
        said = Transcript()
        started, before = time.monotonic(), process.children_cpu()
        shutil.rmtree(tree.raw, ignore_errors=True)
        forecast = Forecast(units, self.costs, slots=budget.slots)
        room = budget.room()
        console.detail(
            f"{console.counted(len(units), 'unit')} to compile,"
            f" about {console.format_seconds(forecast.total_seconds)} of CPU;"
            f" {budget.slots} at a time, in {console.format_bytes(room)} of memory"
        )
        cache = cachewatch.CacheWatch(None)
        if self.cached:
            prefixes = self.invocation.prefixes
            cache = cachewatch.CacheWatch.of(self.recipe, self.layout, tree, self.env, prefixes)

        def follow(line: str) -> None:
            said.feed(line)
            cache.follow()

        wide = max(budget.slots + 16, room // _LAUNCHERS_SHARE // _LAUNCHER_BYTES)
        wide = min(wide, _LAUNCHERS_MOST)
        governor = Governor(
            self.costs,
            budget,
            history=self.history,
            expected=min(wide, len(units)),
            recording=Recording(self.recording),
        )
        with console.live("compile") as show:
            governor.on_tick, cache.on_hit = Live(show, said, forecast), governor.served
            try:
                with governor, cache:
                    done = process.stream(
                        self.invocation.command(tree.raw, definitions),
                        failure=BuildError,
                        log=self.log,
                        env=self.invocation.environment(admission=governor.address, wide=wide)
                        | cache.begin(),
                        on_line=follow,
                    )
            except Interrupted:
                tree.end_leftovers()
                raise
            finally:
                seconds, cpu = time.monotonic() - started, process.children_cpu() - before
                spent = self._account(governor.state, seconds, cpu, said)
        if done.returncode:
            raise compile_error(said, done, self.log, tree, again=governor.state.again)
        for line in happened.summary(happened.read(self.recording)):
            console.detail(line)
        if cache.on:
            self._account_cache(cache)
        wheels = sorted(tree.raw.glob("*.whl"))
        if len(wheels) != 1:
            raise BuildError(
                f"expected one wheel, scikit-build-core made {len(wheels)}",
                where={"directory": str(tree.raw)},
                log=self.log,
            )
        return replace(spent, wheel=wheels[0].name, sha256=files.sha256(wheels[0]))

    def _account_cache(self, cache: cachewatch.CacheWatch) -> None:
        """Say and keep what the compiler cache did, and why units missed."""
        listed = self._ninja("-t", "deps", what="asking ninja for what units are made of").stdout
        report = cacheledger.account(cache, self.recipe.id, listed)
        self.tree.write("cache.json", report.to_json())
        for line in report.render():
            console.detail(line)

    def _ninja(self, *words: str, what: str) -> process.Completed:
        argv: list[process.Argument] = [self.env.bin / "ninja", "-C", self.tree.cmake, *words]
        return process.run(argv, failure=BuildError, env=self.invocation.environment(), what=what)

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


def recording_path(log: Path) -> Path:
    """Where what happened to a tree is kept, beside its log."""
    return log.with_suffix(".jsonl")
