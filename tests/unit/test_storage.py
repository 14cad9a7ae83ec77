"""What of the stores may go, and what stays."""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path

import pytest
from packaging.version import Version

from sglwheel import files, storage
from sglwheel.errors import ToolchainError
from sglwheel.files import Layout
from sglwheel.source import sourcelock
from sglwheel.source.sourcelock import Pin
from sglwheel.toolchain import wheels

COMMIT = "1" * 40
RECIPE = f"""
schema = 1
summary = "a test"
[source]
git = "https://example.invalid/up"
commit = "{COMMIT}"
directory = "kernel"
series = "s"
[torch]
version = "2.12.0"
cuda = "cu130"
[build]
cuda-toolkit = "13.0"
architectures = ["12.0a"]
[wheel]
build = 1
max-size-mib = 9
[smoke]
imports = ["x"]
"""
LOCK = """
lock-version = "1.0"
created-by = "uv"
[[packages]]
name = "a"
version = "1.0"
wheels = [{ url = "https://example.invalid/a-1.0-py3-none-any.whl", hashes = { sha256 = "%s" } }]
[tool.sglwheel]
requirements = ["a"]
"""


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    layout = Layout(tmp_path)
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes/r.toml").write_text(RECIPE)
    (tmp_path / "recipes/pylock.r.toml").write_text(LOCK % ("a" * 64))
    pins = [
        Pin("lib", "git", "https://example.invalid/lib", "v1", commit="2" * 40),
        Pin("data", "url", "https://example.invalid/data.tar", "", sha256="b" * 64),
    ]
    sourcelock.save(layout, "r", pins)
    cache = layout.cache
    for name in ("wheels/" + "a" * 64, "wheels/" + "c" * 64, "urls/" + "b" * 64, "urls/" + "d" * 64):
        (cache / name).mkdir(parents=True)
        (cache / name / "content").write_bytes(b"x" * 10_000)
    for name, commit in (("lib-1", "2" * 40), ("old-1", "3" * 40)):
        (cache / "sources" / name).mkdir(parents=True)
        (cache / "sources" / name / "f").write_text("")
        url = f"https://example.invalid/{name[:3]}"
        piece = {"path": "", "url": url, "commit": commit, "tree": "", "content": ""}
        facts = {"directory": name, "state": "", "pieces": [piece]}
        (cache / "sources" / f"{name}-r.json").write_text(json.dumps(facts))
        slug = hashlib.sha256(url.encode()).hexdigest()[:8]
        (cache / "git" / f"x-{slug}.git").mkdir(parents=True)
    for name in ("envs/one", "envs/half"):
        (cache / name).mkdir(parents=True)
    (cache / "envs/one/complete.json").write_text("{}")
    (cache / "urls/.download-x").mkdir()
    (cache / "torch-symbols").mkdir()
    for label in ("2.12.0+cu130", "2.9.1"):
        (cache / f"torch-symbols/torch-{label}.symbols.xz").write_text("")
    past = time.time() - 40 * 86_400
    for path in sorted(cache.rglob("*")):
        os.utime(path, (past, past))
    return layout


def gone(layout: Layout, days: float = 30) -> set[str]:
    return {str(item.path.relative_to(layout.cache)) for item in storage.garbage(layout, days)}


def test_only_what_nobody_names_goes(layout: Layout) -> None:
    slug = hashlib.sha256(b"https://example.invalid/old").hexdigest()[:8]
    found = storage.garbage(layout, 30)
    assert gone(layout) == {
        "wheels/" + "c" * 64,
        "urls/" + "d" * 64,
        "sources/old-1",
        "sources/old-1-r.json",
        f"git/x-{slug}.git",
        "envs/one",
        "envs/half",
        "urls/.download-x",
        "torch-symbols/torch-2.9.1.symbols.xz",
    }
    assert gone(layout, days=50) <= {"urls/.download-x"}
    before = storage.sizes(layout)
    assert storage.collect(found) == ()
    assert gone(layout) == set()
    assert storage.sizes(layout)["wheels"] == before["wheels"] // 2
    assert (layout.cache / "sources/lib-1/f").is_file()


def test_what_a_build_of_another_checkout_used_stays(layout: Layout) -> None:
    content = b"x" * 10_000
    sha256 = hashlib.sha256(content).hexdigest()
    item = wheels.LockedWheel("tiny", Version("1"), "tiny-1-py3-none-any.whl", "", sha256, len(content))
    path = wheels.path_of(item, layout)
    path.parent.mkdir()
    path.write_bytes(content)
    past = time.time() - 40 * 86_400
    os.utime(path.parent, (past, past))
    assert f"wheels/{sha256}" in gone(layout)
    assert wheels.stored(item, layout) == path
    assert f"wheels/{sha256}" not in gone(layout)


def test_what_is_in_use_stays(layout: Layout) -> None:
    (layout.cache / "envs/one/complete.json").touch()
    assert "envs/one" not in gone(layout), "a build used it"
    target = layout.cache / "wheels" / ("c" * 64)
    items = [item for item in storage.garbage(layout, 30) if item.path == target]
    with files.locked(target.with_suffix(".lock"), failure=ToolchainError, what="it"):
        assert storage.collect(items) == tuple(items)
    assert target.is_dir()


def test_nothing_goes_while_a_lock_cannot_be_read(layout: Layout) -> None:
    (layout.recipes / "pylock.r.toml").write_text("[")
    with pytest.raises(ToolchainError):
        storage.garbage(layout, 30)
