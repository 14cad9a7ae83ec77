"""A bundle, and everything before compiling from it: in a network namespace that has nothing but loopback."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import tenacity

import indexworld
from indexworld import NIGHTLY, Index
from sglwheel import network, pipeline, vendoring
from sglwheel.bundle import Bundle
from sglwheel.errors import SourceError, UsageError
from sglwheel.files import Layout
from sourceworld import RECIPE, UPSTREAM, World, git

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the fake torch wheels are for CPython 3.11"),
]

LIB = "https://example.invalid/lib"
MORE = f"{LIB}.git"
NIGHT = "2.14.0.dev20261101"
OFFLINE = """
import sys
from pathlib import Path
import uv
from packaging.version import Version
from sglwheel.toolchain import environments, torchpin, uvtool
from sglwheel import pipeline, process, source, toolchain
from sglwheel.errors import ToolchainError
from sglwheel.files import Layout

layout, bundle = Layout(Path(sys.argv[1])), Path(sys.argv[2])
context = pipeline.Context.load(layout, "r", pipeline.Options(offline=True, bundle=bundle))
patched = context.patch()
found = source.dependencies(patched, context.recipe, layout, context.mirrors)
pin = torchpin.pin(context.recipe)
lock = toolchain.Pylocks(context.recipe, pin, layout, context.mirrors).environment()
venv = layout.root / "venv"
process.run([uv.find_uv_bin(), "venv", "--no-config", "--python", sys.executable, venv],
            failure=ToolchainError, env=uvtool.environment())
environments.Supply(layout, context.mirrors, None).install(
    lock, Version("3.11.7"), python=venv / "bin/python", log=layout.root / "log", title="environment")
every = context.kind.fetched(context.checkout, patched)
print(patched.tree, ",".join(sorted({one.name for one in every})), *(one.content for one in found.sources),
      torchpin.read(venv / "lib/python3.11/site-packages").full_version)
"""


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    monkeypatch.setattr(network, "WAIT", tenacity.wait_none())
    world = World(tmp_path / "one")
    lib = world.repository(LIB)
    lib.commit({"include/lib.h": "#pragma once\n", "include/old.h": "#pragma once\n", "LICENSE": "MIT"})
    git(lib.path, "tag", "v1")
    wanted = lib.commit({"include/lib.h": "#pragma once // 2\n", "docs/big.txt": "x" * 50_000})
    up = world.repository(UPSTREAM)
    text = f"FetchContent_Declare(lib GIT_REPOSITORY {LIB} GIT_TAG {wanted})\nFetchContent_Populate(lib)\n"
    text += "include_directories(${lib_SOURCE_DIR}/include)\n"
    # What the patch drops is fetched all the same, to show that the target is there without it: of one
    # repository another commit, by a tag, and by another spelling of the url.
    only = f"FetchContent_Declare(more GIT_REPOSITORY {MORE} GIT_TAG v1)\nFetchContent_Populate(more)\n"
    only += "add_custom_target(flash_ops)\ninclude_directories(${more_SOURCE_DIR}/include)\n"
    tree = {"kernel/CMakeLists.txt": text + only, "LICENSE": "MIT", "other/big.txt": "y" * 50_000}
    commit = up.commit(tree)
    up.commit({"kernel/CMakeLists.txt": text})
    body = git(up.path, "format-patch", "--stdout", "-1", "--no-signature", "--zero-commit", "HEAD")
    trailers = "Nobody calls it.\n\nUpstream-Status: Pending\nProves: target-absent flash_ops\n"
    (world.layout.patches / "s").mkdir()
    (world.layout.patches / "s/series").write_text("drop.patch\n")
    (world.layout.patches / "s/drop.patch").write_text(
        body.replace("\n---\n", f"\n{trailers}---\n", 1) + "\n"
    )
    recipe = RECIPE.format(commit=commit, cmake="", source="").replace('"2.12.0"', f'"{NIGHT}"')
    (world.layout.recipes / "r.toml").write_text(recipe)
    with Index() as index:
        index.tools()
        index.add(NIGHTLY, "torch", indexworld.torch(f"{NIGHT}+cu130"))
        entries = {**index.mirrors.entries, **{url: (path,) for url, path in world.entries.items()}}
        lines = "".join(f'"{url}" = "{places[0]}"\n' for url, places in entries.items())
        (tmp_path / "mirrors.toml").write_text(f"[mirrors]\n{lines}")
        monkeypatch.setenv("SGLWHEEL_CONFIG", str(tmp_path / "mirrors.toml"))
        monkeypatch.delenv("SGLWHEEL_MIRRORS", raising=False)
        yield world


def copy(world: World, name: str) -> Layout:
    """Another checkout with the same recipes and patches, and nothing else."""
    root = world.root.parent / name
    for part in ("recipes", "patches"):
        shutil.copytree(world.root / part, root / part)
    return Layout(root)


def can_unshare() -> bool:
    done = subprocess.run(["unshare", "-rn", "true"], capture_output=True, check=False)
    return done.returncode == 0


def test_vendor_and_work_without_network(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    into = world.root.parent / "bundle"
    monkeypatch.chdir(world.root.parent)
    made = vendoring.vendor(world.layout, "r", Path("bundle"))
    made.verify()
    assert {"recipes/r.toml", "recipes/r.lock", "recipes/pylock.r.toml", "LICENSES.md"} <= set(made.files)
    assert not any(b"127.0.0.1" in path.read_bytes() for path in into.rglob("*") if path.is_file())
    packed = sum(path.stat().st_size for path in into.glob("git/**/*.pack"))
    assert packed < 5_000, "only what is read"
    first = (into / "bundle.json").read_bytes()
    assert "more" not in (world.layout.recipes / "r.lock").read_text()

    again = vendoring.vendor(copy(world, "two"), "r", world.root.parent / "bundle-2")
    assert (again.root / "bundle.json").read_bytes() == first, "the same from another store"
    (into / "LICENSES.md").unlink()
    vendoring.vendor(world.layout, "r", into)
    assert (into / "bundle.json").read_bytes() == first, "completed"

    expected = pipeline.Context.load(world.layout, "r").patch().tree
    if not can_unshare():
        pytest.skip("no network namespaces here")
    offline = copy(world, "three")
    shutil.move(world.root, world.root.with_name("gone"))
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(offline.root),
        "UV_CACHE_DIR": str(offline.root / "uv"),
    }
    done = subprocess.run(
        ["unshare", "-rn", sys.executable, "-c", OFFLINE, str(offline.root), str(into)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    tree, names, content, torch = done.stdout.split()
    assert names == "lib,more", "also what only the tree without the patch fetches"
    assert (tree, torch) == (expected, f"{NIGHT}+cu130")
    assert len(content) == 40


def test_a_damaged_or_foreign_bundle_is_refused(world: World) -> None:
    into = world.root.parent / "bundle"
    made = vendoring.vendor(world.layout, "r", into)
    pack = next(into.glob("git/**/*.pack"))
    pack.chmod(0o644)
    pack.write_bytes(pack.read_bytes() + b"x")
    with pytest.raises(SourceError) as caught:
        made.verify()
    assert str(pack.relative_to(into)) in caught.value.where
    (world.layout.recipes / "r.toml").write_text((world.layout.recipes / "r.toml").read_text() + "# more\n")
    with pytest.raises(SourceError, match=r"another recipes/r\.toml"):
        made.fits(world.layout)
    data = json.loads((into / "bundle.json").read_text())
    (into / "bundle.json").write_text(json.dumps({**data, "schema": 9}))
    with pytest.raises(UsageError, match="is no bundle"):
        Bundle.open(into)
    assert git(world.root / "upstreams/lib", "status", "--short") == ""


def test_a_bundle_as_one_file(world: World) -> None:
    target = world.root.parent / "bundle.tar.zst"
    made = vendoring.vendor(world.layout, "r", target)
    first = target.read_bytes()
    stale = made.root / "wheels/torch-1.0-py3-none-any.whl"
    stale.write_bytes(b"of another lock")
    target.unlink()
    assert stale.name not in str(vendoring.vendor(world.layout, "r", target).files)
    assert target.read_bytes() == first, "the same bytes for the same content"
    scratch = world.root.parent / "scratch"
    found = Bundle.at(target, scratch)
    found.verify()
    found.fits(world.layout)
    assert found.files == made.files and found.root.parent == scratch
    assert Bundle.at(target, scratch).root == found.root, "unpacked once"
    target.write_bytes(first[: len(first) // 2])
    with pytest.raises(SourceError, match=r"bundle\.tar\.zst is damaged"):
        Bundle.at(target, scratch)
    assert [path.name for path in scratch.iterdir()] == [found.root.name]
