"""Pins and locks that meet each other, a full disk or a mirror that cannot be read: whole, or as before."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import quote

import pytest
import tenacity
from test_torch_choice import RECIPE, snapshot

import indexworld
from indexworld import NIGHTLY, PYPI, Index
from sglwheel import cli, files, network, recipe
from sglwheel.errors import ToolchainError
from sglwheel.files import Layout
from sglwheel.locks import torchchoice
from sglwheel.mirrors import Mirrors
from sglwheel.source import sourcelock
from sglwheel.toolchain.pylocks import Pylocks

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the fake torch wheels are for CPython 3.11"),
]
NIGHT = "2.14.0.dev20261101"


class Gated(Index):
    """An index that lets who downloads a nightly wait for its gate, and then has the wrong bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.gate = threading.Event(), threading.Event()

    def answer(self, to: BaseHTTPRequestHandler) -> None:
        # uv asks, too, for the metadata.
        ours = to.headers.get("User-Agent", "").startswith("python-httpx")
        if not (ours and NIGHT in to.path and to.path.endswith(".whl")) or self.gate.is_set():
            super().answer(to)
            return
        self.asked.set()
        self.gate.wait(10)
        self._send(to, b"wrong", "application/zip")


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Gated]:
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    monkeypatch.setattr(network, "WAIT", tenacity.wait_none())
    with Gated() as made:
        made.tools()
        made.add(PYPI, "torch", indexworld.torch("2.12.0"))
        made.add(PYPI, "torch", indexworld.torch("2.11.0"))
        made.add(NIGHTLY, "torch", indexworld.torch(f"{NIGHT}+cu130"))
        yield made


def checkout(root: Path) -> Layout:
    for name in ("recipes", "patches"):
        (root / name).mkdir(parents=True)
    (root / "recipes/r.toml").write_text(RECIPE)
    return Layout(root)


def agree(layout: Layout) -> str:
    """The torch of the recipe, which its locks are of, too."""
    version = str(recipe.load(layout, "r").torch.version)
    environment, toolkit = Pylocks.files_of("r", layout)
    assert f'"torch=={version}"' in environment.read_text()
    for path in (environment, toolkit):
        assert sourcelock.locked_file(layout, "r", path) == files.sha256(path)
    return version


def test_two_pins_at_once(index: Gated, tmp_path: Path) -> None:
    layout = checkout(tmp_path / "one")
    torchchoice.pin(layout, "r", "2.12.0", index.mirrors)
    failed: list[BaseException] = []

    def first() -> None:
        try:
            torchchoice.pin(layout, "r", NIGHT, index.mirrors)
        except ToolchainError as error:
            failed.append(error)

    def second() -> None:
        torchchoice.pin(layout, "r", "2.11.0", index.mirrors)

    one, two = threading.Thread(target=first), threading.Thread(target=second)
    one.start()
    assert index.asked.wait(60)
    two.start()
    two.join(8)
    index.gate.set()
    one.join()
    two.join()
    assert failed
    assert agree(layout) == "2.11.0", "who fails takes nothing back of who succeeded"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    options = ["-t", "tmpfs", "-o", "size=400k", "tmpfs"]
    mounted = subprocess.run(["mount", *options, place], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip(f"skipped: no file system may be mounted here: {mounted.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


def test_a_disk_that_fills_leaves_all_as_it_was(
    index: Gated, small_disk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    index.gate.set()
    layout = checkout(small_disk / "checkout")
    monkeypatch.setenv("SGLWHEEL_ROOT", str(layout.root))
    entries = [f"{url}={places[0]}" for url, places in index.mirrors.entries.items()]
    monkeypatch.setenv("SGLWHEEL_MIRRORS", ";".join(entries))
    torchchoice.pin(layout, "r", "2.12.0", index.mirrors)
    before = snapshot(layout)
    made = indexworld.wheel(
        "torch", f"{NIGHT}+cu130", tag=indexworld.TORCH_TAG, files={"torch/big": "x" * 1_000_000}
    )
    index.add(NIGHTLY, "torch", made)
    with pytest.raises(SystemExit) as ended:
        cli.main(["pin", "r", "--torch", NIGHT])
    said = capsys.readouterr().err
    assert ended.value.code == 5, said
    assert "No space left" in said and "next" in said
    assert snapshot(layout) == before


def test_a_pin_whose_lock_would_name_a_mirror_is_none(index: Gated, tmp_path: Path) -> None:
    layout = checkout(tmp_path / "one")
    torchchoice.pin(layout, "r", "2.12.0", index.mirrors)
    before = snapshot(layout)
    half = Mirrors({"https://pypi.org/simple": index.mirrors.entries["https://pypi.org/simple"]})
    with pytest.raises(ToolchainError, match="the lock would hold the address of a mirror") as caught:
        torchchoice.pin(layout, "r", "2.11.0", half)
    assert caught.value.next and "https://files.pythonhosted.org/packages=" in caught.value.next
    assert snapshot(layout) == before and agree(layout) == "2.12.0"


@pytest.mark.parametrize("form", ["path", "url"])
def test_a_mirror_that_is_a_directory(index: Gated, tmp_path: Path, form: str) -> None:
    layout, root = checkout(tmp_path / "one"), tmp_path / "a mirror"
    name, content = indexworld.torch(f"{NIGHT}+cu130")
    page = root / "nightly/cu130/torch"
    page.mkdir(parents=True)
    (page.parent / name).write_bytes(content)
    link = f'<a href="../{quote(name)}#sha256={files.digest(content)}">{name}</a>'
    (page / "index.html").write_text(f"<!DOCTYPE html><html><body>{link}</body></html>")
    whl = "https://download.pytorch.org/whl"
    mirrors = Mirrors({**index.mirrors.entries, whl: (str(root) if form == "path" else root.as_uri(),)})
    torchchoice.pin(layout, "r", NIGHT, mirrors)
    assert agree(layout) == NIGHT
    assert f'"{whl}/nightly/cu130/{quote(name)}"' in (layout.recipes / "pylock.r.toml").read_text()
    assert len(list((layout.cache / "wheels").glob("*/torch-*.whl"))) == 1
