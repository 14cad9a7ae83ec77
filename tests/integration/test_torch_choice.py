"""Choosing a torch from an index on loopback, and keeping it when the index has dropped it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import tenacity
import uv
from packaging.version import Version

import indexworld
from indexworld import NIGHTLY, PYPI, RELEASE, Index
from sglwheel import files, network, process, recipe, toolchain, transfer
from sglwheel.errors import ToolchainError, UsageError
from sglwheel.files import Layout
from sglwheel.locks import torchchoice
from sglwheel.mirrors import Mirrors
from sglwheel.source import sourcelock
from sglwheel.toolchain import environments, packages, torchpin, uvtool, wheels
from sglwheel.types import CudaLine

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the fake torch wheels are for CPython 3.11"),
]

RECIPE = """# why this pin
schema = 1
summary = "a test"
[source]
git = "https://example.invalid/up"
commit = "0000000000000000000000000000000000000000"
directory = "kernel"
series = "s"
[torch]
version = "2.12.0"      # the one that SGLang has
cuda = "cu130"
[build]
cuda-toolkit = "13.0"
python = "3.11"
architectures = ["12.0a"]
[wheel]
build = 1
max-size-mib = 9
[smoke]
imports = ["x"]
"""


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Index]:
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv-1"))
    monkeypatch.setattr(network, "WAIT", tenacity.wait_none())
    with Index() as made:
        made.tools()
        made.add(PYPI, "torch", indexworld.torch("2.12.0"))
        made.add(PYPI, "torch", indexworld.torch("2.11.0"))
        made.add(RELEASE, "torch", indexworld.torch("2.12.1+cu130"))
        made.add(RELEASE, "torch", indexworld.torch("2.12.2+cu128", cuda="12.8"))
        for day in ("20261101", "20261103"):
            made.add(NIGHTLY, "torch", indexworld.torch(f"2.14.0.dev{day}+cu130"))
        other = indexworld.torch("2.14.0.dev20261102+cu130", tag="cp312-cp312-manylinux_2_28_x86_64")
        made.add(NIGHTLY, "torch", other)
        yield made


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    for name in ("recipes", "patches"):
        (tmp_path / name).mkdir()
    (tmp_path / "recipes/r.toml").write_text(RECIPE)
    return Layout(tmp_path)


def snapshot(layout: Layout) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in layout.recipes.iterdir()}


def install(layout: Layout, mirrors: Mirrors) -> torchpin.InstalledTorch:
    """What `prepare` does with the recipe as it is, up to reading torch."""
    loaded = recipe.load(layout, "r")
    pin = torchpin.pin(loaded)
    lock = toolchain.Pylocks(loaded, pin, layout, mirrors).environment()
    venv = layout.root / f"venv-{len(list(layout.root.glob('venv-*')))}"
    process.run(
        [uv.find_uv_bin(), "venv", "--no-config", "--python", sys.executable, venv],
        failure=ToolchainError,
        env=uvtool.environment(),
    )
    environments.Supply(layout, mirrors, None).install(
        lock, Version("3.11.7"), python=venv / "bin/python", log=layout.root / "log", title="environment"
    )
    site = venv / "lib/python3.11/site-packages"
    installed = packages.installed(site, [lock])
    return torchpin.read(site, sha256=next(one.sha256 for one in installed if one.name == "torch"))


def test_list(index: Index, layout: Layout) -> None:
    lines, silent = torchchoice.listing(layout, CudaLine(13, 0), index.mirrors)
    assert not silent
    assert [(line.version, line.day, line.recipes) for line in lines] == [
        ("2.14.0.dev20261103", "2026-11-03", ()),
        ("2.14.0.dev20261101", "2026-11-01", ()),
        ("2.12.1", None, ()),
        ("2.12.0", None, ("r",)),
        ("2.11.0", None, ()),
    ]
    assert "2.12.0" in torchchoice.render(lines)[3]


def test_a_nightly_outlives_its_index(index: Index, layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    done = torchchoice.pin(layout, "r", "nightly:2026-11-01", index.mirrors)
    assert [str(edit) for edit in done.edits] == ["~ torch.version  2.12.0 → 2.14.0.dev20261101"]
    text = (layout.recipes / "r.toml").read_text()
    assert text == RECIPE.replace('"2.12.0"', '"2.14.0.dev20261101"'), "comments are kept"
    lock = (layout.recipes / "pylock.r.toml").read_text()
    assert "https://download.pytorch.org/whl/nightly/cu130/torch-2.14.0.dev20261101%2Bcu130" in lock
    everything = "".join(content.decode() for content in snapshot(layout).values())
    assert "127.0.0.1" not in everything, "a lock names what a mirror stands for"
    assert torchchoice.stored(layout, CudaLine(13, 0)) == {Version("2.14.0.dev20261101")}
    before = snapshot(layout)

    index.remove(NIGHTLY, "torch", "20261101")
    monkeypatch.setenv("UV_CACHE_DIR", str(layout.root / "uv-2"))
    with pytest.raises(ToolchainError, match="no nightly of 2026-11-01 for cu130") as caught:
        torchchoice.choose(recipe.load(layout, "r"), "nightly:2026-11-01", index.mirrors)
    assert caught.value.where["nearest"].startswith("2.14.0.dev20261103+cu130 of 2026-11-03")
    installed = install(layout, index.mirrors)
    assert installed.full_version == "2.14.0.dev20261101+cu130"
    (stored,) = (layout.cache / "wheels").glob("*/torch-*.whl")
    assert installed.sha256 == files.sha256(stored) == stored.parent.name
    assert snapshot(layout) == before


@pytest.mark.parametrize(
    ("word", "what", "nearest"),
    [
        ("nightly:2026-11-02", "no nightly of 2026-11-02 for cu130", ["20261101", "20261103"]),
        ("2.12.2", "no torch 2.12.2 for cu130, only for cu128", ["2.12.1", "2.14.0"]),
        ("2.12.0+cu128", "torch 2.12.0+cu128: the recipe is for cu130", ["2.11.0", "2.12.0", "2.12.1"]),
        (
            "2.12.0+cu130",
            "no torch 2.12.0+cu130 for cu130, only 2.12.0 that names no CUDA",
            ["2.11.0", "2.12.0", "2.12.1"],
        ),
        ("2.13.0", "no torch 2.13.0 for cu130", ["2.12.1", "20261101"]),
        ("2.14.0.dev20261102", "no torch 2.14.0.dev20261102 for cu130", ["20261101", "20261103"]),
    ],
)
def test_what_is_not_there_names_the_nearest(
    index: Index, layout: Layout, word: str, what: str, nearest: list[str]
) -> None:
    before = snapshot(layout)
    with pytest.raises(ToolchainError) as caught:
        torchchoice.pin(layout, "r", word, index.mirrors)
    assert (caught.value.what, caught.value.exit_code) == (what, 5)
    lines = caught.value.where["nearest"].splitlines()
    assert len(lines) == len(nearest)
    assert all(text in line for text, line in zip(nearest, lines, strict=True))
    # The version itself where it is there, else the one below.
    offered = "2.12.0" if word.startswith("2.12.0") else nearest[0]
    assert caught.value.next is not None and offered in caught.value.next
    assert snapshot(layout) == before


def test_an_index_that_is_silent_may_have_it_so_no_other_is_proposed(index: Index, layout: Layout) -> None:
    loaded = recipe.load(layout, "r")
    place = "https://download.pytorch.org/whl/cu130"
    silent = index.mirrors.with_entries({place: "http://127.0.0.1:9/"})
    with pytest.raises(ToolchainError, match=r"no torch 2\.12\.1 for cu130") as caught:
        torchchoice.choose(loaded, "2.12.1", silent)
    assert f"no answer from {place}" in caught.value.where
    assert caught.value.next is not None and f"SGLWHEEL_MIRRORS='{place}=" in caught.value.next


def test_words(index: Index, layout: Layout) -> None:
    loaded = recipe.load(layout, "r")
    found = torchchoice.choose(loaded, "nightly", index.mirrors)
    assert str(found.version) == "2.14.0.dev20261103+cu130"
    assert (
        torchchoice.choose(loaded, "2.12.1", index.mirrors).index == "https://download.pytorch.org/whl/cu130"
    )
    for word in ("newest", "2.12", "2.12.0+", "nightly:2026-13-01"):
        with pytest.raises(UsageError):
            torchchoice.choose(loaded, word, index.mirrors)


def test_another_index_is_written_down_and_taken_back(index: Index, layout: Layout) -> None:
    done = torchchoice.pin(layout, "r", "2.12.1", index.mirrors)
    assert recipe.load(layout, "r").torch.index_url == "https://download.pytorch.org/whl/cu130"
    assert "+ torch.index-url  https://download.pytorch.org/whl/cu130" in map(str, done.edits)
    assert sourcelock.locked_file(layout, "r", layout.recipes / "pylock.r.toml")
    torchchoice.pin(layout, "r", "2.12.0", index.mirrors)
    assert (layout.recipes / "r.toml").read_text() == RECIPE


@pytest.mark.parametrize("fault", ["500", "truncated", "wrong", "slow"])
def test_a_bad_download_is_survived_or_refused(
    index: Index, layout: Layout, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setattr(transfer, "PATIENCE", 0.5)
    torchchoice.pin(layout, "r", "nightly", index.mirrors)
    lock = packages.read(layout.recipes / "pylock.r.toml")
    assert lock is not None
    (item,) = (one for one in wheels.of(lock, Version("3.11.7")) if one.name == "torch")
    path = wheels.path_of(item, layout)
    path.unlink()
    index.faults[f"{NIGHTLY}/{item.filename}"] = [fault]
    index.requests.clear()
    if fault == "wrong":
        with pytest.raises(ToolchainError, match=r"cannot get torch-.* with the right content") as caught:
            wheels.keep([item], layout, index.mirrors)
        assert "SHA256" in "".join(caught.value.where.values())
        assert not path.exists()
    received = wheels.keep([item], layout, index.mirrors)
    assert files.sha256(path) == item.sha256
    if fault in ("truncated", "slow"):
        assert received == path.stat().st_size, "the second half alone was fetched again"
        assert any(span for _, span in index.requests)


def test_a_broken_mirror_falls_through(index: Index, layout: Layout, tmp_path: Path) -> None:
    torchchoice.pin(layout, "r", "nightly", index.mirrors)
    lock = packages.read(layout.recipes / "pylock.r.toml")
    assert lock is not None
    (item,) = (one for one in wheels.of(lock, Version("3.11.7")) if one.name == "torch")
    wheels.path_of(item, layout).unlink()
    secret = f"http://user:s3cret@{index.url.removeprefix('http://')}/nothing"
    both = Mirrors({"https://download.pytorch.org/whl": (secret, str(tmp_path / "no"), f"{index.url}/whl")})
    assert wheels.keep([item], layout, both) > 0
    wheels.path_of(item, layout).unlink()
    none = Mirrors({"https://download.pytorch.org/whl": (secret, str(tmp_path / "no"))}).without_network()
    with pytest.raises(ToolchainError, match="cannot get") as caught:
        wheels.keep([item], layout, none)
    assert list(caught.value.where.values()) == ["no such file"]
    only = Mirrors({"https://download.pytorch.org": (secret,)})
    with pytest.raises(ToolchainError) as caught:
        wheels.keep([item], layout, Mirrors({**only.entries}, offline=False))
    said = caught.value.what + str(caught.value.where) + str(caught.value.next)
    assert "s3cret" not in said and "HTTP 404" in said


def test_a_damaged_wheel_is_not_read(index: Index, layout: Layout) -> None:
    torchchoice.pin(layout, "r", "nightly", index.mirrors)
    (stored,) = (layout.cache / "wheels").glob("*/torch-*.whl")
    good = stored.read_bytes()
    stored.chmod(0o644)
    stored.write_bytes(good + b"x")
    assert install(layout, index.mirrors).full_version == "2.14.0.dev20261103+cu130"
    assert stored.read_bytes() == good


def test_an_environment_more_unpacks_no_torch_again(index: Index, layout: Layout) -> None:
    """A stored wheel has one path, whatever lies beside it in a lock: uv goes by that."""

    def unpacked() -> set[Path]:
        (cache,) = layout.root.glob("uv-1")
        return {path.resolve() for path in cache.glob("archive-*/*/torch-*.dist-info")}

    torchchoice.pin(layout, "r", "nightly:2026-11-01", index.mirrors)
    assert install(layout, index.mirrors).full_version == "2.14.0.dev20261101+cu130"
    before = unpacked()
    index.add(PYPI, "cmake", indexworld.wheel("cmake", "3.30.9"))
    path = layout.recipes / "r.toml"
    path.write_text(path.read_text().replace('python = "3.11"', 'python = "3.11"\ncmake-version = "3.30.9"'))
    torchchoice.pin(layout, "r", "2.14.0.dev20261101", index.mirrors)
    assert "3.30.9" in (layout.recipes / "pylock.r.toml").read_text()
    assert install(layout, index.mirrors).full_version == "2.14.0.dev20261101+cu130"
    assert unpacked() == before and len(before) == 1
