"""A disk full, read-only or gone, a wrong clock, names and links that want out: exit 9, nothing lost."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from sglwheel.errors import WheelhouseError
from sglwheel.files import Layout
from sglwheel.wheelhouse import Release, Wheelhouse, publish, record
from sglwheel.wheelhouse.gc import Policy, collect
from sglwheel.wheelhouse.life import yank
from sglwheel.wheelhouse.mirror import mirror
from sglwheel.wheelhouse.verify import verify
from wheelworld import Finished, Report, digest, make_kernel, make_wheel, reports

pytestmark = pytest.mark.integration


def put(root: Path, build: int, **more: str) -> Release:
    wheel = make_kernel(root.parent / "dist", f"0.3.21+cu130.torch2.12.0.sm120a.{build}", **more)
    return publish(*reports(wheel, gpu=True), Layout(root.parent), root=root)


def wheels(root: Path) -> dict[str, str]:
    return {str(path.relative_to(root)): digest(path) for path in sorted(root.rglob("*.whl"))}


# Publishes one wheel and says what the command line would say.
PUBLISHER = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from wheelworld import reports
from sglwheel import console
from sglwheel.errors import SglwheelError
from sglwheel.files import Layout
from sglwheel.wheelhouse import publish
try:
    publish(*reports(Path(sys.argv[2]), gpu=True), Layout(Path("/nowhere")), root=Path(sys.argv[1]))
except SglwheelError as error:
    console.report(error)
    sys.exit(error.exit_code)
"""


def in_own_mounts(script: str, *words: Path | str) -> subprocess.CompletedProcess[str]:
    """Run a shell script where mounting harms nobody; `$publisher` publishes `$1=root $2=wheel`."""
    publisher = PUBLISHER.format(tests=str(Path(__file__).parents[1]))
    head = 'set -eu; publish() { "$PYTHON" -c "$PUBLISHER" "$@"; }\n'
    argv = ["unshare", "-Urm", "bash", "-c", head + script, "bash", *map(str, words)]
    env = {**os.environ, "PUBLISHER": publisher, "PYTHON": sys.executable, "COLUMNS": "200"}
    return subprocess.run(argv, text=True, capture_output=True, check=False, env=env)


@pytest.fixture(scope="module")
def _namespaces() -> None:
    if subprocess.run(["unshare", "-Urm", "true"], check=False, capture_output=True).returncode:
        pytest.skip("no user namespaces here, so no small disk")


FULL = """
mount -t tmpfs -o size=600k small "$1"
publish "$1/house" "$2"
cp -a "$1/house" "$3/before"
head -c "$4" /dev/zero > "$1/filler" || true
publish "$1/house" "$5" && echo fits || echo "code $?"
cp -a "$1/house" "$3/after"
rm "$1/filler"
publish "$1/house" "$5" || echo "again $?"
cp -a "$1/house" "$3/again"
"""


# From no room at all to all that is needed: each leaves off somewhere else.
@pytest.mark.parametrize("filler", [530_000, 480_000, 440_000, 400_000, 360_000])
def test_a_full_disk_loses_nothing_and_the_next_try_completes(
    tmp_path: Path, filler: int, _namespaces: None
) -> None:
    first = make_kernel(tmp_path / "dist", "0.3.21+cu130.torch2.12.0.sm120a.1")
    noise = os.urandom(30_000).hex()
    second = make_kernel(tmp_path / "dist", "0.3.21+cu130.torch2.12.0.sm120a.2", content=f"x = {noise!r}\n")
    (tmp_path / "disk").mkdir()
    done = in_own_mounts(FULL, tmp_path / "disk", first, tmp_path, str(filler), second)
    assert done.returncode == 0, done.stderr
    if "fits" not in done.stdout:
        assert done.stdout == "code 9\n"
        assert "error: the wheelhouse cannot be used: No space left on device" in done.stderr
        assert "has room, then run the same command again" in done.stderr
        assert "Traceback" not in done.stderr
    before = wheels(tmp_path / "before")
    assert before.items() <= wheels(tmp_path / "after").items()
    assert {Path(name).name for name in wheels(tmp_path / "again")} == {first.name, second.name}
    assert verify(Wheelhouse(tmp_path / "again")).findings == ()


def test_a_disk_that_is_full_from_the_start_is_among_them(tmp_path: Path, _namespaces: None) -> None:
    first = make_kernel(tmp_path / "dist")
    (tmp_path / "disk").mkdir()
    script = 'mount -t tmpfs -o size=8k small "$1"; publish "$1/house" "$2"'
    done = in_own_mounts(script, tmp_path / "disk", first)
    assert done.returncode == 9
    assert "No space left on device" in done.stderr


def test_a_read_only_wheelhouse_is_said(tmp_path: Path, _namespaces: None) -> None:
    release = put(tmp_path / "wheelhouse", 1)
    before = wheels(release.root)
    wheel = make_kernel(tmp_path / "dist", "0.3.21+cu130.torch2.12.0.sm120a.2")
    script = 'mount --bind "$1" "$1"; mount -o remount,bind,ro "$1"; publish "$1" "$2"'
    done = in_own_mounts(script, release.root, wheel)
    assert done.returncode == 9
    assert "error: the wheelhouse cannot be used: Read-only file system" in done.stderr
    assert "see that it is there, writable" in done.stderr and "Traceback" not in done.stderr
    assert str(release.root) in done.stderr
    assert wheels(release.root) == before


@pytest.mark.parametrize("verb", ["yank 1 wrong", "rollback cu130", "verify", "gc --yes --keep-days 0"])
def test_every_verb_says_that_a_wheelhouse_is_read_only(tmp_path: Path, verb: str, _namespaces: None) -> None:
    release = put(tmp_path / "wheelhouse", 1)
    script = 'mount --bind "$1" "$1"; mount -o remount,bind,ro "$1"; "$PYTHON" -c "$TOOL" $2'
    tool = "from sglwheel.cli import main; main()"
    head = f"TOOL={tool!r}; "
    done = in_own_mounts(head + script, release.root, f"wheelhouse --root {release.root} {verb}")
    assert done.returncode == 9, done.stderr
    assert "Read-only file system" in done.stderr and "run the same command again" in done.stderr
    assert "Traceback" not in done.stderr
    assert verify(Wheelhouse(release.root)).findings == ()


@pytest.mark.parametrize("instant", [0, 1, 3, 6, 9, 12, 15])
def test_a_wheelhouse_that_vanishes_meanwhile_is_said(
    tmp_path: Path, instant: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, away = tmp_path / "wheelhouse", tmp_path / "unmounted"
    put(root, 1)
    before = wheels(root)
    left, real = instant, os.fsync

    def vanish(descriptor: int) -> None:
        nonlocal left
        real(descriptor)
        left -= 1
        if left == -1:
            root.rename(away)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", vanish)
        with pytest.raises(WheelhouseError, match="the wheelhouse cannot be used: No such file") as caught:
            put(root, 2)
    assert caught.value.exit_code == 9
    assert before.items() <= wheels(away).items()
    # It comes back, as a network drive does.
    shutil.rmtree(root, ignore_errors=True)
    away.rename(root)
    release = put(root, 2)
    assert verify(Wheelhouse(root), repair=True).ok
    assert release.path.is_file()


class Clock:
    """Stands in the place of datetime in `record`."""

    def __init__(self, value: datetime) -> None:
        self.value = value

    def now(self, _zone: object = None) -> datetime:
        return self.value


def test_a_clock_in_the_past_is_refused_before_gc_could_believe_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "wheelhouse"
    first = put(root, 1)
    before = wheels(root)
    with monkeypatch.context() as patch:
        patch.setattr(record, "datetime", Clock(datetime(1970, 1, 1, tzinfo=UTC)))
        with pytest.raises(WheelhouseError, match="this host's clock is in the past") as caught:
            put(root, 2)
        assert caught.value.exit_code == 9
        assert caught.value.where["clock"] == "1970-01-01 00:00:00 UTC"
        assert "set the clock" in str(caught.value.next)
        assert wheels(root) == before
        # What must not wait for a clock goes on, in the order in which it happened.
        told = yank(Wheelhouse(root), first.id, "wrong", force=True).record.events
        assert [event.what for event in told] == ["published", "yanked"]
        assert told[1].when == told[0].when
        assert collect(Wheelhouse(root), Policy(keep_days=0), dry_run=False).removed == (), (
            "it is not old yet"
        )
    with monkeypatch.context() as patch:
        patch.setattr(record, "datetime", Clock(datetime.now(UTC) - timedelta(hours=2)))
        assert put(root, 2).record.serial == 2, "clocks of two builders differ a little"
    assert verify(Wheelhouse(root)).findings == ()


HOSTILE = ["<img src=x>", "a\nb", "\x1b[2Jx", "a b", "..", "ü", "$(id)", "-x", "x" * 300]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_is_refused_or_harmless(tmp_path: Path, name: str) -> None:
    root = tmp_path / "wheelhouse"
    put(root, 1)
    before = wheels(root)
    good = make_wheel(tmp_path / "dist", "x", "1", requires=["torch==2.12.0"])
    try:
        wheel = good.rename(good.with_name(f"{name}-1-py3-none-any.whl"))
    except OSError:
        wheel = good.with_name(f"{name}-1-py3-none-any.whl")
    sha = digest(wheel) if good.parent / wheel.name in good.parent.iterdir() else "0" * 64
    with pytest.raises(WheelhouseError, match="not a wheel to publish") as caught:
        publish(Finished(wheel), Report(sha), Report(sha), Layout(tmp_path), root=root)
    assert caught.value.exit_code == 9
    assert wheels(root) == before


def test_hostile_names_put_there_by_hand_are_found_and_shown_harmlessly(tmp_path: Path) -> None:
    root = tmp_path / "wheelhouse"
    put(root, 1)
    for name in ("\x1b[2Jx.whl", "a\nb.whl", os.fsdecode(b"\xff.whl"), "<script>.whl"):
        (root / name).write_bytes(b"x")
    (root / "builds/notes.txt").write_text("x")
    words = [sys.executable, "-m", "sglwheel.cli", "wheelhouse", "--root", str(root), "verify"]
    words[1:3] = ["-c", "from sglwheel.cli import main; main()"]
    seen = subprocess.run(words, capture_output=True, check=False)
    assert seen.returncode == 9, seen.stderr
    assert b"\x1b" not in seen.stdout
    assert b"\\x1b[2Jx.whl" in seen.stdout and b"a\\nb.whl" in seen.stdout and b"\\udcff.whl" in seen.stdout
    assert seen.stdout.count(b"\n") == 5, seen.stdout
    put(root, 2)
    assert "<script>.whl" not in (root / "index.html").read_text()
    assert verify(Wheelhouse(root), repair=True).ok


def test_links_out_of_the_tree_are_not_followed(tmp_path: Path) -> None:
    root, outside = tmp_path / "wheelhouse", tmp_path / "outside"
    release = put(root, 1)
    shutil.copytree(release.directory, outside)
    (root / "builds/evil").symlink_to(outside)
    flat = root / release.record.filename
    flat.unlink()
    flat.symlink_to("/etc/passwd")
    passwd = Path("/etc/passwd").read_bytes()
    second = put(root, 2)
    assert {item.id for item in map(Wheelhouse(root).release, Wheelhouse(root).ids())} == {
        release.id,
        second.id,
    }
    assert {item.rule for item in verify(Wheelhouse(root)).findings} >= {"symlink"}
    copied = mirror(Wheelhouse(root), str(tmp_path / "copy")).copied
    assert not [path for path in copied if "evil" in path]
    assert verify(Wheelhouse(root), repair=True).ok
    assert flat.is_file() and not flat.is_symlink()
    assert Path("/etc/passwd").read_bytes() == passwd
    assert outside.is_dir()


def test_a_wheelhouse_that_is_no_directory_is_said(tmp_path: Path) -> None:
    (tmp_path / "wheelhouse").write_text("")
    with pytest.raises(WheelhouseError, match="the wheelhouse cannot be used: ") as caught:
        put(tmp_path / "wheelhouse", 1)
    assert caught.value.exit_code == 9
