"""The command line: parses, calls one function, prints its value, and turns errors into exit codes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from sglwheel import __version__, console, recipe
from sglwheel.errors import DoctorError, InspectionError, Interrupted, SglwheelError, UsageError
from sglwheel.files import Layout

if TYPE_CHECKING:
    from sglwheel import pipeline

as_json = click.option("--json", "as_json", is_flag=True, help="the same facts for scripts, on stdout")
torch_option = click.option("--torch", metavar="VERSION", help="another torch; recipes/ is not changed")
override_option = click.option(
    "--override",
    "overrides",
    multiple=True,
    metavar="NAME=PATH|REV|PATH@REV",
    help="take one fetched source from elsewhere; the release is marked",
)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__)
def cli() -> None:
    """From a recipe to an installed, checked and explained sgl-kernel wheel."""


@cli.command()
@click.argument("name")
@torch_option
@override_option
@click.option(
    "--jobs", type=click.IntRange(min=1), help="at most so many compilers; memory limits them anyway"
)
@click.option("--all", "all_patches", is_flag=True, help="apply patches that are not needed, too")
@click.option(
    "--torch-from",
    type=click.Path(path_type=Path),
    metavar="VENV|PYTHON",
    help="build against the torch that is installed there, with the build tools that are",
)
@click.option(
    "--provider",
    type=click.Choice(["system", "pypi"]),
    help="the CUDA toolkit: this host's, or one that is put together",
)
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
@as_json
def build(
    name: str,
    torch: str | None,
    overrides: tuple[str, ...],
    jobs: int | None,
    all_patches: bool,
    torch_from: Path | None,
    provider: Literal["system", "pypi"] | None,
    until: Literal["finish"] | None,
    offline: bool,
    bundle: Path | None,
    as_json: bool,
) -> None:
    """Clone, patch, build, inspect, smoke-test, publish, and install recipe NAME."""
    from sglwheel import pipeline

    options = pipeline.Options(
        torch, _overrides(overrides), jobs, all_patches, torch_from, provider, until, offline, bundle
    )
    _emit_done(pipeline.run(Layout.find(), name, options), as_json)


@cli.command()
@click.argument("wheel")
@click.option("--recipe", "name", metavar="ID", required=True, help="the recipe that it was built from")
@torch_option
@as_json
def publish(wheel: str, name: str, torch: str | None, as_json: bool) -> None:
    """Inspect, smoke-test, publish and install WHEEL, a finished one of another host's."""
    from sglwheel import pipeline

    done = pipeline.publish(Layout.find(), wheel_path(wheel), name, pipeline.Options(torch))
    _emit_done(done, as_json)


def _emit_done(done: pipeline.Done, as_json: bool) -> None:
    if as_json:
        console.emit_json(done.facts)
    else:
        for line in done.summary:
            console.emit(line)


@cli.command()
@click.argument("name")
@torch_option
@click.option("--all", "all_patches", is_flag=True, help="apply patches that are not needed, too")
@as_json
def patch(name: str, torch: str | None, all_patches: bool, as_json: bool) -> None:
    """Apply the series of recipe NAME and say each patch's state and why."""
    from sglwheel import pipeline

    context = pipeline.Context.load(Layout.find(), name, pipeline.Options(torch, all_patches=all_patches))
    states, failures = context.states()
    if as_json:
        console.emit_json({"commit": context.checkout.commit, "patches": [vars(state) for state in states]})
    else:
        for line in pipeline.describe_patches(states):
            console.emit(line)
    if failures:
        raise failures[0]
    patched = context.patch()
    if not as_json:
        console.emit(f"patched {context.checkout.commit.short} → {patched.commit} in {patched.path}")


@cli.command()
@click.argument("wheel")
@click.option("--torch", metavar="VERSION|WHEEL|VENV|SYMBOLS", help="the torch that it shall load beside")
@click.option("--recipe", "name", metavar="ID", help="the recipe that it shall fulfil")
@as_json
def inspect(wheel: str, torch: str | None, name: str | None, as_json: bool) -> None:
    """Say from the files alone what WHEEL is and why it does or does not fit; nothing is imported."""
    from sglwheel import inspect as inspecting
    from sglwheel.inspect import symbols

    layout = Layout.find()
    expect = inspecting.Expectation.of(recipe.load(layout, name)) if name else None
    found = inspecting.inspect(
        wheel_path(wheel), expect=expect, torch=symbols.find(torch, layout) if torch else None
    )
    if as_json:
        console.emit_json(found.to_json())
    else:
        for line in found.render():
            console.emit(line)
    if not found.ok:
        raise InspectionError(
            f"{found.wheel.path.name}: {sum(f.severity == 'error' for f in found.findings)} errors above"
        )


@cli.command()
@click.argument("wheel")
@click.option(
    "--recipe", "name", metavar="ID", required=True, help="whose [smoke] table and environment to use"
)
@torch_option
@as_json
def smoke(wheel: str, name: str, torch: str | None, as_json: bool) -> None:
    """Import WHEEL in a fresh environment and check what it registers; no GPU or driver is needed."""
    from sglwheel import pipeline, releasing
    from sglwheel import smoke as smoking

    context = pipeline.Context.load(Layout.find(), name, pipeline.Options(torch))
    report = smoking.run(wheel_path(wheel), context.recipe, context.prepare(), context.layout)
    if as_json:
        console.emit_json(report.to_json())
    releasing.judge_smoke(report)


@cli.command("install-check")
@click.argument("release")
@click.option("--recipe", "name", metavar="ID", required=True, help="whose imports and environment to use")
@torch_option
@as_json
def install_check(release: str, name: str, torch: str | None, as_json: bool) -> None:
    """Run the printed line of RELEASE (a wheel's file name or id) in a new environment."""
    from sglwheel import pipeline, releasing, wheelhouse

    context = pipeline.Context.load(Layout.find(), name, pipeline.Options(torch))
    found = wheelhouse.Wheelhouse(context.layout.wheelhouse).find(release)
    report = releasing.install_check(found, context.recipe, context.prepare(), context.layout)
    if as_json:
        console.emit_json(report.to_json())
    else:
        for check in report.checks:
            console.emit(f"{check.status:<8} {check.name}" + (f": {check.detail}" if check.detail else ""))


@cli.command()
@as_json
def check(as_json: bool) -> None:
    """Lint every recipe and series, also against each other."""
    from sglwheel import lint

    layout = Layout.find()
    loaded = [recipe.load(layout, name) for name in recipe.names(layout)]
    problems = lint.check(layout, loaded)
    if as_json:
        console.emit_json([vars(problem) for problem in problems])
    if problems:
        raise lint.error(problems)
    if not as_json:
        console.emit(f"{len(loaded)} recipes and their series are in order")


@cli.command()
@click.argument("name")
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), metavar="DIRECTORY")
@as_json
def vendor(name: str, output: Path, as_json: bool) -> None:
    """Put everything that recipe NAME takes from elsewhere into one directory, for `build --from`."""
    from sglwheel import vendoring

    made = vendoring.vendor(Layout.find(), name, output)
    size = sum((made.root / path).stat().st_size for path in made.files)
    if as_json:
        console.emit_json({"bundle": str(made.root), "files": made.files, "bytes": size})
    else:
        console.emit(f"{output}: {len(made.files)} files, {console.format_bytes(size)}")
        console.emit(f"sglwheel build {name} --offline --from {output}")


@cli.group()
def store() -> None:
    """What is kept under .cache/, and what of it may go."""


@store.command("size")
@as_json
def store_size(as_json: bool) -> None:
    """Say how big each store is."""
    from sglwheel import storage

    found = storage.sizes(Layout.find())
    if as_json:
        console.emit_json(found)
        return
    for kind, size in (*found.items(), ("all", sum(found.values()))):
        console.emit(f"{kind:<9} {console.format_bytes(size):>9}")


@store.command("gc")
@click.option("--dry-run", is_flag=True, help="say what would go")
@click.option(
    "--days", type=click.FloatRange(min=0), default=30, show_default=True, help="unused for so long"
)
@as_json
def store_gc(dry_run: bool, days: float, as_json: bool) -> None:
    """Delete what no lock of this checkout names and no build used lately."""
    from sglwheel import storage

    layout = Layout.find()
    found = storage.garbage(layout, days)
    held = () if dry_run else storage.collect(found)
    gone = [item for item in found if item not in held]
    if as_json:
        console.emit_json({"garbage": [vars(item) for item in gone], "held": [vars(item) for item in held]})
        return
    for item in gone:
        console.emit(f"{layout.relative(item.path)}  {console.format_bytes(item.bytes)}  {item.why}")
    for item in held:
        console.warn(f"{layout.relative(item.path)} is in use")
    size = console.format_bytes(sum(item.bytes for item in gone))
    console.emit(f"{size} {'would be' if dry_run else 'are'} free")


@cli.group()
def torch() -> None:
    """Which torch builds there are."""


@torch.command("list")
@click.option("--recipe", "name", metavar="ID", help="for this recipe's CUDA line and index")
@click.option("--cuda", metavar="LINE", help="for this CUDA line, such as cu130")
@as_json
def torch_list(name: str | None, cuda: str | None, as_json: bool) -> None:
    """List releases and nightlies for this host: on which index, stored, used by which recipes."""
    from sglwheel import torchchoice, types
    from sglwheel.mirrors import Mirrors

    layout = Layout.find()
    loaded = recipe.load(layout, name) if name else None
    try:
        line = types.CudaLine.parse(cuda) if cuda else loaded.torch.cuda if loaded else types.CudaLine(13, 0)
    except ValueError as error:
        raise UsageError(str(error), where={"option": "--cuda"}) from None
    own = loaded.torch.index_url if loaded else None
    lines, silent = torchchoice.listing(layout, line, Mirrors.load(layout), own=own)
    if as_json:
        console.emit_json({"torch": [vars(one) for one in lines], "no_answer": silent})
        return
    for text in torchchoice.render(lines):
        console.emit(text)
    for index, why in silent.items():
        console.warn(f"{index} does not answer: {why}")


@cli.command()
@click.argument("name")
@click.option(
    "--torch",
    "word",
    required=True,
    metavar="nightly|nightly:YYYY-MM-DD|VERSION",
    help="the newest nightly, that of a day, or an exact version",
)
@click.option("--dry-run", is_flag=True, help="say what would change in the recipe")
@as_json
def pin(name: str, word: str, dry_run: bool, as_json: bool) -> None:
    """Make recipe NAME use another torch: its file, its locks, and the store that keeps it."""
    from sglwheel import locking, torchchoice
    from sglwheel.mirrors import Mirrors

    layout = Layout.find()
    done = torchchoice.pin(layout, name, word, Mirrors.load(layout), dry_run=dry_run)
    if as_json:
        console.emit_json({"changes": [vars(one) for one in (*done.edits, *done.changes)]})
    else:
        for text in locking.render((*done.edits, *done.changes)):
            console.emit(text)


@cli.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--check", "only_check", is_flag=True, help="compare with stores, remotes and registries")
@click.option("--upgrade", is_flag=True, help="resolve anew what the recipe does not pin itself")
@click.option("--offline", is_flag=True, help="with --check: compare with what is stored, ask nobody")
@as_json
def lock(names: tuple[str, ...], only_check: bool, upgrade: bool, offline: bool, as_json: bool) -> None:
    """Write the locks of recipes (all if none is named) and say what changed, or check them."""
    from sglwheel import lockverb

    if only_check and upgrade:
        raise UsageError("--check changes nothing, --upgrade does: choose one")
    layout = Layout.find()
    wanted = names or tuple(recipe.names(layout))
    if only_check:
        found = lockverb.check(layout, wanted, online=not offline)
        if as_json:
            console.emit_json({name: [vars(one) for one in findings] for name, findings in found.items()})
        lockverb.demand(found)
        if not as_json:
            console.emit(f"the locks of {', '.join(wanted)} and all that they speak of agree")
        return
    changed = {name: lockverb.write(layout, name, upgrade=upgrade) for name in wanted}
    if as_json:
        console.emit_json({name: [vars(one) for one in changes] for name, changes in changed.items()})
    else:
        for line in lockverb.render(changed):
            console.emit(line)


@cli.command()
@click.option("--recipe", "name", metavar="ID", help="only what this recipe needs")
@as_json
def doctor(name: str | None, as_json: bool) -> None:
    """Say everything that this host lacks for building, at once."""
    from sglwheel import preflight

    layout = Layout.find()
    found = {
        one: preflight.check(recipe.load(layout, one), layout)
        for one in ([name] if name else recipe.names(layout))
    }
    if as_json:
        console.emit_json({one: [vars(problem) for problem in problems] for one, problems in found.items()})
    for one, problems in found.items():
        if problems:
            raise DoctorError(
                f"this host cannot build {one} yet: {len(problems)} things are missing",
                where={problem.subject: f"{problem.detail}\n→ {problem.remedy}" for problem in problems},
                next=f"sglwheel doctor --recipe {one}",
            )
    if not as_json:
        console.emit(f"this host can build {', '.join(found)}")


@cli.command()
@as_json
def recipes(as_json: bool) -> None:
    """List the recipes and what they build."""
    layout = Layout.find()
    loaded = [recipe.load(layout, name) for name in recipe.names(layout)]
    if as_json:
        console.emit_json({item.id: item.model_dump(mode="json", by_alias=True) for item in loaded})
        return
    width = max((len(item.id) for item in loaded), default=0)
    for item in loaded:
        console.emit(f"{item.id:<{width}}  {item.summary}")


@cli.command()
def schema() -> None:
    """Print the recipes' JSON schema (docs/recipe.schema.json)."""
    console.emit(recipe.json_schema())


def _overrides(texts: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name or not value:
            raise UsageError(
                f"--override {text!r} is not NAME=PATH, NAME=REV or NAME=PATH@REV",
                next="sglwheel build --help",
            )
        if name.lower() in {known.lower() for known in found}:
            raise UsageError(f"--override names {name} twice")
        found[name] = value
    return found


def wheel_path(text: str) -> Path:
    """A wheel named on the command line. Raises UsageError when it is not a file."""
    path = Path(text).absolute()
    if not path.is_file():
        raise UsageError(f"no such wheel: {text}", next="ls wheelhouse/*.whl")
    return path


def main(argv: list[str] | None = None) -> None:
    """Run the command line; the only place that catches the tool's errors."""
    try:
        result: Any = cli.main(args=argv, prog_name="sglwheel", standalone_mode=False)
    except SglwheelError as error:
        console.report(error)
        sys.exit(error.exit_code)
    except click.exceptions.Abort:
        console.report(Interrupted("interrupted"))
        sys.exit(Interrupted.exit_code)
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "sglwheel"
        console.report(UsageError(error.format_message(), next=f"{command} --help"))
        sys.exit(UsageError.exit_code)
    except KeyboardInterrupt:
        console.report(Interrupted("interrupted", next="run the same command again: it continues"))
        sys.exit(Interrupted.exit_code)
    except BrokenPipeError:
        # Our reader is gone (`| head`): the usual silent end.
        sys.stderr.close()
        sys.exit(141)
    sys.exit(result if isinstance(result, int) else 0)
