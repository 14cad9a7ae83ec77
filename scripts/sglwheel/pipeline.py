"""The order of the stages, and what a whole run has to say at its end."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from sglwheel import (
    bundle,
    console,
    files,
    kinds,
    patching,
    recipe,
    reproduce,
    sample,
    series,
    source,
    toolchain,
    wheelhouse,
)
from sglwheel.build.budget import Allowance
from sglwheel.bundle import Bundle
from sglwheel.errors import BuildError, PatchError, SourceError, ToolchainError, UsageError, WheelhouseError
from sglwheel.files import Layout
from sglwheel.locks import torchchoice
from sglwheel.mirrors import Mirrors
from sglwheel.recipe import KernelRecipe, Recipe
from sglwheel.release import handover, releasing
from sglwheel.release.releasing import stage
from sglwheel.series.predicates import Facts
from sglwheel.smoke import Environment
from sglwheel.toolchain import borrowed, combination, torchpin
from sglwheel.toolchain.borrowed import Borrowed

_SAMPLE = "https://sample.invalid/"


@dataclass(frozen=True)
class Options:
    """What the command line changes about a recipe, for one run.

    `torch_from` is an environment whose torch is used; `until` "finish" publishes nothing. `offline` asks
    nobody, `bundle` is where `vendor` put what is needed. `allowance` limits what compiling takes.
    `reproduce` compiles twice and compares.
    """

    torch: str | None = None
    overrides: Mapping[str, str] = field(default_factory=dict)
    allowance: Allowance = field(default_factory=Allowance)
    all_patches: bool = False
    torch_from: Path | None = None
    provider: Literal["pypi", "system"] | None = None
    until: Literal["finish"] | None = None
    offline: bool = False
    bundle: Path | None = None
    reproduce: bool = False


@dataclass(frozen=True)
class Done:
    """A finished run: what a person reads and what a script reads; no release when it was to stop before."""

    release: wheelhouse.Release | None
    summary: tuple[str, ...]
    facts: Mapping[str, Any]
    watched: tuple[Path, ...] = ()
    """What this run left and the next one needs; while it is there unchanged, nothing is to be done."""


@dataclass(frozen=True)
class Context:
    """A recipe with everything that is known before anything is built."""

    layout: Layout
    recipe: Recipe
    options: Options
    mirrors: Mirrors
    lent: Borrowed | None = None

    @classmethod
    def load(cls, layout: Layout, name: str, options: Options | None = None) -> Context:
        """Read recipe, mirrors and the lent environment.

        Raises UsageError, ToolchainError for a lent torch that is not the one wanted and for a combination
        that cannot work, and SourceError when the sample cannot be replayed.
        """
        options = options or Options()
        loaded = recipe.load(layout, name)
        lent = borrowed.read(options.torch_from) if options.torch_from is not None else None
        mirrors = Mirrors.load(layout)
        if options.torch is not None:
            loaded = torchchoice.apply(loaded, options.torch, mirrors)
        elif lent is not None:
            loaded = loaded.with_torch(str(lent.torch.version))
        if options.provider is not None:
            loaded = loaded.with_provider(options.provider)
        if isinstance(loaded, KernelRecipe):
            combination.require(loaded, torchpin.pin(loaded))
        if lent is not None:
            # Before anything is fetched for a torch that is not there.
            torchpin.verify(lent.torch, torchpin.pin(loaded))
        if loaded.source.git.startswith(_SAMPLE) and options.bundle is None:
            mirrors = mirrors.with_entries(_replay_sample(layout))
        mirrors = _without_network(layout, mirrors, options)
        return cls(layout, loaded, options, mirrors, lent)

    @property
    def embedded(self) -> bool:
        """Whether the upstream lies inside this checkout."""
        return self.recipe.source.git.startswith(_SAMPLE)

    @cached_property
    def kind(self) -> kinds.Kind:
        """What this kind of recipe does in its own way."""
        return kinds.of(
            self.recipe,
            self.layout,
            self.mirrors,
            lent=self.lent,
            overrides=self.options.overrides,
            allowance=self.options.allowance,
        )

    @cached_property
    def checkout(self) -> source.Checkout:
        return source.checkout(self.recipe, self.layout, self.mirrors)

    @cached_property
    def series(self) -> series.Series:
        return series.load(self.layout, self.recipe.source.series, directory=self.recipe.source.directory)

    @cached_property
    def facts(self) -> Facts:
        versions = self.kind.versions
        return Facts.of(
            self.recipe,
            cmake=versions.cmake,
            cuda=versions.cuda,
            torch=versions.torch,
            contains=lambda commit: source.contains(self.checkout, commit, self.layout, self.mirrors),
        )

    def patch(self) -> patching.PatchedTree:
        """Apply what is needed. Raises PatchError."""
        return patching.apply(
            self.checkout, self.series, self.facts, self.layout, self.recipe, all=self.options.all_patches
        )

    def states(self) -> tuple[tuple[patching.PatchState, ...], tuple[PatchError, ...]]:
        """The state of every patch, also past one that fails."""
        return patching.status(
            self.checkout, self.series, self.facts, self.layout, self.recipe, all=self.options.all_patches
        )

    def prepare(self) -> Environment:
        """Make the build environment. Raises ToolchainError."""
        return self.kind.prepare()


def run(layout: Layout, name: str, options: Options) -> Done:
    """Take a recipe all the way to an installed wheel, or as far as `options.until` says.

    Stages whose inputs did not change are not repeated. Raises the failing stage's error; what was published
    before stays as it is.
    """
    context = Context.load(layout, name, options)
    made = make(context)
    told = made.facts()
    if options.reproduce:
        with stage("build again, elsewhere", BuildError):
            told["reproduced"] = vars(_again(made, context))
    if options.until == "finish":
        notes = handover.write(made.finished.path, made.who())
        facts = {"path": str(made.finished.path), "notes": str(notes), **told}
        return Done(None, (str(made.finished.path),), facts, (*made.left(), notes))
    released = releasing.release(made.finished, context.recipe, made.env, layout, made.who())
    return Done(
        released.release,
        released.summary(layout),
        {**released.facts(), **told},
        (*made.left(), layout.wheelhouse),
    )


def publish(layout: Layout, wheel: Path, name: str, options: Options) -> Done:
    """Check and publish a finished wheel that was built elsewhere; it must be what the recipe describes.

    Raises WheelhouseError for a wheel that is not ours or of other inputs, and the failing stage's error.
    """
    context = Context.load(layout, name, options)
    with stage(f"take over {wheel.name}", WheelhouseError):
        finished = handover.read(wheel, context.recipe)
        for mark in finished.marked:
            console.warn(mark)
    with stage(context.kind.title, ToolchainError):
        env = context.prepare()
    released = releasing.release(finished, context.recipe, env, layout, handover.notes(wheel))
    return Done(released.release, released.summary(layout), dict(released.facts()))


def make(context: Context) -> kinds.Made:
    """Fetch, patch, build and finish. Raises the failing stage's error."""
    target = context.recipe
    # The series is read first: a malformed patch should not cost a download.
    with stage(f"series {target.source.series}", PatchError):
        console.detail(console.counted(len(context.series.patches), "patch", "patches"))
    with stage(f"source {target.source.git} at {target.source.commit}", SourceError):
        checkout = context.checkout
        kinds.say_fetched(checkout.bytes_fetched)
    with stage("patch", PatchError):
        patched = context.patch()
        for line in describe_patches(patched.patches):
            console.detail(line)
    return context.kind.make(checkout, patched)


def _again(made: kinds.Made, context: Context) -> reproduce.Reproduction:
    """Compile a second time. Raises BuildError when the wheels differ, UsageError where nothing compiles."""
    if not isinstance(context.recipe, KernelRecipe) or not isinstance(made.env, toolchain.BuildEnv):
        raise UsageError(f"--reproduce is for recipes that compile, {context.recipe.id} does not")
    done = reproduce.again(
        made.finished,
        context.recipe,
        made.patched,
        made.dependencies,
        made.env,
        made.checkout,
        context.layout,
        allowance=context.options.allowance,
    )
    console.detail(
        f"the same bytes, sha256 {done.sha256}, with another directory, umask, time zone, home and time"
    )
    return done


def describe_patches(states: Sequence[patching.PatchState]) -> list[str]:
    """One aligned line per patch: name, state, why."""
    width = max((len(state.name) for state in states), default=0)
    return [f"{state.name:<{width}}  {state.state:<16} {state.because}".rstrip() for state in states]


def _without_network(layout: Layout, mirrors: Mirrors, options: Options) -> Mirrors:
    """Where things come from when nobody, or only a bundle, may be asked."""
    if options.bundle is not None:
        with stage(f"verify {options.bundle}", SourceError):
            found = Bundle.at(options.bundle, layout.work / "bundles")
            found.verify()
            found.fits(layout)
            found.adopt(layout)
        mirrors = found.mirrors(mirrors)
        if options.offline:
            found.isolate()
    if options.offline:
        bundle.no_network()
        mirrors = mirrors.without_network()
    return mirrors


def _replay_sample(layout: Layout) -> dict[str, Path]:
    """Replay the embedded upstream when it changed; its urls stand for local repositories."""
    directory = layout.recipes / "sample"
    digest = hashlib.sha256()
    for path in sorted(path for path in directory.rglob("*") if path.is_file()):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(directory)}\0{len(content)}\0".encode() + content)
    into = layout.cache / "sample" / digest.hexdigest()[:16]
    done = into / "replayed.json"
    if done.is_file():
        return {url: into / name for url, name in json.loads(done.read_text()).items()}
    files.cache_directory(layout.cache)
    with files.locked(into.with_suffix(".lock"), failure=SourceError, what="the sample upstream"):
        made = sample.replay(directory, into)
        files.write_atomic(done, json.dumps({url: path.name for url, path in made.items()}, indent=1))
    return made
