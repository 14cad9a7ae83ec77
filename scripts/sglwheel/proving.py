"""Show that what a patch proves is false without it: configure the tree before it, and ask the same."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from sglwheel import console, files, source
from sglwheel.build import configuring, fingerprint
from sglwheel.build.buildtree import BuildTree
from sglwheel.build.invocation import Invocation
from sglwheel.errors import BuildError, PatchError, SourceError, UsageError
from sglwheel.files import Layout
from sglwheel.patching import Base, PatchedTree, PatchState, proofs
from sglwheel.patching.proofs import ProofResult
from sglwheel.recipe import KernelRecipe
from sglwheel.series import Patch, Series
from sglwheel.source import Dependencies
from sglwheel.source.fetched import FetchedSource
from sglwheel.toolchain import BuildEnv

# Without its sources a tree cannot be configured, and nothing is known of the proof.
_OPEN = (SourceError, PatchError, UsageError)


def check(
    recipe: KernelRecipe,
    stack: Series,
    patched: PatchedTree,
    env: BuildEnv,
    layout: Layout,
    checkout: Base,
    fetch: Callable[[Path], Dependencies],
) -> tuple[ProofResult, ...]:
    """Every proof that configuring decides, asked in the tree that its patch was applied to.

    `fetch` has what the build of such a tree would fetch, which is more than that of the patched one. What
    cannot be decided has `holds` None and says why. Answers are kept: the same patch in the same toolchain is
    asked once. Raises PatchError for what holds without its patch: it proves nothing.
    """
    results: list[ProofResult] = []
    for patch, state in _asked(stack, patched):
        job = _Job(recipe, patch, state, stack, patched, env, layout, checkout, fetch)
        results += job.known() or job.run()
    failed = [result for result in results if result.holds]
    if failed:
        where = {
            f"patches/{stack.name}/{name}.patch": "\n".join(
                f"`{item.proof}`: {item.detail}" for item in failed if item.patch == name
            )
            for name in dict.fromkeys(item.patch for item in failed)
        }
        raise PatchError(
            "a patch proves nothing: what it should bring about is there without it",
            where=where,
            next="drop it, or correct the Proves trailer: sglwheel patch <recipe> --edit",
        )
    return tuple(results)


def sources(
    recipe: KernelRecipe,
    stack: Series,
    patched: PatchedTree,
    layout: Layout,
    checkout: Base,
    fetch: Callable[[Path], Dependencies],
) -> Iterator[FetchedSource]:
    """What `check` would fetch beside the sources of the patched tree, some of it more than once.

    What cannot be had leaves a proof undecided, here as there; a warning says so.
    """
    for patch, _ in _asked(stack, patched):
        try:
            with proofs.without(patch, stack, patched, checkout, layout, recipe) as path:
                found = fetch(path)
        except _OPEN as error:
            console.warn(f"what only the tree without {patch.name} fetches cannot be had: {error.what}")
        else:
            yield from found.sources


def _asked(stack: Series, patched: PatchedTree) -> Iterator[tuple[Patch, PatchState]]:
    """The patches whose effect shows in a configured tree."""
    states = {state.name: state for state in patched.patches}
    for patch in proofs.applied(stack, patched):
        if any(proof.configured for proof in patch.proves) and not states[patch.name].forced:
            yield patch, states[patch.name]


@dataclass(frozen=True)
class _Job:
    recipe: KernelRecipe
    patch: Patch
    state: PatchState
    stack: Series
    patched: PatchedTree
    env: BuildEnv
    layout: Layout
    checkout: Base
    fetch: Callable[[Path], Dependencies]

    @property
    def _record(self) -> Path:
        facts = {
            # The id of a patch's commit covers everything that came before it.
            "commit": self.state.commit,
            "proofs": [str(proof) for proof in self.patch.proves],
            "toolchain": self.env.identity,
            "architectures": [str(arch) for arch in self.recipe.build.architectures],
            "cmake": {key: fingerprint.cmake_value(value) for key, value in self.recipe.build.cmake.items()},
            "environment": dict(self.recipe.build.environment),
        }
        name = f"{self.patch.name}-{fingerprint.digest(facts)[:12]}.json"
        return self.layout.work / self.recipe.id / "without" / name

    def known(self) -> list[ProofResult]:
        """What an earlier run found, undecided or not: a build with nothing to do asks nobody."""
        try:
            return [ProofResult(**item) for item in json.loads(self._record.read_text("utf-8"))]
        except (OSError, ValueError, TypeError):
            return []

    def run(self) -> list[ProofResult]:
        """Configure without the patch."""
        tree = BuildTree(self.layout.work / self.recipe.id / f"without-{self.patch.name}")
        log = self.layout.work / self.recipe.id / "logs" / f"{tree.path.name}.log"
        with files.locked(tree.lock, failure=PatchError, what=f"the tree without {self.patch.name}"):
            shutil.rmtree(tree.path, ignore_errors=True)
            try:
                found = list(self._ask(tree, log))
            finally:
                shutil.rmtree(tree.path, ignore_errors=True)
        files.write_atomic(self._record, json.dumps([asdict(result) for result in found], indent=1) + "\n")
        return found

    def _ask(self, tree: BuildTree, log: Path) -> Iterator[ProofResult]:
        try:
            with proofs.without(
                self.patch, self.stack, self.patched, self.checkout, self.layout, self.recipe
            ) as path:
                dependencies = self.fetch(path)
                tree.path.mkdir(parents=True)
                tree.copy_source(path)
        except _OPEN as error:
            yield from self._undecided(error.what)
            return
        tree.copy_programs()
        invocation = Invocation(self.recipe, self.env, tree, 0)
        definitions = invocation.definitions(source.materialize(dependencies, tree.dependencies))
        why = ""
        with console.step(f"configure without {self.patch.name}"):
            try:
                configuring.configure(invocation, definitions, log)
            except BuildError as error:
                why = error.what
        for proof in self.patch.proves:
            if proof.kind == "configures":
                yield ProofResult(self.patch.name, str(proof), not why, why or "CMake finished")
            elif proof.configured and why:
                yield ProofResult(self.patch.name, str(proof), None, why)
            elif proof.configured:
                found = proofs.evaluate(self.patch, proof, tree.cmake, self.recipe)
                yield replace(found, detail=found.detail.replace(f"{tree.source}/", ""))

    def _undecided(self, why: str) -> Iterator[ProofResult]:
        for proof in self.patch.proves:
            if proof.configured:
                yield ProofResult(self.patch.name, str(proof), None, why)


def describe(results: tuple[ProofResult, ...]) -> list[str]:
    """One line per proof: what it is without its patch."""
    return [
        f"{item.patch}: without it {item.detail}"
        if item.holds is not None
        else f"{item.patch}: not shown that `{item.proof}` is false without it: {item.detail}"
        for item in results
    ]
