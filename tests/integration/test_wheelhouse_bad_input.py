"""What a user sees of bad input to a wheelhouse: every text golden, exit code 9, nothing lost."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from conftest import ROOT
from handoverworld import provenance_of
from sglwheel import cli, console, recipe
from sglwheel.errors import SglwheelError
from sglwheel.files import Layout
from sglwheel.wheelhouse import Release, publish, record
from wheelworld import digest, make_kernel, make_wheel, reports

pytestmark = pytest.mark.integration
VERSION = "0.3.21+cu130.torch2.12.0.sm120a."


class World:
    """A wheelhouse with one release, and somebody who types."""

    def __init__(self, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.base = base
        self.root = base / "wheelhouse"
        self.monkeypatch = monkeypatch
        self.release = self.put(make_kernel(base / "dist", f"{VERSION}1"))

    def put(self, wheel: Path) -> Release:
        return publish(*reports(wheel, gpu=True), Layout(self.base), root=self.root)

    def verb(self, *words: str) -> None:
        cli.main(["wheelhouse", "--root", str(self.root), *words])

    def publishes(self, wheel: Path, *words: str) -> None:
        """As on the host that publishes what another one built."""
        cli.main(["publish", str(wheel), "--recipe", "cu130", *words])

    def built(self, *, commit: str | None = None, torch: str | None = None) -> Path:
        """A wheel that says it was built from `cu130`, or from that with another commit or torch."""
        target = recipe.load(Layout(ROOT), "cu130")
        if torch:
            target = target.with_torch(torch)
        said = provenance_of(target)
        if commit:
            said["upstream"]["commit"] = commit
        torch = str(target.torch.version)
        version = f"0.3.21+cu130.torch{torch}.sm120a.{target.wheel.build}"
        return make_kernel(self.base / "built", version, torch=torch, provenance=said)


def torn(world: World) -> None:
    wheel = world.built()
    wheel.write_bytes(wheel.read_bytes()[:-100])
    world.publishes(wheel)


def renamed(world: World) -> None:
    wheel = world.built()
    world.publishes(wheel.rename(wheel.with_name(wheel.name.replace("torch2.12.0", "torch2.13.0"))))


def hostile(name: str) -> Callable[[World], None]:
    def type_it(world: World) -> None:
        wheel = world.built()
        world.publishes(wheel.rename(wheel.with_name(f"{name}-1-py3-none-any.whl")))

    return type_it


def used_name(world: World) -> None:
    world.put(make_kernel(world.base / "other", f"{VERSION}1", content="changed = True\n"))


def report_fails(which: int) -> Callable[[World], None]:
    def type_it(world: World) -> None:
        trio = list(reports(make_kernel(world.base / "dist", f"{VERSION}2")))
        trio[which] = replace(trio[which], ok=False)
        publish(*trio, Layout(world.base), root=world.root)

    return type_it


def report_of_another(world: World) -> None:
    finished, _, _ = reports(make_kernel(world.base / "dist", f"{VERSION}2"))
    _, inspection, smoke = reports(make_kernel(world.base / "dist", f"{VERSION}3"))
    publish(finished, inspection, smoke, Layout(world.base), root=world.root)


def clock_in_the_past(world: World) -> None:
    class Clock:
        @staticmethod
        def now(_zone: object) -> datetime:
            return datetime(1970, 1, 1, tzinfo=UTC)

    when = "2026-03-06T00:00:00Z"
    listed = world.root / "releases.json"
    listed.write_text(re.sub(r'"when":"[^"]+"', f'"when":"{when}"', listed.read_text()))
    world.monkeypatch.setattr(record, "datetime", Clock)
    world.put(make_kernel(world.base / "dist", f"{VERSION}2"))


def edited_by_hand(world: World) -> None:
    (world.root / "index.html").write_text("<h1>mine</h1>")
    (world.release.directory / "notes.txt").write_text("x")
    make_wheel(world.root, "foreign", "1")
    world.verb("verify")


def links_out(world: World) -> None:
    (world.root / "passwd.whl").symlink_to("/etc/passwd")
    (world.root / "builds/evil").symlink_to("/etc")
    world.verb("verify")


def record_edited(world: World) -> None:
    path = world.release.directory / "release.json"
    path.write_text(path.read_text().replace(world.release.record.filename, "../../../etc/x.whl"))
    (world.root / "releases.json").unlink()
    world.verb("list")


def vanished(world: World) -> None:
    world.root.rename(world.base / "unmounted")
    world.verb("verify")


def no_directory(world: World) -> None:
    world.root.rename(world.base / "away")
    world.root.write_text("")
    world.put(make_kernel(world.base / "dist", f"{VERSION}2"))


BAD: dict[str, Callable[[World], None]] = {
    "not ours": lambda world: world.publishes(make_kernel(world.base / "x", f"{VERSION}1")),
    "another commit": lambda world: world.publishes(world.built(commit="4" * 40)),
    "another torch": lambda world: world.publishes(world.built(torch="2.11.0")),
    "another torch asked for": lambda world: world.publishes(world.built(), "--torch", "2.11.0"),
    "torn": torn,
    "renamed": renamed,
    "hostile name command": hostile("$(id)"),
    "hostile name escape": hostile("\x1b[2Jx"),
    "hostile name line": hostile("a\nb"),
    "fails inspection": report_fails(1),
    "fails smoke": report_fails(2),
    "report of another wheel": report_of_another,
    "used name": used_name,
    "clock in the past": clock_in_the_past,
    "edited by hand": edited_by_hand,
    "links out": links_out,
    "record edited": record_edited,
    "vanished": vanished,
    "no directory": no_directory,
    "no such release": lambda world: world.verb("yank", "sm120a.9", "wrong"),
}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(os, "fsync", lambda _: None)
    monkeypatch.chdir(ROOT)
    return World(tmp_path, monkeypatch)


def seen(
    world: World, type_it: Callable[[World], None], capsys: pytest.CaptureFixture[str]
) -> tuple[int, str]:
    """Exit code and everything that is printed, as the command line does it."""
    capsys.readouterr()
    code = 0
    try:
        type_it(world)
    except SglwheelError as error:
        console.report(error)
        code = error.exit_code
    except SystemExit as ended:
        code = int(ended.code or 0)
    told = capsys.readouterr()
    return code, told.out + told.err


def wheels(world: World) -> set[str]:
    """Hashes of all that was ever published, wherever the wheelhouse is now."""
    return {digest(path) for path in world.base.glob("*/builds/*/*.whl")}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(
    name: str, world: World, capsys: pytest.CaptureFixture[str], golden: Callable[[str, str], None]
) -> None:
    before = wheels(world)
    code, text = seen(world, BAD[name], capsys)
    assert code == 9
    assert "Traceback" not in text
    assert re.search(r"^  next  ", text, re.MULTILINE), text
    assert not [letter for letter in text if letter != "\n" and not letter.isprintable()]
    assert wheels(world) == before
    text = text.replace(str(world.base), "ROOT").replace(str(ROOT), "CHECKOUT").replace(sys.prefix, "VENV")
    # Columns are as wide as the paths of this run, and hashes are of wheels with today's contents.
    text = re.sub(r"(?<=\S) {2,}", "  ", text)
    text = re.sub(r"\b[0-9a-f]{64}\b", "SHA256", text)
    golden(f"bad-input-wheelhouse/{name.replace(' ', '-')}.txt", f"{text}exit {code}\n")
