"""A fingerprint depends on all that can change an object, and on nothing else."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from buildworld import RECIPE, World
from sglwheel.build import fingerprint
from sglwheel.build.buildtree import BuildTree, Result


def source(name: str, **values: Any) -> Any:
    base = {
        "tree": "a" * 40,
        "content": "c" * 64,
        "sha256": None,
        "commit": "b" * 40,
        "path": Path("/store"),
        "via": "origin",
    }
    return SimpleNamespace(name=name, **(base | values))


def inputs(world: World, **env: Any) -> dict[str, Any]:
    changed = SimpleNamespace(**{**vars(world.env), **env})
    return fingerprint.inputs(world.recipe, world.patched, world.dependencies, changed)


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"text": RECIPE.replace("TINY_OPTION = true", "TINY_OPTION = false")}, ["cmake.TINY_OPTION"]),
        ({"text": RECIPE.replace('"12.0a"', '"12.1a"')}, ["architectures"]),
        ({"text": RECIPE.replace("[wheel]", '[build.environment]\nFOO = "1"\n[wheel]')}, ["environment.FOO"]),
        ({"tree": "9" * 40}, ["source.tree"]),
        ({"sources": (source("x"),)}, ["dependencies.x"]),
        # Not an object's business: prose, comments, packing, how often it was released, the size budget.
        ({"text": RECIPE.replace('summary = "tiny"', 'summary = "other"  # why')}, []),
        ({"text": RECIPE.replace("build = 1", "build = 2").replace('"lib/**"', '"x/**"')}, []),
    ],
)
def test_what_counts(tmp_path: Path, change: dict[str, Any], names: list[str]) -> None:
    before, after = inputs(World(tmp_path)), inputs(World(tmp_path, **change))
    assert fingerprint.changes(before, after) == names
    assert (fingerprint.digest(before) == fingerprint.digest(after)) is (not names)


def test_toolchain_counts_by_identity_and_a_source_by_content(tmp_path: Path) -> None:
    world = World(tmp_path, sources=(source("x"),))
    assert fingerprint.changes(inputs(world), inputs(world, identity="6" * 64)) == ["toolchain"]
    moved = World(tmp_path, sources=(source("x", path=Path("/elsewhere"), via="mirror"),))
    assert inputs(moved) == inputs(world)
    # The same commit with another set of directories is other content.
    wider = World(tmp_path, sources=(source("x", content="d" * 64),))
    assert fingerprint.changes(inputs(world), inputs(wider)) == ["dependencies.x"]


values = st.dictionaries(st.text(max_size=8), st.booleans() | st.integers() | st.text(max_size=8), max_size=6)


@given(values)
def test_digest_ignores_order(value: dict[str, Any]) -> None:
    assert fingerprint.digest(value) == fingerprint.digest(dict(reversed(list(value.items()))))


@given(values, values)
def test_changes_are_named_exactly_when_digests_differ(one: dict[str, Any], two: dict[str, Any]) -> None:
    # JSON tells 1 from true where Python does not.
    differ = fingerprint.digest(one) != fingerprint.digest(two)
    if fingerprint.changes(one, two):
        assert differ
    elif not any(isinstance(value, bool) for value in [*one.values(), *two.values()]):
        assert not differ


def test_a_result_counts_only_for_its_wheel_and_packing(tmp_path: Path) -> None:
    tree = BuildTree(tmp_path / "build-1")
    tree.raw.mkdir(parents=True)
    wheel = tree.raw / "x.whl"
    wheel.write_bytes(b"wheel")
    digest = "df88a0309caa1ab95c2bf7cc48a6d00a60edfe5d80a6ffd1f1c2c0a3e5b5ffa1"
    result = Result("packing", wheel.name, digest, 1.0, 2.0, 3, 4)
    tree.finish(result)
    assert tree.finished("packing") is None, "its digest is another"
    from sglwheel import files

    tree.finish(Result("packing", wheel.name, files.sha256(wheel), 1.0, 2.0, 3, 4))
    assert tree.finished("packing") is not None
    assert tree.finished("other") is None
    (tree.path / "result.json").write_text('{"packing": "pac')
    assert tree.finished("packing") is None


def test_a_torn_object_is_missing_until_ninja_logged_it(tmp_path: Path) -> None:
    tree = BuildTree(tmp_path)
    tree.cmake.mkdir()
    for name in ("a.o", "b.o"):
        (tree.cmake / name).touch()
    assert tree.missing(["a.o", "b.o"]) == ["a.o", "b.o"]
    (tree.cmake / ".ninja_log").write_text("# ninja log v7\n1\t2\t3\ta.o\tffff\n1\t2\t3\tc.o\tffff\n1\t2")
    assert tree.missing(["a.o", "b.o", "c.o"]) == ["b.o", "c.o"]
