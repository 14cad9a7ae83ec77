"""Verify finds what hands, disks and deaths did, repair puts it right; gc removes only what nobody needs."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

from sglwheel import process
from sglwheel.errors import WheelhouseError
from sglwheel.files import Layout
from sglwheel.wheelhouse import Release, Wheelhouse, pointers, publish, shelving, subindexes
from sglwheel.wheelhouse.documents import Document
from sglwheel.wheelhouse.gc import Policy, collect
from sglwheel.wheelhouse.life import yank
from sglwheel.wheelhouse.noted import Notes
from sglwheel.wheelhouse.record import Record, now
from sglwheel.wheelhouse.settle import settle
from sglwheel.wheelhouse.verify import verify
from wheelworld import make_kernel, reports


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Wheelhouse:
    # What survives a power loss is not the subject here, and syncing takes most of the time.
    monkeypatch.setattr(os, "fsync", lambda _: None)
    return Wheelhouse(tmp_path / "wheelhouse")


def put(house: Wheelhouse, build: int) -> Release:
    wheel = make_kernel(house.root.parent / "dist", f"0.3.21+cu130.torch2.12.0.sm120a.{build}")
    return publish(*reports(wheel, gpu=True), Layout(house.root.parent), root=house.root)


def one_wheel(root: Path) -> Path:
    return sorted(root.glob("builds/*/*.whl"))[0]


def flip(path: Path) -> None:
    """Change one byte in place, as a disk would."""
    with path.open("r+b") as stream:
        stream.seek(40)
        byte = stream.read(1)
        stream.seek(40)
        stream.write(bytes([byte[0] ^ 1]))


def separate(root: Path) -> Path:
    """Make the flat name a copy of its own, as after `cp -r`."""
    flat = sorted(root.glob("*.whl"))[0]
    data = flat.read_bytes()
    flat.unlink()
    flat.write_bytes(data)
    return flat


def outside(root: Path, inside: str) -> None:
    """Move it out of the tree and leave a symlink: what is read through it is still right."""
    path = sorted(root.glob(inside))[0]
    path.symlink_to(path.rename(root.parent / "outside"))


def damage_home_of_copy(root: Path) -> None:
    separate(root)
    flip(one_wheel(root))


DAMAGE: dict[str, tuple[str, Callable[[Path], object]]] = {
    "flat copy changed": ("flat", lambda root: flip(separate(root))),
    "flat link removed": ("flat", lambda root: sorted(root.glob("*.whl"))[0].unlink()),
    "wheel changed, copy whole": ("wheel", damage_home_of_copy),
    "metadata edited": ("derived", lambda root: (root / "index.html").write_text("<h1>mine</h1>")),
    "simple index removed": ("derived", lambda root: (root / "simple/sgl-kernel/index.html").unlink()),
    "catalogue torn": ("derived", lambda root: (root / "releases.json").write_text('{"schema": 1, "rel')),
    "record edited": ("record", lambda root: (one_wheel(root).parent / "release.json").write_text("{}")),
    "foreign wheel": ("orphan", lambda root: make_kernel(root, "9.9")),
    "foreign file": ("orphan", lambda root: (one_wheel(root).parent / "evil.txt").write_text("x")),
    "dead publisher": ("leftover", lambda root: (root / "builds/.x.1.2").mkdir()),
    "symlink out": ("symlink", lambda root: (root / "passwd.whl").symlink_to("/etc/passwd")),
    "symlink in a line": ("symlink", lambda root: outside(root, "lines/*/*.whl")),
    "symlink in simple": ("symlink", lambda root: outside(root, "simple/sgl-kernel")),
    "line emptied": ("line", lambda root: [path.unlink() for path in root.glob("lines/*/*.whl")]),
}


def test_a_sound_wheelhouse_is_sound(house: Wheelhouse) -> None:
    put(house, 1)
    put(house, 2)
    done = verify(house)
    assert done.findings == ()
    assert done.releases == 2


def test_what_was_noted_is_read_and_not_rendered_but_never_believed_alone(
    house: Wheelhouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = put(house, 1)
    yank(house, put(house, 2).id, "wrong", force=True)
    rendered: list[str] = []
    real = subindexes.subindex
    monkeypatch.setattr(subindexes, "subindex", lambda record: rendered.append(record.id) or real(record))
    assert verify(house).findings == ()
    assert rendered == []
    page = release.directory / "index.html"
    page.write_text(page.read_text().replace("passed", "proven"))
    assert [finding.rule for finding in verify(house).findings] == ["derived"]
    assert rendered == [release.id]
    assert verify(house, repair=True).ok
    # Lost notes cost only time.
    rendered.clear()
    house.notes.write_text('["torn')
    assert verify(house).findings == ()
    assert len(rendered) == 2


def test_a_great_index_written_by_several_interpreters_is_the_same(
    house: Wheelhouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(1, 6):
        put(house, number)
    once = {path: path.read_bytes() for path in house.root.rglob("*") if path.is_file()}
    for path in house.builds.glob("*/*.html"):
        path.unlink()
    spread = 0

    def counting(function: Callable[[object], object], pieces: Sequence[object]) -> list[object]:
        nonlocal spread
        spread += len(pieces)
        return process.spread(function, pieces)

    monkeypatch.setattr(shelving, "process", SimpleNamespace(spread=counting))
    monkeypatch.setattr(shelving, "_MANY", 2)
    monkeypatch.setattr(shelving, "_FEW", 2)
    with house.locked(), house.transaction():
        settle(house, fresh=True)
    assert spread == 3
    assert {path: path.read_bytes() for path in house.root.rglob("*") if path.is_file()} == once


class Killed(BaseException):
    pass


def test_killed_at_any_instant_a_great_index_shows_no_half_file_and_is_finished_by_the_next_change(
    house: Wheelhouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(1, 4):
        put(house, number)
    whole = {path: path.read_bytes() for path in house.root.rglob("*") if path.is_file()}
    monkeypatch.setattr(shelving, "_MANY", 2)
    real = os.write
    for instant in range(50):
        for path in house.builds.glob("*/*"):
            if path.name in ("index.html", "requirements.txt"):
                path.unlink()
            elif path.is_dir():
                shutil.rmtree(path)
        left = instant

        def die_in_time(descriptor: int, data: bytes) -> int:
            nonlocal left
            if left == 0:
                real(descriptor, data[: len(data) // 2])
                raise Killed
            left -= 1
            return real(descriptor, data)

        with monkeypatch.context() as patch:
            patch.setattr(os, "write", die_in_time)
            try:
                with house.locked(), house.transaction():
                    settle(house, fresh=True)
            except Killed:
                pass
            else:
                break
        for path in house.builds.rglob("*"):
            if path.is_file() and not any(
                part.startswith(".") for part in path.relative_to(house.root).parts
            ):
                assert path.read_bytes() == whole[path]
        with house.locked(), house.transaction():
            settle(house)
        assert {path: path.read_bytes() for path in house.root.rglob("*") if path.is_file()} == whole
    assert instant >= 12, "every file of every release was interrupted once"


DOCUMENTS = ("index.html", "releases.json", "simple/sgl-kernel/index.html", "simple/sgl-kernel/index.json")


def lines_of(text: str) -> list[int]:
    """Where the lines of releases stand."""
    return [number for number, line in enumerate(text.split("\n")) if "sm120a." in line]


def swapped(text: str) -> str:
    lines = text.split("\n")
    one, other = lines_of(text)[-2:]
    lines[one], lines[other] = lines[other], lines[one]
    return "\n".join(lines)


def without(text: str) -> str:
    lines = text.split("\n")
    del lines[lines_of(text)[-1]]
    return "\n".join(lines)


def twice(text: str) -> str:
    lines = text.split("\n")
    last = lines_of(text)[-1]
    return "\n".join([*lines[:last], lines[last], *lines[last:]])


EDITS: dict[str, Callable[[str], str]] = {
    "one word": lambda text: text.replace("sha256", "sha512", 1),
    "other order": swapped,
    "a line less": without,
    "a line twice": twice,
    "other line ends": lambda text: text.replace("\n", "\r\n"),
    "one more byte": lambda text: text + "\n",
}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_each_line_of_what_lists_all_is_compared_and_none_is_rendered(
    house: Wheelhouse, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for build in (1, 2, 3):
        put(house, build)
    rendered: list[str] = []
    real = Notes.believing

    def watched(notes: Notes, document: Document, name: str, text: str) -> Document:
        def line(record: Record) -> str | None:
            rendered.append(record.id)
            return document.line(record)

        return real(notes, replace(document, line=line), name, text)

    monkeypatch.setattr(Notes, "believing", watched)
    assert verify(house).findings == ()
    assert rendered == []
    path = house.root / name
    sound = path.read_text()
    for edit in EDITS.values():
        path.write_bytes(edit(sound).encode())
        assert path.read_bytes() != sound.encode()
        assert [(item.rule, item.file) for item in verify(house).findings] == [("derived", name)]
    assert verify(house, repair=True).ok
    assert path.read_text() == sound


def test_what_is_wrong_is_never_noted_as_right(house: Wheelhouse) -> None:
    release = put(house, 1)
    (release.directory / f"{release.record.filename}.smoke.json").write_text('{"wheel_sha256": "0"}')
    with house.locked():
        settle(house, fresh=True)
    assert [finding.rule for finding in verify(house).findings] == ["result"]


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_found_named_and_repaired_without_deleting(house: Wheelhouse, name: str) -> None:
    put(house, 1)
    put(house, 2)
    rule, damage = DAMAGE[name]
    damage(house.root)
    seen = verify(house)
    assert not seen.ok
    assert rule in {finding.rule for finding in seen.findings}
    mended = verify(house, repair=True)
    assert mended.ok, mended.findings
    assert verify(house).findings == ()
    assert Path("/etc/passwd").is_file()


def test_what_cannot_be_repaired_is_said(house: Wheelhouse) -> None:
    put(house, 1)
    flip(one_wheel(house.root))
    done = verify(house, repair=True)
    assert not done.ok
    wrong = [finding for finding in done.findings if not finding.repaired]
    assert {finding.rule for finding in wrong} <= {"wheel", "flat", "line"}
    assert "published was" in wrong[0].detail


def test_results_must_be_about_the_wheel(house: Wheelhouse) -> None:
    release = put(house, 1)
    smoke = release.directory / f"{release.record.filename}.smoke.json"
    smoke.write_text(json.dumps({"wheel_sha256": "0" * 64}))
    assert [finding.rule for finding in verify(house).findings] == ["result"]


def test_no_wheelhouse_is_said(house: Wheelhouse) -> None:
    with pytest.raises(WheelhouseError, match="no wheelhouse here"):
        verify(house)


def test_gc_removes_only_what_is_old_superseded_and_pinned_nowhere(house: Wheelhouse, tmp_path: Path) -> None:
    releases = [put(house, build) for build in range(1, 13)]
    pin = tmp_path / "requirements.txt"
    pin.write_text(f"sgl-kernel=={releases[1].record.version} --hash=sha256:{'0' * 64}\n")
    policy = Policy(keep_days=30, keep_generations=3, pins=(pin,))
    assert collect(house, policy).removed == (), "all are young"
    later = now() + timedelta(days=31)
    seen = collect(house, policy, today=later)
    assert not seen.done
    assert len(list(house.root.glob("*.whl"))) == 12, "a dry run removes nothing"
    gone = {record.version.rpartition(".")[2] for record in seen.removed}
    assert gone == {"1", "3", "4", "5", "6", "7", "8", "9"}, "2 is pinned, and .1 is no pin of .12"
    done = collect(house, policy, dry_run=False, today=later)
    assert {record.id for record in done.removed} == {record.id for record in seen.removed}
    assert sorted(
        path.name.rpartition("sm120a.")[2].partition("-")[0] for path in house.root.glob("*.whl")
    ) == [
        "10",
        "11",
        "12",
        "2",
    ]
    assert verify(house).findings == ()
    assert not releases[0].path.exists()
    assert (releases[0].directory / f"{releases[0].record.filename}.inspection.json").is_file()
    assert releases[0].record.filename not in (house.root / "simple/sgl-kernel/index.html").read_text()
    with pytest.raises(WheelhouseError, match="was removed from this wheelhouse on purpose"):
        put(house, 1)
    assert collect(house, policy, today=later).removed == ()


def test_gc_never_takes_what_a_line_needs_or_would_go_back_to(house: Wheelhouse) -> None:
    for build in range(1, 7):
        put(house, build)
    with house.locked():
        pointers.rollback(house, "cu130")
    kept = {
        verdict.record.version.rpartition(".")[2]: verdict.because
        for verdict in collect(house, Policy(keep_days=0, keep_generations=0)).verdicts
        if not verdict.remove
    }
    assert kept["5"].startswith("needed by line cu130")
    assert kept["6"].startswith("needed by line cu130")


def test_gc_takes_yanked_ones_whatever_their_rank(house: Wheelhouse) -> None:
    put(house, 1)
    release = put(house, 2)
    yank(house, release.id, "wrong", force=True)
    put(house, 3)
    put(house, 4)
    put(house, 5)
    removed = collect(house, Policy(keep_days=0, keep_generations=9)).removed
    assert [record.id for record in removed] == [release.id]


def test_gc_with_an_unreadable_pin_file_removes_nothing(house: Wheelhouse, tmp_path: Path) -> None:
    put(house, 1)
    with pytest.raises(WheelhouseError, match="a pin file cannot be read, so nothing was removed"):
        collect(house, Policy(keep_days=0, pins=(tmp_path / "gone.txt",)), dry_run=False)


def test_a_killed_gc_is_finished_by_the_next_change(
    house: Wheelhouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    for build in (1, 2, 3, 4):
        put(house, build)
    policy = Policy(keep_days=0, keep_generations=1)
    real = os.fsync
    left = 4

    def die_in_time(descriptor: int) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise KeyboardInterrupt
        real(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", die_in_time)
        with pytest.raises(KeyboardInterrupt):
            collect(house, policy, dry_run=False)
    put(house, 5)
    collect(house, policy, dry_run=False)
    assert verify(house).findings == ()
