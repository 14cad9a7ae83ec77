"""A build that is killed at every compiler that it starts, and one that finds the disk full."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from buildworld import World
from sglwheel.build import buildtree
from sglwheel.build.buildtree import BuildTree
from sglwheel.errors import BuildError

pytestmark = pytest.mark.integration

RUNNER = """
import os, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from buildworld import World
Path(sys.argv[4]).write_text(str(os.getpid()))
World(Path(sys.argv[2]), environment={"CXX": sys.argv[3]}).build(jobs=1)
"""
# Stands for the compiler. In the n-th run the n-th compiler that is started ends everything, as a power loss
# does: the tool, ninja, CMake and itself.
COMPILER = """
import os, signal, sys
from pathlib import Path
here = Path(__file__).parent
runner, counted, at = here / "runner", here / "counted", int((here / "at").read_text())
with counted.open("a") as stream:
    stream.write("x")
if counted.stat().st_size == at:
    if "-o" in sys.argv:
        Path(sys.argv[sys.argv.index("-o") + 1]).write_bytes(b"torn")
    doomed = [int(runner.read_text())]
    for entry in Path("/proc").iterdir():
        try:
            mark = f"SGLWHEEL_TREE={here}/".encode()
            if entry.name.isdigit() and mark in (entry / "environ").read_bytes():
                doomed.append(int(entry.name))
        except OSError:
            continue
    for process in [*(p for p in doomed if p != os.getpid()), os.getpid()]:
        try:
            os.kill(process, signal.SIGKILL)
        except ProcessLookupError:
            continue
os.execv("/usr/bin/c++", ["/usr/bin/c++", *sys.argv[1:]])
"""


def test_a_build_killed_at_every_compiler_ends_in_the_same_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With a cache most compilers would not be started any more.
    monkeypatch.setenv("SGLWHEEL_COMPILER_CACHE", "off")
    program, compiler = tmp_path / "compiler.py", tmp_path / "c++"
    program.write_text(COMPILER)
    compiler.write_text(f'#!/bin/sh\nexec {sys.executable} -I {program} "$@"\n')
    compiler.chmod(0o755)
    (tmp_path / "run.py").write_text(RUNNER)
    (tmp_path / "at").write_text("0")
    undisturbed = World(tmp_path / "undisturbed", environment={"CXX": str(compiler)}).build(jobs=1)
    tests = Path(__file__).parents[1]
    root = tmp_path / "disturbed"
    kills = 0
    for at in range(1, 40):
        (tmp_path / "at").write_text(str(at))
        (tmp_path / "counted").write_text("")
        argv = [sys.executable, tmp_path / "run.py", tests, root, compiler, tmp_path / "runner"]
        done = subprocess.run(argv, stderr=subprocess.PIPE, text=True, timeout=600)
        if done.returncode == 0:
            break
        assert done.returncode == -9, done.stderr
        kills += 1
    assert kills >= 4, "the compilers were hardly started"
    (result,) = root.rglob("raw/*.whl")
    assert result.read_bytes() == undisturbed.path.read_bytes()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own whose size a test sets: `mount -o remount,size=…`."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk], stderr=subprocess.PIPE, text=True
    )
    if mounted.returncode:
        pytest.skip(f"may not mount a file system here: {mounted.stderr.strip()}")
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


def test_a_disk_that_is_full_at_any_moment_costs_no_finished_object(tmp_path: Path, small_disk: Path) -> None:
    undisturbed = World(tmp_path / "undisturbed").build()
    refused: list[str] = []
    for kib in (128, 192, 256, 320, 448, 640, 1024, 65536):
        subprocess.run(["mount", "-o", f"remount,size={kib}k", small_disk], check=True)
        try:
            built = World(small_disk / "world").build()
            break
        except (BuildError, OSError) as error:
            refused.append(f"{error} {getattr(error, 'next', '')}")
    assert refused, "the disk was never full"
    assert all("No space left" in text or "is full" in text for text in refused), refused
    assert built.path.read_bytes() == undisturbed.path.read_bytes()


def test_what_may_not_have_reached_the_disk_before_a_power_loss_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = BuildTree(tmp_path)
    old, new, note = tmp_path / "cmake/a.o", tmp_path / "cmake/b.o", tmp_path / "cmake/note.txt"
    old.parent.mkdir()
    for path in (old, new, note):
        path.write_text("")
    stamp = new.stat().st_mtime
    os.utime(old, (stamp - 300, stamp - 300))
    assert tree.distrust_unsynced() == 0, "nothing is known of an earlier boot"
    assert tree.distrust_unsynced() == 0, "the same boot: what was written can be read"
    monkeypatch.setattr(buildtree, "boot_id", lambda: "another")
    assert tree.distrust_unsynced() == 1
    assert old.exists() and note.exists() and not new.exists()
    assert tree.distrust_unsynced() == 0
