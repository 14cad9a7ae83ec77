"""What a build takes from elsewhere: torch, locks, stores, bundles."""

from __future__ import annotations

from pathlib import Path

import click

from sglwheel import console
from sglwheel.cli.options import as_json, failing_as, override_option, pairs
from sglwheel.errors import ToolchainError, UsageError
from sglwheel.files import Layout


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--check", "only_check", is_flag=True, help="compare with stores, remotes and registries")
@click.option("--upgrade", is_flag=True, help="resolve anew what the recipe does not pin itself")
@click.option("--offline", is_flag=True, help="with --check: compare with what is stored, ask nobody")
@override_option
@click.option(
    "--published",
    multiple=True,
    metavar="NAME=COMMIT|SHA256",
    help="with --override: what others say this source is; its first fetch is held to it",
)
@as_json
@failing_as(ToolchainError)
def lock(
    names: tuple[str, ...],
    only_check: bool,
    upgrade: bool,
    offline: bool,
    overrides: tuple[str, ...],
    published: tuple[str, ...],
    as_json: bool,
) -> None:
    """Write the locks of recipes (all if none is named) and say what changed, or check them."""
    from sglwheel import lockverb, recipe

    if only_check and upgrade:
        raise UsageError("--check changes nothing, --upgrade does: choose one")
    layout = Layout.find()
    wanted = names or tuple(recipe.names(layout))
    elsewhere = pairs(overrides, "--override")
    if only_check:
        found = lockverb.check(layout, wanted, online=not offline, overrides=elsewhere)
        if as_json:
            console.emit_json({name: [vars(one) for one in findings] for name, findings in found.items()})
        lockverb.demand(found)
        if not as_json:
            console.emit(f"the locks of {', '.join(wanted)} and all that they speak of agree")
            if elsewhere:
                console.emit(f"not asked for at their places: {', '.join(sorted(elsewhere))}")
        return
    known = pairs(published, "--published")
    changed = {
        name: lockverb.write(layout, name, upgrade=upgrade, overrides=elsewhere, published=known)
        for name in wanted
    }
    if as_json:
        console.emit_json({name: [vars(one) for one in changes] for name, changes in changed.items()})
    else:
        for line in lockverb.render(changed):
            console.emit(line)


@click.command()
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
@failing_as(ToolchainError)
def pin(name: str, word: str, dry_run: bool, as_json: bool) -> None:
    """Make recipe NAME use another torch: its file, its locks, and the store that keeps it."""
    from sglwheel.locks import locking, torchchoice
    from sglwheel.mirrors import Mirrors

    layout = Layout.find()
    done = torchchoice.pin(layout, name, word, Mirrors.load(layout), dry_run=dry_run)
    if as_json:
        console.emit_json({"changes": [vars(one) for one in (*done.edits, *done.changes)]})
    else:
        for text in locking.render((*done.edits, *done.changes)):
            console.emit(text)


@click.group()
def torch() -> None:
    """Which torch builds there are."""


@torch.command("list")
@click.option("--recipe", "name", metavar="ID", help="for this recipe's CUDA line and index")
@click.option("--cuda", metavar="LINE", help="for this CUDA line, such as cu130")
@as_json
@failing_as(ToolchainError)
def torch_list(name: str | None, cuda: str | None, as_json: bool) -> None:
    """List releases and nightlies for this host: on which index, stored, used by which recipes."""
    from sglwheel import recipe, types
    from sglwheel.locks import torchchoice
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


@click.command()
@click.argument("name")
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path), metavar="DIRECTORY|FILE.tar.zst"
)
@override_option
@as_json
@failing_as(ToolchainError)
def vendor(name: str, output: Path, overrides: tuple[str, ...], as_json: bool) -> None:
    """Bundle everything that recipe NAME takes from elsewhere, for `build --from`."""
    from sglwheel import vendoring

    made = vendoring.vendor(Layout.find(), name, output, pairs(overrides, "--override"))
    size = (
        output.stat().st_size
        if output.is_file()
        else sum((made.root / path).stat().st_size for path in made.files)
    )
    if as_json:
        console.emit_json({"bundle": str(output.absolute()), "files": made.files, "bytes": size})
    else:
        console.emit(f"{output}: {console.counted(len(made.files), 'file')}, {console.format_bytes(size)}")
        console.emit(f"sglwheel build {name} --offline --from {output}")


@click.group()
def store() -> None:
    """What is kept under .cache/, and what of it may go."""


@store.command("size")
@as_json
@failing_as(ToolchainError)
def store_size(as_json: bool) -> None:
    """Say how big each store is."""
    from sglwheel import storage

    found = storage.sizes(Layout.find())
    if as_json:
        console.emit_json(found)
        return
    for kind, size in (*found.items(), ("all", sum(found.values()))):
        console.emit(f"{kind:<9} {console.format_bytes(size):>9}")


@store.command("list")
@click.argument("name", required=False)
@as_json
@failing_as(ToolchainError)
def store_list(name: str | None, as_json: bool) -> None:
    """Say what of recipe NAME's wheels and sources is kept; of all recipes, how many."""
    from sglwheel import recipe
    from sglwheel.locks import holdings

    layout = Layout.find()
    names = [name] if name else recipe.names(layout)
    held = tuple(one for each in names for one in holdings.of(layout, each))
    if as_json:
        console.emit_json([vars(one) for one in held])
    elif name:
        for one in held:
            size = console.format_bytes(one.bytes) if one.bytes else ""
            here = "stored" if one.stored else "absent"
            console.emit(f"{one.kind:<11}  {here}  {size:>9}  {one.name} {one.version}")
    else:
        for line in holdings.summary(held):
            console.emit(line)


@store.command("gc")
@click.option("--dry-run", is_flag=True, help="say what would go")
@click.option(
    "--days", type=click.FloatRange(min=0), default=30, show_default=True, help="unused for so long"
)
@as_json
@failing_as(ToolchainError)
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


VERBS = (lock, pin, torch, vendor, store)
