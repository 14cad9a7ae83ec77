"""Locks that hold what no lock holds: an error that names the place, never a new checksum over an edit."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sglwheel import files, source
from sglwheel.errors import SourceError, ToolchainError
from sglwheel.files import Layout
from sglwheel.locks import locking
from sglwheel.source import sourcelock
from sglwheel.source.sourcelock import Pin
from sglwheel.toolchain import packages
from sourceworld import UPSTREAM, World

PYLOCK = """lock-version = "1.0"
created-by = "uv"
[[packages]]
name = "ninja"
version = "1.13.0"
wheels = [{ url = "https://x.invalid/ninja-1.13.0-py3-none-any.whl", hashes = { sha256 = "HASH" } }]
[tool.sglwheel]
requirements = ["ninja==1.13.0"]
""".replace("HASH", "0" * 64)


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    (tmp_path / "recipes").mkdir()
    layout = Layout(tmp_path)
    sourcelock.save_upstream(layout, "r", {"url": UPSTREAM, "commit": "1" * 40, "tree": "2" * 40})
    one = Pin("one", "git", "https://x.invalid/one", "v1", commit="3" * 40, tree="4" * 40)
    two = Pin("two", "url", "https://x.invalid/two.tar", "", sha256="5" * 64)
    sourcelock.save(layout, "r", [one, two])
    (tmp_path / "recipes/pylock.r.toml").write_text(PYLOCK)
    sourcelock.save_files(layout, "r", [tmp_path / "recipes/pylock.r.toml"])
    return layout


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        (r"\[upstream\][^\[]*", 'upstream = "x"\n', "upstream is no table"),
        (r"\[lock\][\s\S]*", "", "lock is no table"),
        (r"\[lock\.files\][\s\S]*", 'files = "x"\n', "lock.files is no table"),
        (r"\[\[source\]\][\s\S]*?(?=\[lock)", '[source]\nx = "1"\n', "source is no list of tables"),
        (r'name = "one"\n', "", "source[0] has no name"),
        (r'name = "one"', "name = 5", "source[0].name is no text: 5"),
        (r'name = "two"', 'name = "one"', "one is there twice"),
        (r'"3{40}"', '"333"', "source[0].commit has not 40 hexadecimal digits: '333'"),
        (r'"5{64}"', '"../../x"', "source[1].sha256 has not 64 hexadecimal digits: '../../x'"),
        (r'requested = "v1"', 'requested = ["v1"]', "source[0].requested is no text: ['v1']"),
        (r'url = "https://example', '= "https://example', "Invalid"),
    ],
)
def test_a_value_that_no_lock_has(layout: Layout, old: str, new: str, what: str) -> None:
    path = layout.recipes / "r.lock"
    text, count = re.subn(old, new, path.read_text(), count=1)
    path.write_text(('lock = "x"\n' if what.startswith("lock is") else "") + text)
    assert count
    for use in (
        lambda: sourcelock.load(layout, "r", edited=True),
        lambda: sourcelock.locked_file(layout, "r", layout.recipes / "pylock.r.toml"),
        lambda: sourcelock.save_upstream(layout, "r", {}),
        lambda: locking.snapshot(layout, "r"),
    ):
        with pytest.raises(SourceError, match=re.escape(f"the lock is damaged: {what}")) as caught:
            use()
        assert caught.value.where == {"file": "recipes/r.lock"}
        assert caught.value.next and "delete it, then sglwheel lock r" in caught.value.next


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ('version = "1.13.0"\n', "", "ninja has no version"),
        ("sha256 =", "md5 =", "ninja-1.13.0-py3-none-any.whl has no SHA-256 of 64 digits"),
        ("0" * 64, "../../x", "has no SHA-256 of 64 digits"),
        ("0" * 64, "A" * 64, "has no SHA-256 of 64 digits"),
        ('{ url = "https://x.invalid/', '{ path = "', "ninja-1.13.0-py3-none-any.whl has no url"),
        ("https://x.invalid", "https://[x.invalid", "Invalid IPv6 URL"),
        ('["ninja==1.13.0"]', '"ninja"', "tool.sglwheel.requirements is no list of texts"),
        ('["ninja==1.13.0"]', "[1]", "tool.sglwheel.requirements is no list of texts"),
    ],
)
def test_what_nothing_can_be_installed_by(layout: Layout, old: str, new: str, what: str) -> None:
    path = layout.recipes / "pylock.r.toml"
    assert old in PYLOCK
    path.write_text(PYLOCK.replace(old, new))
    with pytest.raises(ToolchainError, match=r"pylock\.r\.toml is not a lock that we wrote") as caught:
        packages.read(path)
    assert what in caught.value.what


def test_an_edit_gets_no_checksum_by_being_written_on(layout: Layout) -> None:
    path = layout.recipes / "r.lock"
    path.write_text(path.read_text().replace("3" * 40, "6" * 40))
    before = path.read_text()
    for write in (
        lambda: sourcelock.save_files(layout, "r", [layout.recipes / "pylock.r.toml"]),
        lambda: sourcelock.save_upstream(layout, "r", {"url": UPSTREAM}),
        lambda: sourcelock.save(layout, "r", []),
    ):
        with pytest.raises(ToolchainError, match="was edited"):
            write()
    assert path.read_text() == before
    sourcelock.save(layout, "r", [], edited=True)
    assert sourcelock.load(layout, "r") == {}


def test_a_lock_that_contradicts_the_hash_of_the_build(tmp_path: Path) -> None:
    world = World(tmp_path)
    content, url = b"not even an archive", "https://x.invalid/two.tar"
    digest = files.digest(content)
    text = f"FetchContent_Declare(two URL {url} URL_HASH SHA256={digest})\nFetchContent_Populate(two)\n"
    pin = Pin("two", "url", url, f"SHA256={digest}", sha256="5" * 64)
    sourcelock.save(world.layout, "r", [pin])
    tree = world.tree({"CMakeLists.txt": text})
    with pytest.raises(SourceError, match=f"two: the SHA256 of {url} is {digest}, the lock says 5555"):
        source.dependencies(tree, world.recipe(), world.layout, world.mirrors)
