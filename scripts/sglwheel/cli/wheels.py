"""From a recipe to a wheel, and from a wheel to a verdict."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import click

from sglwheel import console, uptodate
from sglwheel.cli.options import (
    as_json,
    failing_as,
    jobs_option,
    memory_option,
    override_option,
    pairs,
    provider_option,
    size,
    torch_from_option,
    torch_option,
)
from sglwheel.errors import (
    BuildError,
    InspectionError,
    SmokeError,
    ToolchainError,
    UsageError,
    WheelhouseError,
)
from sglwheel.files import Layout


@click.command()
@click.argument("name")
@torch_option
@override_option
@jobs_option
@memory_option
@click.option("--reserve", type=size, metavar="SIZE", help="leave so much memory to other work (a twentieth)")
@click.option("--all", "all_patches", is_flag=True, help="apply patches that are not needed, too")
@torch_from_option("build against the torch that is installed there, with the build tools that are")
@provider_option
@click.option(
    "--until",
    type=click.Choice(["finish"]),
    help="stop at the finished wheel and print its path; another host publishes it",
)
@click.option("--offline", is_flag=True, help="ask nobody: only stores, mirrors on this host, and --from")
@click.option(
    "--from",
    "bundle",
    type=click.Path(path_type=Path),
    metavar="BUNDLE",
    help="take everything from what `vendor` made",
)
@click.option("--reproduce", is_flag=True, help="compile twice, in two places, and compare the wheels")
@as_json
@failing_as(BuildError)
def build(
    name: str,
    torch: str | None,
    overrides: tuple[str, ...],
    jobs: int | None,
    memory: int | None,
    reserve: int | None,
    all_patches: bool,
    torch_from: Path | None,
    provider: Literal["system", "pypi"] | None,
    until: Literal["finish"] | None,
    offline: bool,
    bundle: Path | None,
    reproduce: bool,
    as_json: bool,
) -> None:
    """Clone, patch, build, inspect, smoke-test, publish, and install recipe NAME."""
    layout, replaced = Layout.find(), pairs(overrides, "--override")
    watch = None
    if torch_from is None and not reproduce:
        # Another environment is too much to watch.
        choice = {"torch": torch, "all": all_patches, "provider": provider, "until": until}
        watch = uptodate.Watch(layout, name, choice, replaced, bundle)
        note = watch.note()
        if note is not None:
            console.say(f"▸ {name}: nothing changed since {note.when}, nothing to do", style="bold")
            _emit(note.summary, note.facts, as_json)
            return
    from sglwheel import pipeline
    from sglwheel.build.budget import Allowance

    started = time.monotonic()
    allowance = Allowance(jobs, memory, reserve)
    options = pipeline.Options(
        torch,
        replaced,
        allowance,
        all_patches,
        torch_from,
        provider,
        until,
        offline,
        bundle,
        reproduce,
    )
    done = pipeline.run(layout, name, options)
    if watch is not None:
        watch.keep(done.watched, done.summary, done.facts)
    console.say(f"▸ done in {console.format_seconds(time.monotonic() - started)}", style="bold")
    _emit(done.summary, done.facts, as_json)


@click.command()
@click.argument("wheel")
@click.option("--recipe", "name", metavar="ID", required=True, help="the recipe that it was built from")
@torch_option
@as_json
@failing_as(WheelhouseError)
def publish(wheel: str, name: str, torch: str | None, as_json: bool) -> None:
    """Inspect, smoke-test, publish and install WHEEL, a finished one of another host's."""
    from sglwheel import pipeline

    done = pipeline.publish(Layout.find(), wheel_path(wheel), name, pipeline.Options(torch))
    _emit(done.summary, done.facts, as_json)


def _emit(summary: Sequence[str], facts: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        console.emit_json(facts)
    else:
        for line in summary:
            console.emit(line)


@click.command()
@click.argument("wheel")
@click.option("--torch", metavar="VERSION|WHEEL|VENV|SYMBOLS", help="the torch that it shall load beside")
@click.option("--recipe", "name", metavar="ID", help="the recipe that it shall fulfil")
@click.option("--kernels", type=click.IntRange(min=1), help="name so many of the largest kernels")
@as_json
@failing_as(InspectionError)
def inspect(wheel: str, torch: str | None, name: str | None, kernels: int | None, as_json: bool) -> None:
    """Say from the files alone what WHEEL is and why it does or does not fit; nothing is imported."""
    from sglwheel import inspect as inspecting
    from sglwheel import recipe
    from sglwheel.inspect import symbols

    layout = Layout.find()
    expect = inspecting.Expectation.of(recipe.load(layout, name)) if name else None
    try:
        beside = symbols.find(torch, layout) if torch else None
    except ToolchainError as error:
        # The stage that failed is this one.
        raise InspectionError(error.what, where=error.where, next=error.next) from error
    found = inspecting.inspect(
        wheel_path(wheel),
        expect=expect,
        torch=beside,
        kernels=kernels or 0,
    )
    if as_json:
        console.emit_json(found.to_json())
    else:
        for line in found.render():
            console.emit(line)
    if not found.ok:
        errors = sum(one.severity == "error" for one in found.findings)
        raise InspectionError(f"{found.wheel.path.name}: {console.counted(errors, 'error')} above")


@click.command()
@click.argument("wheel")
@click.option(
    "--recipe", "name", metavar="ID", required=True, help="whose [smoke] table and environment to use"
)
@torch_option
@torch_from_option("use the torch that is installed there, as on a node; asks no index and compiles nothing")
@click.option("--gpu", is_flag=True, help="fail where no GPU of the recipe's kind agrees; keep the report")
@click.option(
    "--report",
    "target",
    type=click.Path(path_type=Path, dir_okay=False),
    help="with --gpu: where the report for `wheelhouse promote` goes, if not beside the wheel",
)
@as_json
@failing_as(SmokeError)
def smoke(
    wheel: str,
    name: str,
    torch: str | None,
    torch_from: Path | None,
    gpu: bool,
    target: Path | None,
    as_json: bool,
) -> None:
    """Import WHEEL in a fresh environment, check what it registers, and what it computes if there is a GPU.

    No GPU or driver is needed for the rest.
    """
    from sglwheel import files, pipeline
    from sglwheel import smoke as smoking
    from sglwheel.release import releasing

    if target is not None and not gpu:
        raise UsageError("--report: only with --gpu")
    context = pipeline.Context.load(Layout.find(), name, pipeline.Options(torch, torch_from=torch_from))
    path = wheel_path(wheel)
    lent = context.lent
    env = smoking.Beside.of(lent, context.layout) if lent is not None else context.prepare()
    mode: Literal["auto", "required"] = "required" if gpu else "auto"
    report = smoking.run(path, context.recipe, env, context.layout, gpu_mode=mode)
    if gpu and report.gpu is not None:
        beside = target or _beside(path, context.layout)
        files.write_atomic(beside, json.dumps(report.to_json(), indent=1) + "\n")
        console.say(f"GPU report: {context.layout.relative(beside)}")
    if as_json:
        console.emit_json(report.to_json())
    releasing.judge_smoke(report)


def _beside(wheel: Path, layout: Layout) -> Path:
    """Where a report goes: beside the wheel, but not among a wheelhouse's own files."""
    inside = wheel.resolve().is_relative_to(layout.wheelhouse.resolve())
    return (layout.work if inside else wheel.parent) / f"{wheel.name}.gpu.json"


@click.command("install-check")
@click.argument("release")
@click.option("--recipe", "name", metavar="ID", required=True, help="whose imports and environment to use")
@torch_option
@as_json
@failing_as(WheelhouseError)
def install_check(release: str, name: str, torch: str | None, as_json: bool) -> None:
    """Run the printed line of RELEASE (a wheel's file name or id) in a new environment."""
    from sglwheel import pipeline, wheelhouse
    from sglwheel.release import releasing

    context = pipeline.Context.load(Layout.find(), name, pipeline.Options(torch))
    found = wheelhouse.Wheelhouse(context.layout.wheelhouse).find(release)
    report = releasing.install_check(found, context.recipe, context.prepare(), context.layout)
    if as_json:
        console.emit_json(report.to_json())
    else:
        for check in report.checks:
            console.emit(f"{check.status:<8} {check.name}" + (f": {check.detail}" if check.detail else ""))


def wheel_path(text: str) -> Path:
    """A wheel named on the command line. Raises UsageError when it is not a file."""
    path = Path(text).absolute()
    if not path.is_file():
        raise UsageError(f"no such wheel: {text}", next="ls wheelhouse/*.whl")
    return path


VERBS = (build, publish, inspect, smoke, install_check)
