"""The order of the stages, and what a whole run has to say at its end."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from sglwheel import (
    __version__,
    build,
    console,
    files,
    finish,
    inspect,
    patching,
    recipe,
    sample,
    series,
    source,
    toolchain,
    torchpin,
    wheelhouse,
)
from sglwheel import smoke as smoking
from sglwheel.errors import (
    BuildError,
    InspectionError,
    PatchError,
    SglwheelError,
    SmokeError,
    SourceError,
    ToolchainError,
    WheelhouseError,
)
from sglwheel.files import Layout
from sglwheel.inspect import symbols
from sglwheel.mirrors import Mirrors
from sglwheel.predicates import Facts
from sglwheel.recipe import Recipe

_SAMPLE = "https://sample.invalid/"


@dataclass(frozen=True)
class Options:
    """What the command line changes about a recipe, for one run."""

    torch: str | None = None
    overrides: Mapping[str, str] = field(default_factory=dict)
    jobs: int | None = None
    all_patches: bool = False


@dataclass(frozen=True)
class Done:
    """A finished run: what a person reads and what a script reads."""

    release: wheelhouse.Release
    summary: tuple[str, ...]
    facts: Mapping[str, Any]


@dataclass(frozen=True)
class Context:
    """A recipe with everything that is known before anything is built."""

    layout: Layout
    recipe: Recipe
    options: Options
    mirrors: Mirrors

    @classmethod
    def load(cls, layout: Layout, name: str, options: Options | None = None) -> Context:
        """Read recipe and mirrors. Raises UsageError, and SourceError when the sample cannot be replayed."""
        options = options or Options()
        loaded = recipe.load(layout, name)
        if options.torch is not None:
            loaded = loaded.with_torch(options.torch)
        mirrors = Mirrors.load(layout)
        if loaded.source.git.startswith(_SAMPLE):
            mirrors = mirrors.with_entries(_replay_sample(layout))
        return cls(layout, loaded, options, mirrors)

    @cached_property
    def checkout(self) -> source.Checkout:
        return source.checkout(self.recipe, self.layout, self.mirrors)

    @cached_property
    def series(self) -> series.Series:
        return series.load(self.layout, self.recipe.source.series, directory=self.recipe.source.directory)

    @cached_property
    def facts(self) -> Facts:
        versions = toolchain.resolve(self.recipe, torchpin.pin(self.recipe))
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

    def prepare(self) -> toolchain.BuildEnv:
        """Make the build environment. Raises ToolchainError."""
        return toolchain.prepare(self.recipe, torchpin.pin(self.recipe), self.layout, self.mirrors)


def run(layout: Layout, name: str, options: Options) -> Done:
    """Take a recipe all the way to an installed wheel.

    Stages whose inputs did not change are not repeated. Raises the failing stage's error; what was published
    before stays as it is.
    """
    started = time.monotonic()
    context = Context.load(layout, name, options)
    target = context.recipe
    # The series is read first: a malformed patch should not cost a download.
    with _stage(f"series {target.source.series}", PatchError):
        console.detail(f"{len(context.series.patches)} patches")
    with _stage(f"source {target.source.git} at {target.source.commit}", SourceError):
        checkout = context.checkout
        _say_fetched(checkout.bytes_fetched)
    with _stage("patch", PatchError):
        patched = context.patch()
        for line in describe_patches(patched.patches):
            console.detail(line)
    with _stage(f"toolchain: torch {target.torch.version}, CUDA {target.build.cuda_toolkit}", ToolchainError):
        env = context.prepare()
        console.detail(f"torch {env.torch.full_version}, nvcc {env.nvcc_version}, {env.cxx}")
    with _stage("dependencies", SourceError):
        dependencies = source.dependencies(patched, target, layout, context.mirrors, options.overrides)
        _say_fetched(dependencies.bytes_fetched)
    with _stage("build", BuildError):
        built = build.build(target, patched, dependencies, env, layout, date=checkout.date, jobs=options.jobs)
        console.detail(
            f"{layout.relative(built.tree)}: nothing to do"
            if built.reused
            else f"{built.steps} steps, {console.format_seconds(built.cpu_seconds)} of CPU, "
            f"peak {console.format_bytes(built.peak_bytes)} in one process"
        )
    with _stage("finish", BuildError):
        finished = finish.finish(built, target, patched, dependencies, env, checkout, layout)
        console.detail(finished.path.name)
    with _stage("inspect", InspectionError):
        inspection = inspect.inspect(
            finished.path,
            expect=inspect.Expectation.of(target, distribution=finished.name, version=finished.version),
            torch=symbols.installed(env.torch.path),
        )
        judge(inspection, layout)
    with _stage("smoke", SmokeError):
        smoke = smoking.run(finished.path, target, env, layout)
        judge_smoke(smoke)
    with _stage("publish", WheelhouseError):
        release = wheelhouse.publish(
            finished, inspection, smoke, layout, provenance=_who_built(built, checkout, dependencies)
        )
        console.detail(f"{layout.relative(release.path)} ({release.status})")
    with _stage("install check", WheelhouseError):
        check = _install_checked(context, release, env)
        console.detail(f"{len(check.checks)} checks passed")
    seconds = time.monotonic() - started
    return Done(
        release,
        _summary(layout, release, inspection, smoke, seconds),
        {
            "release": release.id,
            "path": str(release.path),
            "status": release.status,
            "install": release.install_line,
            "fingerprint": built.fingerprint,
            "patches": [vars(state) for state in patched.patches],
            "build": {
                "cpu_seconds": round(built.cpu_seconds, 1),
                "seconds": round(built.seconds, 1),
                "peak_bytes": built.peak_bytes,
                "steps": built.steps,
                "reused": built.reused,
            },
            "bytes_fetched": checkout.bytes_fetched + dependencies.bytes_fetched,
            "inspection": inspection.to_json(),
            "smoke": smoke.to_json(),
            "install_check": check.to_json(),
        },
    )


def judge(inspection: inspect.Inspection, layout: Layout) -> None:
    """Say warnings, raise InspectionError for errors: the place where findings become a verdict."""
    for finding in inspection.findings:
        if finding.severity == "warning":
            console.warn(f"{finding.rule}: {finding.detail}" + (f" ({finding.file})" if finding.file else ""))
    errors = [finding for finding in inspection.findings if finding.severity == "error"]
    if errors:
        where: dict[str, str] = {}
        for finding in errors:
            text = finding.detail + (f" [{finding.file}]" if finding.file else "")
            text += f"\n→ {finding.remedy}" if finding.remedy else ""
            where[finding.rule] = f"{where[finding.rule]}\n{text}" if finding.rule in where else text
        raise InspectionError(
            f"{inspection.wheel.path.name} is not what it should be: {len(errors)} findings",
            where=where,
            next=f"sglwheel inspect {layout.relative(inspection.wheel.path)}",
        )


def describe_patches(states: Sequence[patching.PatchState]) -> list[str]:
    """One aligned line per patch: name, state, why."""
    width = max((len(state.name) for state in states), default=0)
    return [f"{state.name:<{width}}  {state.state:<16} {state.because}".rstrip() for state in states]


@contextmanager
def _stage(title: str, failure: type[SglwheelError]) -> Iterator[None]:
    """Narrate a stage, and let what the system refuses (a full disk) end with the stage's own code."""
    with console.step(title):
        try:
            yield
        except OSError as error:
            raise failure(
                f"{title}: {error.strerror or error}",
                where={"file": str(error.filename)} if error.filename else None,
                next="run the same command again: it continues",
            ) from error


def judge_smoke(report: smoking.SmokeReport) -> None:
    """Say every check, raise SmokeError for those that failed."""
    for check in report.checks:
        console.detail(f"{check.status:<8} {check.name}" + (f": {check.detail}" if check.detail else ""))
    failed = {check.name: check.detail for check in report.checks if check.status == "failed"}
    if failed:
        raise SmokeError(f"{len(failed)} smoke checks failed", where=failed)


def install_check(
    context: Context, release: wheelhouse.Release, env: toolchain.BuildEnv
) -> wheelhouse.InstallReport:
    """Run a release's printed line in a new environment. Raises WheelhouseError for what it did wrong."""
    return wheelhouse.install_check(
        release,
        context.layout,
        torch=(f"torch=={env.torch.version}",),
        imports=context.recipe.smoke.imports,
        variables={"LD_PRELOAD": str(env.stub)},
    ).demand()


def _install_checked(
    context: Context, release: wheelhouse.Release, env: toolchain.BuildEnv
) -> wheelhouse.InstallReport:
    """Check once for these bytes, this line and this torch: a wheel that passed does not change."""
    record = context.layout.work / context.recipe.id / "install-checked" / f"{release.sha256}.json"
    key = {"line": release.install_line, "torch": env.torch.full_version}
    if record.is_file():
        known = json.loads(record.read_text())
        if known["key"] == key:
            return wheelhouse.InstallReport.from_json(known["report"])
    report = install_check(context, release, env)
    files.write_atomic(record, json.dumps({"key": key, "report": report.to_json()}, indent=1))
    return report


def _summary(
    layout: Layout,
    release: wheelhouse.Release,
    inspection: inspect.Inspection,
    smoke: smoking.SmokeReport,
    seconds: float,
) -> tuple[str, ...]:
    size = release.path.stat().st_size
    unproven = [f"{check.name} ({check.detail})" for check in smoke.checks if check.status == "skipped"]
    return (
        "",
        f"{release.status}: {layout.relative(release.path)}  {console.format_bytes(size)}, "
        f"{console.format_seconds(seconds)}",
        *(
            f"  {library.path}: {', '.join((*library.sass, *library.ptx)) or 'no GPU code'}"
            for library in inspection.libraries
        ),
        *(f"  not proven: {text}" for text in unproven),
        "install on a node that has its torch:",
        f"  {release.install_line}",
    )


def _who_built(
    built: build.BuiltWheel, checkout: source.Checkout, dependencies: source.Dependencies
) -> dict[str, Any]:
    """What may differ between two builds of the same bytes."""
    return {
        "tool": f"sglwheel {__version__}",
        "built": datetime.now(UTC).isoformat(timespec="seconds"),
        "host": {"system": platform.system(), "machine": platform.machine(), "cpus": os.cpu_count()},
        "cpu_seconds": round(built.cpu_seconds, 1),
        "seconds": round(built.seconds, 1),
        "peak_bytes": built.peak_bytes,
        "bytes_fetched": checkout.bytes_fetched + dependencies.bytes_fetched,
    }


def _say_fetched(count: int) -> None:
    console.detail(f"{console.format_bytes(count)} fetched" if count else "nothing to fetch")


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
