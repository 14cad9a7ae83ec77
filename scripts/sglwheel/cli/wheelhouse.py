"""What may be done with published wheels."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sglwheel import console
from sglwheel.cli.options import as_json
from sglwheel.errors import UsageError, WheelhouseError
from sglwheel.files import Layout, write_atomic

if TYPE_CHECKING:
    from sglwheel.wheelhouse import Release, Wheelhouse

_path = click.Path(path_type=Path)


@click.group()
@click.option("--root", type=_path, metavar="DIRECTORY", help="another wheelhouse than this checkout's")
@click.pass_context
def wheelhouse(context: click.Context, root: Path | None) -> None:
    """List, promote, yank, move, check, clean, copy, serve and sign what was published."""
    context.obj = root


def _house() -> Wheelhouse:
    from sglwheel import wheelhouse as houses

    root = click.get_current_context().find_object(Path)
    return houses.Wheelhouse(root if root is not None else Layout.find().wheelhouse)


@wheelhouse.command("list")
@as_json
def list_(as_json: bool) -> None:
    """List releases, newest first, and where each line points."""
    from sglwheel.wheelhouse import linerecord

    house = _house()
    records = sorted(house.records().values(), key=lambda record: record.order(), reverse=True)
    lines = linerecord.load_all(house)
    if as_json:
        console.emit_json(
            {
                "releases": [record.model_dump(mode="json", by_alias=True) for record in records],
                "lines": {name: list(line.members) for name, line in lines.items()},
            }
        )
        return
    for record in records:
        pointing = [name for name, line in lines.items() if record.id in line.members]
        word = "removed" if record.removed else record.shown
        console.emit(
            f"{word:<10} {record.name}=={record.version}  {record.platform}  {' '.join(pointing)}".rstrip()
        )


@wheelhouse.command()
@click.argument("release")
@click.option("--at", "location", metavar="DIRECTORY|URL", help="where nodes see the wheelhouse, if not here")
@as_json
def lines(release: str, location: str | None, as_json: bool) -> None:
    """Print every install line of RELEASE, and the files that pin it."""
    from sglwheel import wheelhouse as houses

    house = _house()
    found = houses.Lines(house.find(release).record, location or str(house.root)).to_json()
    if as_json:
        console.emit_json(found)
        return
    console.emit("\n\n".join(f"# {name}\n{text}" for name, text in found.items() if text))


@wheelhouse.command()
@click.argument("release")
@click.argument("report", type=_path)
def promote(release: str, report: Path) -> None:
    """Make the candidate RELEASE a release, by a GPU's smoke REPORT (JSON) about these bytes."""
    from sglwheel.wheelhouse import life

    _say(life.promote(_house(), release, life.GpuReport.load(report)))


@wheelhouse.command()
@click.argument("release")
@click.argument("reason")
@click.option("--force", is_flag=True, help="also when a line points to it: the line goes back")
def yank(release: str, reason: str, force: bool) -> None:
    """Take RELEASE out of every resolver's sight; who pinned it still gets it."""
    from sglwheel.wheelhouse import life

    _say(life.yank(_house(), release, reason, force=force))


@wheelhouse.command()
@click.argument("release")
@click.argument("reason", default="")
def unyank(release: str, reason: str) -> None:
    """Show RELEASE to resolvers again."""
    from sglwheel.wheelhouse import life

    _say(life.unyank(_house(), release, reason))


@wheelhouse.command()
@click.argument("line")
@click.argument("releases", nargs=-1, required=True)
def point(line: str, releases: tuple[str, ...]) -> None:
    """Point LINE at RELEASES by hand; from then on it moves by itself again."""
    _move(lambda house, pointers: pointers.point(house, line, [house.find(text).id for text in releases]))


@wheelhouse.command()
@click.argument("line")
def rollback(line: str) -> None:
    """Point LINE at what it pointed to before, and hold it there."""
    _move(lambda house, pointers: pointers.rollback(house, line))


@wheelhouse.command()
@click.argument("line")
@click.argument("releases", nargs=-1, required=True)
def promise(line: str, releases: tuple[str, ...]) -> None:
    """Let LINE move only when there is a successor to each of RELEASES (same torch, machine, GPUs)."""
    from sglwheel.wheelhouse.linerecord import Cell

    _move(
        lambda house, pointers: pointers.promise(
            house, line, [Cell.of(house.find(text).record) for text in releases]
        )
    )


@wheelhouse.command()
@click.option("--repair", is_flag=True, help="mend what can be mended; what does not belong is set aside")
@click.option("--allowed-signers", type=_path, help="also check signatures, by this ssh allowed_signers file")
@as_json
def verify(repair: bool, allowed_signers: Path | None, as_json: bool) -> None:
    """Check every hash, link and record."""
    from sglwheel.wheelhouse import signing
    from sglwheel.wheelhouse.verify import verify as look

    house = _house()
    with console.progress("verify", unit="releases") as bar:
        done = look(house, repair=repair, progress=bar.update)
    unsigned = signing.unsigned(house, allowed_signers) if allowed_signers else {}
    if as_json:
        console.emit_json({**done.to_json(), "unsigned": unsigned})
    else:
        for finding in done.findings:
            state = "repaired" if finding.repaired else "wrong"
            told = console.visible(f"{finding.file}: {finding.detail}")
            console.emit(f"{state:<9} {finding.rule:<11} {told}")
        for file, why in unsigned.items():
            console.emit(f"wrong     signature   {file}: {why}")
    if not done.ok or unsigned:
        wrong = sum(not finding.repaired for finding in done.findings) + len(unsigned)
        what = "1 thing in the wheelhouse is" if wrong == 1 else f"{wrong} things in the wheelhouse are"
        mend = "restore them from a mirror" if repair else "sglwheel wheelhouse verify --repair"
        raise WheelhouseError(
            f"{what} not as {'it' if wrong == 1 else 'they'} should be",
            next=mend if not done.ok else "sglwheel wheelhouse sign --key <key>, for bytes that you trust",
        )
    if not as_json:
        console.emit(f"{done.releases} releases, {console.format_bytes(done.bytes_read)}: all as published")


@wheelhouse.command()
@click.option("--keep-days", type=click.IntRange(min=0), default=90, show_default=True)
@click.option("--keep-generations", type=click.IntRange(min=0), default=3, show_default=True)
@click.option("--pins", type=_path, multiple=True, help="what a file names stays (requirements, locks)")
@click.option("--yes", is_flag=True, help="really remove; without it only say what would go")
@as_json
def gc(keep_days: int, keep_generations: int, pins: tuple[Path, ...], yes: bool, as_json: bool) -> None:
    """Remove old wheels that no line and no pin file needs; their names stay taken."""
    from sglwheel.wheelhouse.gc import Policy, collect

    done = collect(_house(), Policy(keep_days, keep_generations, pins), dry_run=not yes)
    if as_json:
        console.emit_json(
            {
                "done": done.done,
                "bytes": done.bytes,
                "verdicts": [
                    {"release": item.record.id, "remove": item.remove, "because": item.because}
                    for item in done.verdicts
                ],
            }
        )
        return
    for item in done.verdicts:
        console.emit(f"{'remove' if item.remove else 'keep':<7} {item.record.version}: {item.because}")
    would = "removed" if done.done else "would be removed (--yes)"
    console.emit(f"{console.counted(len(done.removed), 'wheel')}, {console.format_bytes(done.bytes)} {would}")


@wheelhouse.command()
@click.argument("target", metavar="DIRECTORY|URL")
@click.option("--dry-run", is_flag=True)
@as_json
def mirror(target: str, dry_run: bool, as_json: bool) -> None:
    """Copy what changed to a directory or a bucket (s3://…, gs://…, az://…)."""
    from sglwheel.wheelhouse.mirror import mirror as copy

    with console.progress("mirror", unit="files") as bar:
        done = copy(_house(), target, dry_run=dry_run, progress=bar.update)
    if as_json:
        console.emit_json(vars(done))
        return
    word = "would be copied" if dry_run else "copied"
    console.emit(
        f"{console.counted(len(done.copied), 'file')}, {console.format_bytes(done.bytes)} {word};"
        f" {done.unchanged} unchanged"
    )


@wheelhouse.command()
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", type=click.IntRange(1, 65535), default=8000, show_default=True)
@click.option("--certificate", type=_path)
@click.option("--key", type=_path)
@click.option("--token-file", type=_path, help="ask clients for this token (or SGLWHEEL_TOKEN)")
def serve(host: str, port: int, certificate: Path | None, key: Path | None, token_file: Path | None) -> None:
    """Serve the wheelhouse, read-only, until interrupted."""
    from sglwheel.wheelhouse.serving import Service
    from sglwheel.wheelhouse.serving import serve as run

    token = os.environ.get("SGLWHEEL_TOKEN")
    if token_file is not None:
        try:
            token = token_file.read_text().strip()
        except OSError as error:
            raise UsageError(f"no token: {error}", where={"option": "--token-file"}) from error
    service = Service(_house().root, host, port, token or None, certificate, key)
    console.say(f"serving {service.root} on {service.url} (Ctrl-C ends it)")
    run(service)


@wheelhouse.command()
@click.option(
    "--key", type=_path, required=True, help="an ssh key; a public one if an agent has the other half"
)
def sign(key: Path) -> None:
    """Sign every wheel and line that is not signed yet, and the catalogue."""
    from sglwheel.wheelhouse import signing

    house = _house()
    with house.locked():
        for path in signing.sign_all(house, key):
            console.emit(str(path.relative_to(house.root)))


@wheelhouse.command("node-kit")
@click.argument("release")
@click.argument("directory", type=_path)
@click.option("--at", "location", metavar="DIRECTORY|URL", help="where the node sees the wheelhouse")
@click.option(
    "--recipe", "named", metavar="ID", help="take [node] from here, for a wheel that names no recipe"
)
def node_kit(release: str, directory: Path, location: str | None, named: str | None) -> None:
    """Write a launch script, a systemd unit and their reasons for RELEASE into DIRECTORY."""
    from sglwheel import recipe
    from sglwheel.wheelhouse import nodeprogram
    from sglwheel.wheelhouse.nodekit import Kit

    house = _house()
    found = house.find(release)
    id = named or found.record.recipe
    if id is None:
        raise UsageError(f"{found.id} does not say which recipe built it", next="give --recipe")
    kit = Kit.of(found, recipe.load(Layout.find(), id))
    for name, text in kit.files(location or str(house.root)).items():
        write_atomic(directory / name, text, mode=0o755 if name.endswith(".sh") else 0o644)
    nodeprogram.write(directory)
    console.emit(str(directory))


def _say(release: Release) -> None:
    console.emit(f"{release.record.shown}: {release.record.name}=={release.record.version}")


def _move(change: Callable[[Wheelhouse, Any], Any]) -> None:
    from sglwheel.wheelhouse import pointers
    from sglwheel.wheelhouse.settle import settle

    house = _house()
    with house.locked(), house.transaction():
        pointer = change(house, pointers)
        settle(house)
    console.emit(
        f"{pointer.name}: {', '.join(pointer.members) or 'nothing'}{' (held)' if pointer.held else ''}"
    )


VERBS = (wheelhouse,)
