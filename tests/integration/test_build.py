"""Building with the real uv, scikit-build-core, CMake, ninja and compiler on a tiny project."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import psutil
import pytest

from buildworld import RECIPE, World
from sglwheel import files
from sglwheel.build import happened
from sglwheel.build.costs import Costs
from sglwheel.errors import BuildError
from sglwheel.files import Layout

pytestmark = pytest.mark.integration

RUNNER = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job has it ignored
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from buildworld import World
from sglwheel.errors import SglwheelError
world = World(Path(sys.argv[2]), environment={"TINY_HOLD": sys.argv[3]})
try:
    print(world.build(jobs=1))
except SglwheelError as error:
    print(error.what)
    sys.exit(error.exit_code)
"""


def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def objects(tree: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in (tree / "cmake").rglob("*.o")}


def sleepers(root: Path) -> list[psutil.Process]:
    """Compilers of a world that hang, by the variable that marks a build's processes."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if process.info["cmdline"] == ["sleep", "600"]:
            with contextlib.suppress(psutil.Error):
                if process.environ().get("SGLWHEEL_TREE", "").startswith(str(root)):
                    found.append(process)
    return found


def test_builds_once_and_holds_only_what_belongs(tmp_path: Path) -> None:
    world = World(tmp_path)
    built = world.build()
    assert not built.reused and built.steps == 6
    assert built.peak_bytes >= 0 and built.cpu_seconds > 0
    assert names(built.path) == {"tiny/__init__.py", "tiny/tiny.abi3.so"}
    again = world.build()
    assert again.reused and again.path == built.path and again.seconds == built.seconds
    with zipfile.ZipFile(built.path) as archive:
        library = archive.read("tiny/tiny.abi3.so")
    assert b"./source/kernel/units/one.cpp" in library
    assert str(tmp_path).encode() not in library, "a path of this host is in the library"
    # Another packing repacks, and compiles nothing.
    before = objects(built.tree)
    world.text = RECIPE.replace('"lib/**"', '"nothing/**"')
    repacked = world.build()
    assert not repacked.reused and repacked.tree == built.tree
    assert "lib/libstray.a" in names(repacked.path)
    assert objects(built.tree) == before
    # A wheel that changed on disk is made again.
    repacked.path.write_bytes(b"torn")
    assert zipfile.is_zipfile(world.build().path)
    # Other options are another tree; the first stays.
    world.text = RECIPE.replace("TINY_OPTION = true", 'TINY_OPTION = true\nOTHER = "a b;c"')
    other = world.build()
    assert other.tree != built.tree and built.tree.is_dir()
    assert "OTHER:UNINITIALIZED=a b;c" in (other.tree / "cmake" / "CMakeCache.txt").read_text()


def test_a_tree_that_was_deleted_takes_its_recording_along(tmp_path: Path) -> None:
    world = World(tmp_path)
    first = world.build()
    shutil.rmtree(first.tree)
    assert world.build().tree == first.tree
    (recording,) = (tmp_path / ".work" / "tiny" / "logs").glob("*.jsonl")
    history = happened.read(recording)
    assert len(history.sessions) == 1 and len(history.compiles) == 4


def test_compile_error_names_unit_and_line_and_the_fix_goes_on(tmp_path: Path) -> None:
    world = World(tmp_path, files={"units/two.cpp": "int two() {\n    return missing;\n}\n"})
    with pytest.raises(BuildError) as caught:
        world.build()
    error = caught.value
    assert error.what.startswith("units/two.cpp does not compile:") and "missing" in error.what
    assert error.where["error"].startswith("kernel/units/two.cpp:2: ")
    assert error.log is not None and "missing" in error.log.read_text()
    assert not list(tmp_path.rglob("result.json"))


def test_killed_compiler_is_named(tmp_path: Path) -> None:
    fake = tmp_path / "c++"
    fake.write_text('#!/bin/sh\ncase "$*" in *units/two.cpp*) kill -KILL $$;; esac\nexec /usr/bin/c++ "$@"\n')
    fake.chmod(0o755)
    with pytest.raises(BuildError, match=r"the compiler of units/two.cpp was killed"):
        World(tmp_path / "world", environment={"CXX": str(fake)}).build()


def test_a_compiler_that_was_killed_once_is_started_again_and_nobody_notices(tmp_path: Path) -> None:
    fake, mark = tmp_path / "c++", tmp_path / "killed"
    fake.write_text(
        f'#!/bin/sh\ncase "$*" in *units/two.cpp*) [ -e {mark} ] ||'
        f' {{ touch {mark}; kill -KILL $$; }};; esac\nexec /usr/bin/c++ "$@"\n'
    )
    fake.chmod(0o755)
    built = World(tmp_path / "world", environment={"CXX": str(fake)}).build()
    assert mark.exists() and built.path.is_file()
    outcomes = [item.outcome for item in happened.read(built.log.with_suffix(".jsonl")).compiles]
    assert sorted(outcomes) == ["done"] * 4 + ["killed"]


def test_a_unit_that_no_memory_here_could_hold_is_refused_before_anything_starts(tmp_path: Path) -> None:
    world = World(tmp_path)
    history = world.layout.work / world.recipe.id / "units.jsonl"
    history.parent.mkdir(parents=True)
    history.write_text(
        Costs().line("CMakeFiles/tiny.dir/units/one.cpp.o", code=0, seconds=1, cpu=1, peak=1 << 50)
    )
    with pytest.raises(BuildError, match=r"the compiler of units/one.cpp needed 1125.9 TB") as caught:
        world.build()
    assert "more memory" in (caught.value.next or "")
    assert not list(world.layout.work.rglob("*.cpp.o"))


def test_configure_error_names_the_line(tmp_path: Path) -> None:
    world = World(tmp_path, text=RECIPE.replace("TINY_OPTION = true", "TINY_OPTION = false"))
    with pytest.raises(BuildError) as caught:
        world.build()
    assert caught.value.what == "CMake cannot configure: TINY_OPTION must be ON"
    assert caught.value.where == {"file": "CMakeLists.txt:6"}


def test_no_build_is_started_in_a_tree_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path)
    built = world.build()
    real = files.locked

    def impatient(path: Path, **options: object) -> object:
        return real(path, **{**options, "timeout": 0})  # type: ignore[arg-type]

    monkeypatch.setattr(files, "locked", impatient)
    with (
        real(built.tree.with_name(built.tree.name + ".lock"), failure=BuildError, what="tree"),
        pytest.raises(BuildError, match=r"build-\w+ is in use by process \d+"),
    ):
        world.build()


def ended(process: psutil.Process) -> bool:
    """Gone, or waiting for an init process that is slow to reap."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_ended_run_is_continued(tmp_path: Path, number: signal.Signals) -> None:
    """The compiler of unit `two` stops half-way through its object; then everything is ended."""
    hold, fake, root = tmp_path / "hold", tmp_path / "c++", tmp_path / "world"
    fake.write_text(
        '#!/bin/sh\ncase "$*" in *units/two.cpp*) if [ -e "$TINY_HOLD" ]; then\n'
        'while [ "$1" != -o ]; do shift; done; echo torn > "$2"; sleep 600; fi;; esac\n'
        'exec /usr/bin/c++ "$@"\n'
    )
    fake.chmod(0o755)
    hold.touch()
    runner = tmp_path / "run.py"
    runner.write_text(
        RUNNER.replace('{"TINY_HOLD": sys.argv[3]}', '{"TINY_HOLD": sys.argv[3], "CXX": sys.argv[4]}')
    )
    argv = [sys.executable, runner, Path(__file__).parents[1], root, hold, fake]
    first = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, start_new_session=True)
    deadline = time.monotonic() + 120
    while not sleepers(root):
        assert time.monotonic() < deadline and first.poll() is None
        time.sleep(0.05)
    (sleeper,) = sleepers(root)
    os.kill(first.pid, number)
    said, _ = first.communicate(timeout=120)
    hold.unlink()
    if number is not signal.SIGKILL:
        assert (first.returncode, said) == (130, "interrupted\n")
        assert ended(sleeper)
    work = Layout(root).work / "tiny"
    (tree,) = [path for path in work.iterdir() if path.name.startswith("build-") and path.is_dir()]
    torn = next(tree.rglob("two.cpp.o"), None)
    assert torn is not None or number is not signal.SIGKILL
    before = objects(tree)
    second = subprocess.run(argv, stdout=subprocess.PIPE, text=True, timeout=300)
    assert second.returncode == 0, second.stdout
    assert ended(sleeper), "the second run ends what the first left"
    after = objects(tree)
    assert set(after) == {"one.cpp.o", "two.cpp.o", "three.cpp.o", "stray.cpp.o"}
    kept = {name for name in before if before[name] == after[name]}
    assert "two.cpp.o" not in kept, "a torn object was trusted"
    log = "".join(path.read_text() for path in (work / "logs").iterdir())
    compiled = [line for line in log.splitlines() if "Building CXX object" in line and "[0/" not in line]
    assert kept == set(before) - {"two.cpp.o"}, compiled
    result = json.loads((tree / "result.json").read_text())
    assert result["seconds"] > 0


def test_nothing_reaches_the_network(tmp_path: Path) -> None:
    """CMake would write what it sees of the environment; proxies and credentials are not there."""
    cmake = World(tmp_path / "x").files["CMakeLists.txt"] + (
        'execute_process(COMMAND env OUTPUT_FILE "${CMAKE_BINARY_DIR}/environment.txt")\n'
    )
    world = World(
        tmp_path,
        files={"CMakeLists.txt": cmake},
        environment={"https_proxy": "http://user:secret@proxy.invalid", "NO_PROXY": "*"},
    )
    seen = (world.build().tree / "cmake" / "environment.txt").read_text()
    assert "proxy" not in seen.lower() and "secret" not in seen
    assert "SOURCE_DATE_EPOCH=1772798400" in seen
    assert "TORCH_CUDA_ARCH_LIST=12.0a" in seen
