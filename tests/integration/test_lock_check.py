"""Locks that were written, tampered with, and found out, also when their checksums were adjusted."""

from __future__ import annotations

import hashlib
import io
import os
import re
import shutil
import sys
import tarfile
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import tenacity
import tomlkit

import indexworld
from indexworld import NIGHTLY, PYPI, Index
from sglwheel import files, network, recipe, source
from sglwheel.errors import SourceError, ToolchainError, UsageError
from sglwheel.locks import findings, locking
from sglwheel.locks.findings import Finding
from sglwheel.locks.lockcheck import LockCheck
from sglwheel.mirrors import Mirrors
from sglwheel.recipe import Recipe
from sglwheel.source import sourcelock
from sglwheel.toolchain import packages, wheels
from sourceworld import RECIPE, UPSTREAM, World, git

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the fake torch wheels are for CPython 3.11"),
]

LIB = "https://example.invalid/lib"
ARCHIVE = "https://example.invalid/files/data.tar"
NIGHT = "2.14.0.dev20261101"


@dataclass
class Locked:
    """A recipe with all its locks."""

    world: World
    index: Index
    tree: Path

    @property
    def recipe(self) -> Recipe:
        return recipe.load(self.world.layout, "r")

    @property
    def mirrors(self) -> Mirrors:
        return self.index.mirrors.with_entries(self.world.entries)

    @property
    def lock(self) -> Path:
        return self.world.layout.recipes / "r.lock"

    @property
    def pylock(self) -> Path:
        return self.world.layout.recipes / "pylock.r.toml"

    def write(self, *, upgrade: bool = False) -> tuple[locking.Change, ...]:
        layout, mirrors = self.world.layout, self.mirrors
        checkout = source.checkout(self.recipe, layout, mirrors)
        return locking.write(self.recipe, checkout, self.tree, layout, mirrors, upgrade=upgrade)

    def check(self, *, online: bool = True) -> tuple[Finding, ...]:
        mirrors = self.mirrors if online else self.mirrors.without_network()
        return LockCheck(self.recipe, self.world.layout, mirrors, online).run(self.tree)

    def edit(self, path: Path, old: str, new: str, *, adjust: bool) -> None:
        """Change a lock by hand; with `adjust` its hash and the checksum are made to fit."""
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))
        if adjust:
            document = tomlkit.parse(self.lock.read_text())
            table = document["lock"]
            assert isinstance(table, dict)
            table["files"][self.pylock.name] = files.sha256(self.pylock)
            table["checksum"] = sourcelock.checksum(document.unwrap())
            self.lock.write_text(tomlkit.dumps(document))

    def red(self, *names: str, online: bool = True) -> str:
        """The check finds something, and names these files; what it says."""
        found = self.check(online=online)
        error = findings.error("r", found)
        assert found and error.exit_code == 5
        assert {name for name in names if not any(name in file for file in error.where)} == set()
        return " ".join(finding.what for finding in found)


@pytest.fixture
def locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Locked]:
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    monkeypatch.setattr(network, "WAIT", tenacity.wait_none())
    world = World(tmp_path)
    up = world.repository(UPSTREAM)
    commit = up.commit({"kernel/CMakeLists.txt": "", "LICENSE": "MIT"})
    lib = world.repository(LIB)
    lib.commit({"include/lib.h": "#pragma once\n", "LICENSE": "MIT"})
    git(lib.path, "tag", "v1")
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        member = tarfile.TarInfo("data/d.h")
        member.size = 1
        tar.addfile(member, io.BytesIO(b"d"))
    (tmp_path / "files").mkdir()
    (tmp_path / "files/data.tar").write_bytes(out.getvalue())
    world.entries[ARCHIVE.rpartition("/")[0]] = str(tmp_path / "files")
    tree = world.tree(
        {
            "CMakeLists.txt": f"FetchContent_Declare(lib GIT_REPOSITORY {LIB} GIT_TAG v1)\n"
            "FetchContent_Populate(lib)\ninclude_directories(${lib_SOURCE_DIR}/include)\n"
            f"FetchContent_Declare(data URL {ARCHIVE})\nFetchContent_MakeAvailable(data)\n"
        }
    )
    text = RECIPE.format(commit=commit, cmake="", source="").replace('"2.12.0"', f'"{NIGHT}"')
    (world.layout.recipes / "r.toml").write_text(text)
    with Index() as index:
        index.tools()
        index.add(NIGHTLY, "torch", indexworld.torch(f"{NIGHT}+cu130"))
        made = Locked(world, index, tree)
        made.write()
        # What a build would have left in the store.
        lock = packages.read(made.pylock)
        assert lock is not None
        wheels.keep([one for one in wheels.every(lock) if one.name == "torch"], world.layout, made.mirrors)
        yield made


def test_written_locks_agree(locked: Locked) -> None:
    assert locked.check() == () == locked.check(online=False)
    data = tomllib.loads(locked.lock.read_text())
    assert set(data["lock"]["files"]) == {"pylock.r.toml", "pylock.r-toolkit.toml"}
    assert data["upstream"]["tree"] and [one["name"] for one in data["source"]] == ["data", "lib"]
    before = {path: path.read_bytes() for path in locked.world.layout.recipes.iterdir()}
    assert locking.render(locked.write()) == ["nothing changed"]
    assert {path: path.read_bytes() for path in locked.world.layout.recipes.iterdir()} == before


@pytest.mark.parametrize("adjust", [False, True])
def test_a_tampered_source_pin(locked: Locked, adjust: bool) -> None:
    lib = locked.world.root / "upstreams/lib"
    old = git(lib, "rev-parse", "HEAD")
    (lib / "evil.h").write_text("")
    git(lib, "add", "--all")
    git(lib, "commit", "-qm", "evil")
    new = git(lib, "rev-parse", "HEAD")
    locked.edit(locked.lock, old, new, adjust=adjust)
    said = locked.red("recipes/r.lock")
    assert "the tree of" in said
    before, after = git(lib, "rev-parse", f"{old}^{{tree}}"), git(lib, "rev-parse", "HEAD^{tree}")
    locked.edit(locked.lock, before, after, adjust=adjust)
    said = locked.red("recipes/r.lock")
    assert "v1 is" in said and "at its remote" in said
    assert ("was edited" in said) is not adjust
    if not adjust:
        with pytest.raises(ToolchainError, match="was edited"):
            source.dependencies(locked.tree, locked.recipe, locked.world.layout, locked.mirrors)


@pytest.mark.parametrize("adjust", [False, True])
def test_a_tampered_archive_pin(locked: Locked, adjust: bool) -> None:
    digest = files.sha256(locked.world.root / "files/data.tar")
    locked.edit(locked.lock, digest, "0" * 64, adjust=adjust)
    assert "has other content" in locked.red("recipes/r.lock") + str(locked.check())


@pytest.mark.parametrize("adjust", [False, True])
@pytest.mark.parametrize("name", ["torch", "cmake"])
def test_a_tampered_package(locked: Locked, adjust: bool, name: str) -> None:
    text = locked.pylock.read_text()
    block = text[text.index(f'name = "{name}"') :]
    match = re.search(r'sha256 = "([0-9a-f]{64})"', block)
    assert match is not None
    locked.edit(locked.pylock, match[1], hashlib.sha256(b"evil").hexdigest(), adjust=adjust)
    assert "says SHA256" in locked.red("recipes/pylock.r.toml")
    if not adjust:
        assert "was edited" in locked.red("recipes/pylock.r.toml", online=False)


def test_a_package_left_out_or_replaced(locked: Locked) -> None:
    locked.index.add(PYPI, "setuptools", indexworld.wheel("setuptools", "81.0.0", requires=["evil"]))
    text = locked.pylock.read_text()
    start = text.index('[[packages]]\nname = "ninja"')
    end = text.index("[[packages]]", start + 5)
    locked.edit(locked.pylock, text[start:end], "", adjust=True)
    assert "ninja 1.13.0 is missing" in locked.red("recipes/pylock.r.toml")


def test_a_tampered_stored_wheel(locked: Locked) -> None:
    (path,) = (locked.world.layout.cache / "wheels").glob("*/torch-*.whl")
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    locked.red(path.name, online=False)


def test_tampered_stored_sources(locked: Locked) -> None:
    cache = locked.world.layout.cache
    (header,) = cache.glob("sources/*/include/lib.h")
    times = header.stat().st_mtime_ns
    header.chmod(0o644)
    header.write_text("#pragma evil\n")
    os.utime(header, ns=(times, times))
    header.chmod(0o444)
    locked.red("include/lib.h", online=False)
    (unpacked,) = cache.glob("urls/*/tree/data/d.h")
    unpacked.write_bytes(b"e")
    locked.red("include/lib.h", "data/d.h", online=False)
    (archive,) = cache.glob("urls/*/archive")
    archive.write_bytes(b"?" + archive.read_bytes()[1:])
    locked.red("/archive", online=False)
    pack = next(cache.glob("git/*lib*.git/objects/pack/*.pack"))
    pack.chmod(0o644)
    content = bytearray(pack.read_bytes())
    content[len(content) // 2] ^= 1
    pack.write_bytes(content)
    locked.red(pack.name, online=False)


def test_an_edited_archive_tree_is_unpacked_again(locked: Locked) -> None:
    (unpacked,) = locked.world.layout.cache.glob("urls/*/tree/data/d.h")
    unpacked.write_bytes(b"evil")
    source.dependencies(locked.tree, locked.recipe, locked.world.layout, locked.mirrors)
    assert unpacked.read_bytes() == b"d"


def test_a_dropped_nightly_is_no_finding_while_it_is_stored(
    locked: Locked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_CACHE_DIR", str(locked.world.root / "uv-2"))
    locked.index.remove(NIGHTLY, "torch", NIGHT)
    assert locked.check() == ()
    (path,) = (locked.world.layout.cache / "wheels").glob("*/torch-*.whl")
    path.unlink()
    assert "no longer has it, nor has the store" in locked.red("recipes/pylock.r.toml")


def test_upgrade_says_what_changed(locked: Locked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_CACHE_DIR", str(locked.world.root / "uv-2"))
    lib = locked.world.root / "upstreams/lib"
    old = git(lib, "rev-parse", "HEAD")
    git(lib, "commit", "-q", "--allow-empty", "-m", "next")
    git(lib, "tag", "-f", "v1")
    locked.index.add(PYPI, "setuptools", indexworld.wheel("setuptools", "81.0.0"))
    locked.edit(locked.lock, old, "f" * 40, adjust=False)
    lines = locking.render(locked.write(upgrade=True))
    assert lines[0] == "recipes/pylock.r.toml"
    assert re.fullmatch(r"  ~ setuptools  80\.0\.0 \(1 wheel, .*\) → 81\.0\.0 \(1 wheel, .*\)", lines[1])
    assert lines[2:] == [
        "recipes/r.lock",
        f"  ~ lib  v1 = ffffffffffff → v1 = {git(lib, 'rev-parse', 'HEAD')[:12]}",
    ]
    assert locked.check() == ()


def without_data(locked: Locked) -> tuple[dict[str, str], str]:
    """A host that cannot reach the archive and has its content elsewhere; what its bytes hash to."""
    digest = files.sha256(locked.world.root / "files/data.tar")
    shutil.rmtree(locked.world.layout.cache / "urls")
    (locked.world.root / "files/data.tar").rename(locked.world.root / "gone.tar")
    elsewhere = locked.world.root / "elsewhere"
    (elsewhere / "data").mkdir(parents=True)
    (elsewhere / "data/d.h").write_text("d")
    locked.lock.unlink()
    return {"data": str(elsewhere)}, digest


def test_a_source_that_only_others_can_fetch(locked: Locked) -> None:
    overrides, digest = without_data(locked)
    layout, mirrors = locked.world.layout, locked.mirrors
    checkout = source.checkout(locked.recipe, layout, mirrors)

    def write(**published: str) -> None:
        locking.write(
            locked.recipe, checkout, locked.tree, layout, mirrors, overrides=overrides, published=published
        )

    def check(overrides: dict[str, str]) -> tuple[Finding, ...]:
        return LockCheck(locked.recipe, layout, mirrors, True, overrides).run(locked.tree)

    write()
    assert "data: the build fetches it, the lock does not name it" in str(check(overrides))
    with pytest.raises(UsageError) as caught:
        write(data="abc", lib="0" * 40, other="0" * 40)
    assert caught.value.where == {
        "data": "'abc' is no SHA-256",
        "lib": "is fetched here: what it is needs no telling",
        "other": "the build fetches no such source",
    }
    write(data="0" * 64)
    assert check(overrides) == (), "nothing here can tell that it is wrong"
    assert "cannot get an archive" in str(check({})), "asked, nobody answers"
    (locked.world.root / "gone.tar").rename(locked.world.root / "files/data.tar")
    assert "has other content" in str(check({}))
    with pytest.raises(SourceError, match="cannot get an archive"):
        source.dependencies(locked.tree, locked.recipe, layout, mirrors)
    write(data=digest)
    source.dependencies(locked.tree, locked.recipe, layout, mirrors)
    assert check({}) == ()


def test_a_source_whose_hash_upstream_declares_needs_nobody_else(locked: Locked) -> None:
    overrides, digest = without_data(locked)
    layout, mirrors = locked.world.layout, locked.mirrors
    declares = locked.tree / "kernel/CMakeLists.txt"
    declares.write_text(declares.read_text().replace(ARCHIVE, f"{ARCHIVE} URL_HASH SHA256={digest}"))
    checkout = source.checkout(locked.recipe, layout, mirrors)
    locking.write(locked.recipe, checkout, locked.tree, layout, mirrors, overrides=overrides)
    assert LockCheck(locked.recipe, layout, mirrors, True, overrides).run(locked.tree) == ()
    assert f'sha256 = "{digest}"' in locked.lock.read_text()
