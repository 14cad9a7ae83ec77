"""`doctor --role build`: every trouble of a host at once, and a compiler that is really asked."""

from __future__ import annotations

import locale
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from indexworld import Index
from sglwheel import builddoctor, cli
from sglwheel.files import Layout
from sglwheel.mirrors import Mirrors
from sglwheel.nodedoctor.diagnosis import Finding
from toolworld import RECIPE, fake_toolkit, make

pytestmark = pytest.mark.integration

SYSTEM = 'provider = "system"'


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Layout:
    for name in ("recipes", "patches"):
        (tmp_path / name).mkdir()
    for variable in ("SGLWHEEL_CACHE", "SGLWHEEL_CONFIG", "SGLWHEEL_MIRRORS", "CXX"):
        monkeypatch.delenv(variable, raising=False)
    return Layout(tmp_path)


@pytest.fixture
def index() -> Iterator[Index]:
    with Index() as made:
        yield made


def examined(layout: Layout, mirrors: Mirrors, build: str = SYSTEM) -> dict[str, Finding]:
    return {one.check: one for one in builddoctor.examine(make(build), layout, mirrors)}


def test_a_good_host(layout: Layout, index: Index, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CUDA_HOME", str(fake_toolkit(tmp_path / "cuda")))
    found = examined(layout, index.mirrors)
    assert {one.status for one in found.values()} == {"passed"}, found
    assert found["compiles CUDA"].detail.startswith("nvcc 13.0.88 through ")
    assert index.url in found["clock"].detail
    assert {"git", "Python", "C++ compiler", "disk", "memory", "CPU", "locale"} < found.keys()


def test_all_troubles_at_once(
    layout: Layout, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    says = "error: exception specification is incompatible with that of previous function cospi"
    monkeypatch.setenv("CUDA_HOME", str(fake_toolkit(tmp_path / "cuda", says=says, status=1)))
    (layout.recipes / "test.toml").write_text(RECIPE.format(build=f"{SYSTEM}\nlargest-unit-mib = 99000000"))
    later = time.time() + 86_400
    os.utime(layout.recipes / "test.toml", (later, later))
    (layout.root / "wheelhouse").write_text("a file where a directory should be")

    def none(category: int, name: str | None = None) -> str:
        if name == "C.UTF-8":
            raise locale.Error
        return "C"

    monkeypatch.setattr(locale, "setlocale", none)
    monkeypatch.setenv("SGLWHEEL_ROOT", str(layout.root))
    monkeypatch.setenv("SGLWHEEL_MIRRORS", f"https://pypi.org/simple={tmp_path}")
    with pytest.raises(SystemExit) as caught:
        cli.main(["doctor", "--role", "build", "--recipe", "test"])
    assert caught.value.code == 10
    said = capsys.readouterr()
    for subject in ("memory", "locale", "writable: wheelhouse", "clock", "compiles CUDA"):
        assert f"test: {subject}" in said.err
    assert "recipes were written in its future" in said.err
    assert "glibc 2.41 and newer declare functions that this CUDA declares" in said.err
    assert "ok    git" in said.out, "what is good is said as well"


def test_a_clock_that_is_off(layout: Layout, index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        index.server.RequestHandlerClass,
        "date_time_string",
        lambda *_: "Thu, 01 Jan 2026 00:00:00 GMT",
    )
    clock = examined(layout, index.mirrors, "")["clock"]
    assert clock.status == "failed" and f"s off {index.url}" in clock.detail


def test_no_nvcc_yet(layout: Layout, index: Index) -> None:
    found = examined(layout, index.mirrors, "")["compiles CUDA"]
    assert (found.status, found.remedy) == ("unknown", "sglwheel lock test")
