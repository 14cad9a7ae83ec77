"""What the bench holds governed builds against: real trees, as real CMake makes them, by ninja alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from buildworld import DATE, World
from sglwheel import build, cli
from sglwheel.bench import Setting, plain
from sglwheel.build.buildtree import BuildTree
from sglwheel.errors import BuildError, UsageError

pytestmark = pytest.mark.integration


def configured(world: World) -> BuildTree:
    listed = build.configure(
        world.recipe, world.patched, world.dependencies, world.env, world.layout, date=DATE
    )
    return BuildTree(listed.parents[1])


def ninja(world: World, tree: BuildTree) -> plain.Ran:
    tool = world.env.bin / "ninja"
    return plain.ninja(tree, tool, world.env.environment, slots=2, log=world.root / "plain.log")


def killing(tree: BuildTree, unless: str) -> None:
    """Let compilers be killed as the kernel does it, and the shell above tell; `unless` is a condition."""
    rules = tree.cmake / "CMakeFiles" / "rules.ninja"
    killed = f"sh -c '{unless} || kill -9 $$$$' && "
    rules.write_text(rules.read_text().replace("${CODE_CHECK}", killed))


def test_nothing_stands_in_front_of_the_compilers_and_all_is_built(tmp_path: Path) -> None:
    world = World(tmp_path)
    tree = configured(world)
    # Who asked for admission here would find nobody; who asked the cache would leave its log.
    for program in ("launch.py", "cached.py"):
        (tree.path / program).write_text("raise SystemExit(1)\n")
    ran = ninja(world, tree)
    assert (tree.cmake / "tiny.abi3.so").is_file() and (tree.cmake / "libstray.a").is_file()
    assert ran.starts == 1 and ran.seconds > 0 and ran.cpu > 0
    assert "launch.py" in (tree.cmake / "build.ninja").read_text()


def test_who_was_killed_is_started_again_as_a_user_would(tmp_path: Path) -> None:
    world = World(tmp_path)
    tree = configured(world)
    mark = tmp_path / "killed"
    killing(tree, unless=f"! mkdir {mark} 2>/dev/null")
    ran = ninja(world, tree)
    assert ran.starts == 2 and mark.is_dir()
    assert (tree.cmake / "tiny.abi3.so").is_file()


def test_who_is_killed_every_time_is_named(tmp_path: Path) -> None:
    world = World(tmp_path)
    tree = configured(world)
    killing(tree, unless="false")
    with pytest.raises(BuildError, match=r"in 5 starts: the compiler of .* was killed") as caught:
        ninja(world, tree)
    assert caught.value.next is not None and "add swap" in caught.value.next


def test_what_does_not_compile_is_not_started_again(tmp_path: Path) -> None:
    world = World(tmp_path, files={"units/two.cpp": "int two() { return missing; }\n"})
    with pytest.raises(BuildError, match=r"units/two\.cpp does not compile: .*missing") as caught:
        ninja(world, configured(world))
    assert caught.value.log is not None and caught.value.log.read_text().count("$ ") == 1


def test_only_one_run_that_compiled_everything_is_held_against_it(tmp_path: Path, capsys) -> None:
    for part in ("recipes", "patches"):
        (tmp_path / part).mkdir()
    with pytest.raises(UsageError, match="nothing was built here in one run"):
        list(plain.plain(Setting(World(tmp_path).layout, tmp_path)))
    world = World(tmp_path)
    world.build()
    (tmp_path / "recipes" / "tiny.toml").write_text(world.text)
    recording = next((tmp_path / ".work" / "tiny" / "logs").glob("*.jsonl"))
    recording.write_text(recording.read_text() * 2)
    with pytest.raises(UsageError):
        list(plain.plain(Setting(world.layout, tmp_path)))
    assert "skipped: tiny: its last build was not one run" in capsys.readouterr().err


def test_a_recipe_that_was_never_built_is_named(tmp_path: Path, monkeypatch, capsys) -> None:
    for part in ("recipes", "patches"):
        (tmp_path / part).mkdir()
    monkeypatch.setenv("SGLWHEEL_ROOT", str(tmp_path))
    with pytest.raises(SystemExit) as ended:
        cli.main(["bench", "plain", "--recipe", "absent"])
    assert ended.value.code == UsageError("").exit_code
    assert "no recording of a build of absent" in capsys.readouterr().err
