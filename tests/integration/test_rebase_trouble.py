"""A rebase on a host that fails it: killed at random moments in every phase, and a disk that is full.

SGLWHEEL_SOAK=30 pytest tests/integration/test_rebase_trouble.py -s    thirty, each killed until it ends
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from patchworld import CMAKE, DIRECTORY, World, simple, with_line
from sglwheel import files

pytestmark = pytest.mark.integration
LISTS = f"{DIRECTORY}/CMakeLists.txt"
SOAK = int(os.environ.get("SGLWHEEL_SOAK", "0"))
PROGRAM = "from sglwheel.cli import main; main()"
Words = tuple[str, ...]
START: Words = ("rebase", "r", "--to", "main", "--skip", "fought", "--why", "not in this test")


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Three patches: one that conflicts, two that are carried across a moved directory."""
    world = simple(tmp_path)
    world.make_patch("fought", {LISTS: with_line(CMAKE, 20, "mine(20)")})
    world.make_patch("clean", {f"{DIRECTORY}/new.txt": "new\n"})
    world.make_patch("beside", {LISTS: with_line(with_line(CMAKE, 20, "mine(20)"), 35, "mine(35)")})
    world.recipe()
    path = world.layout.recipes / "r.toml"
    path.write_text(path.read_text().replace("https://example.invalid/up", world.repository.as_uri()))
    theirs = with_line(CMAKE, 20, "theirs(20)")
    world.commit({LISTS: theirs, "aot/x": "x\n"}, "fight")
    world.git("mv", DIRECTORY, "aot/kernel")
    world.commit_all("move")
    return world


def start(root: Path, words: Words, **options: object) -> subprocess.Popen[str]:
    env = {**os.environ, "SGLWHEEL_ROOT": str(root)}
    for name in ("SGLWHEEL_CACHE", "SGLWHEEL_CONFIG", "SGLWHEEL_MIRRORS"):
        env.pop(name, None)
    return subprocess.Popen(  # type: ignore[call-overload, no-any-return]
        [sys.executable, "-c", PROGRAM, *words],
        env=env,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        **options,
    )


def run(root: Path, words: Words, **options: object) -> tuple[int, str]:
    child = start(root, words, **options)
    _, err = child.communicate()
    return child.returncode, err


def copy(world: World, root: Path) -> Path:
    subprocess.run(["cp", "-r", world.layout.root, root], check=True)
    return root


def content(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for folder in ("recipes", "patches")
        for path in sorted((root / folder).rglob("*"))
        if path.is_file()
    }


def phase(root: Path) -> str:
    try:
        state = json.loads((root / ".work/r/rebase.json").read_text())
    except FileNotFoundError:
        return "before or after"
    return f"{state['phase']}, {len(state['done'])} done"


@pytest.mark.skipif(not SOAK, reason="skipped: set SGLWHEEL_SOAK to the number of rebases to kill (minutes)")
def test_killed_at_random_moments_nothing_is_lost(world: World, tmp_path: Path) -> None:
    calm = copy(world, tmp_path / "calm")
    began = time.monotonic()
    code, err = run(calm, START)
    assert code == 0, err
    seconds, expected = time.monotonic() - began, content(calm)
    before = content(world.layout.root)
    seed = int(os.environ.get("SGLWHEEL_SEED", time.time_ns() % 10**6))
    chance = random.Random(seed)
    phases: Counter[str] = Counter()
    for number in range(SOAK):
        root = copy(world, tmp_path / "killed")
        for _attempt in range(200):
            child = start(root, START)
            try:
                child.communicate(timeout=chance.uniform(0, seconds))
            except subprocess.TimeoutExpired:
                # Its git processes with it, as a power loss would.
                os.killpg(child.pid, signal.SIGKILL)
                child.communicate()
                phases[phase(root)] += 1
                if b'series = "s"' in (root / "recipes/r.toml").read_bytes():
                    assert before.items() <= content(root).items(), f"seed {seed}, rebase {number}"
                continue
            if b'series = "s"' not in (root / "recipes/r.toml").read_bytes():
                break
        code, err = run(root, ("rebase", "r", "--continue"))
        assert code == 0 or "no rebase of r is in progress" in err, err
        assert content(root) == expected, f"seed {seed}, rebase {number}"
        subprocess.run(["rm", "-rf", root], check=True)
    print(f"\nseed {seed}: {phases.total()} kills over {SOAK} rebases")
    for name, count in sorted(phases.items()):
        print(f"  {count:4}  {name}")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", place], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"skipped: no file system may be mounted here: {mounted.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


@pytest.mark.parametrize("room", [0, 40, 300])
def test_a_full_disk_is_said_and_made_good(world: World, tmp_path: Path, small_disk: Path, room: int) -> None:
    """`room` kilobytes are left when the rebase begins."""
    calm = copy(world, tmp_path / "calm")
    assert run(calm, START)[0] == 0
    root = copy(world, small_disk / "checkout")
    before = content(root)
    ballast = small_disk / "ballast"
    with ballast.open("wb") as stream:
        free = os.statvfs(small_disk)
        stream.write(bytes(max(free.f_bavail * free.f_frsize - room * 1024, 0)))
    code, err = run(root, START)
    if code:
        assert code in (3, 4), err
        assert "error: " in err and "Traceback" not in err
        # Carried or not, never in between: only the locks may still be those of before.
        carried = content(root)
        if carried != before:
            assert "but not the locks" in err, err
            assert carried.items() - before.items() <= content(calm).items()
    ballast.unlink()
    code, err = run(root, START)
    assert code == 0 or b'series = "s"' not in (root / "recipes/r.toml").read_bytes(), err
    assert content(root) == content(calm)
    assert files.sha256(root / "recipes/r.toml") == files.sha256(calm / "recipes/r.toml")
