"""When a run may be skipped altogether: only while everything it read and left is as it was."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sglwheel import cli, pipeline
from sglwheel.files import Layout
from sglwheel.uptodate import Watch

OPTIONS = {"torch": None, "all": False}


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Layout:
    for name in ("SGLWHEEL_CONFIG", "SGLWHEEL_MIRRORS"):
        monkeypatch.delenv(name, raising=False)
    for name in ("recipes/x.toml", "recipes/pylock.x.toml", "patches/x/series", "patches/x/one.patch"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{name}\n")
    (tmp_path / "left").mkdir()
    (tmp_path / "left/x.whl").write_text("wheel")
    return Layout(tmp_path)


def ran(layout: Layout, overrides: dict[str, str] | None = None, **options: object) -> None:
    watch = Watch(layout, "x", OPTIONS | options, overrides or {})
    assert watch.note() is None
    watch.keep([layout.root / "left", layout.root / "nothing"], ["done: x.whl"], {"path": "x.whl"})


def again(layout: Layout, overrides: dict[str, str] | None = None, **options: object) -> bool:
    return Watch(layout, "x", OPTIONS | options, overrides or {}).note() is not None


def test_an_unchanged_run_says_what_it_said(layout: Layout) -> None:
    ran(layout)
    note = Watch(layout, "x", OPTIONS, {}).note()
    assert note is not None and note.summary == ("done: x.whl",) and note.facts == {"path": "x.whl"}
    # The bytes of Python's caches come and go.
    (layout.recipes / "__pycache__").mkdir()
    (layout.recipes / "__pycache__/x.pyc").write_text("")
    assert again(layout)


CHANGES: dict[str, Callable[[Path], object]] = {
    "recipe": lambda root: (root / "recipes/x.toml").write_text("recipes/y.toml\n"),
    "lock": lambda root: (root / "recipes/pylock.x.toml").unlink(),
    "patch": lambda root: (root / "patches/x/one.patch").write_text("other\n"),
    "new patch": lambda root: (root / "patches/x/two.patch").touch(),
    "mirrors": lambda root: (root / ".sglwheel.toml").write_text("[mirrors]\n"),
    "wheel": lambda root: (root / "left/x.whl").write_text("WHEEL"),
    "wheel gone": lambda root: (root / "left/x.whl").unlink(),
    "something new beside it": lambda root: (root / "left/y.whl").touch(),
    "what was not there": lambda root: (root / "nothing").touch(),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_of_a_file_is_seen(layout: Layout, what: str) -> None:
    ran(layout)
    CHANGES[what](layout.root)
    assert not again(layout)


def test_a_change_of_environment_or_command_line_is_seen(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran(layout)
    assert not again(layout, all=True)
    assert not again(layout, torch="2.11.0")
    monkeypatch.setenv("COLUMNS", "71")
    assert again(layout), "the width of a terminal changes no wheel"
    monkeypatch.setenv("CXX", "g++-13")
    assert not again(layout)
    monkeypatch.delenv("CXX")
    assert again(layout), "each command line and environment has its own note"


def test_what_moves_by_itself_is_never_skipped(layout: Layout) -> None:
    ran(layout, torch="nightly")
    assert not again(layout, torch="nightly")
    ran(layout, overrides={"cutlass": "main"})
    assert not again(layout, overrides={"cutlass": "main"})


def test_an_override_is_watched(layout: Layout, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    (mine / ".git/refs").mkdir(parents=True)
    (mine / ".git/HEAD").write_text("ref: refs/heads/main\n")
    (mine / "x.h").write_text("1")
    as_it_is, revision = {"cutlass": str(mine)}, {"cutlass": f"{mine}@main"}
    ran(layout, overrides=as_it_is)
    ran(layout, overrides=revision)
    assert again(layout, overrides=as_it_is) and again(layout, overrides=revision)
    (mine / "x.h").write_text("2")
    assert not again(layout, overrides=as_it_is) and again(layout, overrides=revision)
    (mine / ".git/refs/main").write_text("1" * 40)
    assert not again(layout, overrides=revision)


@pytest.mark.parametrize("packed", [False, True])
def test_an_unchanged_bundle_is_not_read_to_do_nothing(
    layout: Layout, monkeypatch: pytest.MonkeyPatch, packed: bool
) -> None:
    bundle = layout.root / ("bundle.tar.zst" if packed else "bundle")
    content = bundle if packed else bundle / "wheels/x.whl"
    content.parent.mkdir(parents=True, exist_ok=True)
    content.write_text("wheel")
    began: list[object] = []

    def run(layout: Layout, name: str, options: pipeline.Options) -> pipeline.Done:
        began.append(options.bundle)
        return pipeline.Done(None, ("done",), {}, (layout.root / "left",))

    monkeypatch.setattr(pipeline, "run", run)
    monkeypatch.setenv("SGLWHEEL_ROOT", str(layout.root))
    monkeypatch.chdir(layout.root)

    def build(*words: str) -> int:
        with pytest.raises(SystemExit) as ended:
            cli.main(["build", "x", "--offline", *words])
        assert not ended.value.code
        return len(began)

    assert build("--from", bundle.name) == 1
    assert build("--from", bundle.name) == build("--from", str(bundle)) == 1
    assert build() == 2, "what a bundle made says nothing of a run without one"
    content.write_text("WHEEL")
    assert build("--from", bundle.name) == 3, "read again, and verified, once anything of it changed"
    shutil.copytree(bundle, layout.root / "copy") if not packed else shutil.copy(bundle, layout.root / "copy")
    assert build("--from", "copy") == 4


def test_what_is_edited_during_a_run_is_not_taken_for_what_it_read(layout: Layout) -> None:
    watch = Watch(layout, "x", OPTIONS, {})
    assert watch.note() is None
    (layout.patches / "x/one.patch").write_text("edited while compiling\n")
    watch.keep([layout.root / "left"], ["done"], {})
    assert not again(layout)


def test_a_torn_note_is_no_note(layout: Layout) -> None:
    ran(layout)
    (path,) = (layout.work / "x/up-to-date").glob("*.json")
    path.write_text(path.read_text()[:50])
    assert not again(layout)
    path.write_text("[]")
    assert not again(layout)


def test_the_command_line_starts_without_what_only_a_real_run_needs() -> None:
    """Each of these takes longer to import than a run that does nothing may take."""
    heavy = ("pydantic", "httpx", "git", "elftools", "jinja2", "requests", "cyclonedx")
    code = f"import sys, sglwheel.cli; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout == "[]\n"
