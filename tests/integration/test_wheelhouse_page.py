"""The page in a real browser: filter, copy, keyboard, narrow, dark, from a file and from a server."""

from __future__ import annotations

import os
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sglwheel.files import Layout
from sglwheel.wheelhouse import Lines, Wheelhouse, linerecord, publish
from sglwheel.wheelhouse.life import yank
from wheelworld import Check, http_directory, make_kernel, reports

playwright = pytest.importorskip("playwright.sync_api", reason="uv sync --group browser")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on PATH"),
    # The driver's own asyncio transport is not closed in time for Python.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]
PROVENANCE = {
    "recipe": {"id": "cu130"},
    "flags": {"architectures": ["12.0a"]},
    "upstream": {"commit": "6" * 40},
    "patched": {"patches": [{"name": "fa3-build-guard", "state": "applied"}]},
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("page & <more>")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        for torch in ("2.11.0", "2.12.0"):
            for build in (1, 2):
                version = f"0.3.21+cu130.torch{torch}.sm120a.{build}"
                wheel = make_kernel(base / "dist", version, torch=torch, provenance=PROVENANCE)
                finished, inspection, smoke = reports(wheel, gpu=build == 2, requires=f"torch=={torch}")
                checks = (*smoke.checks, Check('<img src=x onerror="alert(1)">', "passed"))
                publish(finished, inspection, replace(smoke, checks=checks), Layout(base))
        house = Wheelhouse(base / "wheelhouse")
        yank(house, "0.3.21+cu130.torch2.11.0.sm120a.1", "<script>alert(2)</script> wrong", force=True)
    return base / "wheelhouse"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as engine:
        browser = engine.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": 1100, "height": 900})
    page = context.new_page()
    page.trouble = []
    page.on("pageerror", lambda error: page.trouble.append(str(error)))
    page.on("dialog", lambda dialog: page.trouble.append(dialog.message))
    page.on("console", lambda message: message.type == "error" and page.trouble.append(message.text))
    page.on("requestfailed", lambda request: page.trouble.append(request.url))
    yield page
    assert page.trouble == []
    context.close()


def copied(page: Any) -> str:
    """What a click put on the clipboard, seen through a text field."""
    page.evaluate("document.body.insertAdjacentHTML('beforeend', '<textarea id=paste></textarea>')")
    page.focus("#paste")
    page.keyboard.press("Control+V")
    text = str(page.input_value("#paste"))
    page.evaluate("document.getElementById('paste').remove()")
    return text


def test_every_release_is_there_and_can_be_filtered(root: Path, page: Any) -> None:
    page.goto((root / "index.html").as_uri())
    assert page.inner_text("#count") == "4 releases"
    page.keyboard.press("/")
    page.keyboard.type("torch2.12 release")
    page.wait_for_function("document.getElementById('count').textContent === '1 of 4'")
    assert page.locator(".row:visible").count() == 1
    page.keyboard.press("Escape")
    page.wait_for_function("document.getElementById('count').textContent === '4 releases'")
    page.keyboard.type("666666")
    page.wait_for_function("document.querySelectorAll('.row:not([hidden])').length === 4")
    page.keyboard.type("nothing like it")
    page.wait_for_function("document.getElementById('count').textContent === '0 of 4'")


def test_hostile_text_stays_text(root: Path, page: Any) -> None:
    page.goto((root / "index.html").as_uri())
    assert "<script>alert(2)</script> wrong" in page.inner_text(".why")
    page.click(".row h3 a")
    assert page.locator("img").count() == 0


def test_copy_gives_the_printed_line(root: Path, page: Any) -> None:
    house = Wheelhouse(root)
    release = house.find("0.3.21+cu130.torch2.12.0.sm120a.2")
    page.goto((root / "index.html").as_uri())
    page.click(f"[id='{release.id}'] button")
    assert copied(page) == Lines(release.record, str(root)).uv
    with http_directory(root) as (url, _):
        page.goto(f"{url}/index.html")
        page.click(f"[id='{release.id}'] button")
        assert copied(page) == Lines(release.record, url).uv


def test_a_release_page_shows_lines_that_are_true_where_it_lies(root: Path, page: Any) -> None:
    release = Wheelhouse(root).find("0.3.21+cu130.torch2.12.0.sm120a.2")
    for location, url in ((str(root), (release.directory / "index.html").as_uri()),):
        page.goto(url)
        lines = Lines(release.record, location)
        for name in ("uv", "pip", "hold", "replacing"):
            shown = page.text_content(f"#{name}")
            assert shown == getattr(lines, "uv_replacing" if name == "replacing" else name)
        assert tomllib.loads(page.text_content("#project")) == tomllib.loads(lines.project)
        assert f"--find-links {root.as_uri()}/builds/" in page.text_content("#requirements")
    assert "fa3-build-guard" in page.inner_text("body")
    page.click("button[data-copy=uv]")
    assert page.inner_text("button[data-copy=uv]") in ("Copied", "Press Ctrl+C")


def test_a_line_s_page_has_the_lines_of_what_it_points_to(root: Path, page: Any) -> None:
    with http_directory(root) as (url, _):
        for location, home in ((str(root), root.as_uri()), (url, url)):
            page.goto(f"{home}/lines/cu130/index.html")
            pointer = linerecord.load(Wheelhouse(root), "cu130")
            assert pointer is not None and len(pointer.members) == 2
            for number, id in enumerate(pointer.members, start=1):
                page.click(f"button[data-copy=uv-{number}]")
                assert copied(page) == Lines(Wheelhouse(root).read(id), location).uv


def test_by_keyboard_alone(root: Path, page: Any) -> None:
    page.goto((root / "index.html").as_uri())
    seen = []
    for _ in range(30):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("document.activeElement.textContent || document.activeElement.id"))
    assert "filter" in seen
    assert "wheel" in seen
    assert "Copy uv line" in seen
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline != "none"
    while page.evaluate("document.activeElement.textContent") != "Copy uv line":
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    said = page.text_content("#said")
    assert said.startswith("uv pip list ") and "sgl-kernel==" in said
    assert copied(page) == said


def test_where_the_clipboard_is_closed_the_line_is_selected(root: Path, browser: Any) -> None:
    context = browser.new_context()
    context.add_init_script(
        "Object.defineProperty(navigator, 'clipboard', {value: undefined});document.execCommand = () => false"
    )
    page = context.new_page()
    release = Wheelhouse(root).find("0.3.21+cu130.torch2.12.0.sm120a.2")
    for path, button in ((root, f"[id='{release.id}'] button"), (release.directory, "button[data-copy=uv]")):
        page.goto((path / "index.html").as_uri())
        page.click(button)
        assert page.inner_text(button) == "Press Ctrl+C"
        page.keyboard.press("Control+C")
        assert copied(page) == Lines(release.record, str(root)).uv
    context.close()


# A row paints only inside itself, so what sticks out of it is cut off, and the page is no wider for it.
CUT_OFF = """() => [...document.querySelectorAll('body *')]
  .filter(part => part.getClientRects().length)
  .map(part => [part.getBoundingClientRect(), part.outerHTML.slice(0, 80)])
  .filter(([box]) => box.left < 0 || box.right > innerWidth + 0.5)
  .map(([_, html]) => html)"""


@pytest.mark.parametrize("width", [320, 360, 768, 930, 1100])
def test_nothing_is_cut_off_or_needs_sideways_scrolling(root: Path, page: Any, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    for path in (root / "index.html", *root.glob("builds/*/index.html"), *root.glob("lines/*/index.html")):
        page.goto(path.as_uri())
        if path.parent == root:
            page.locator(".row button").first.click()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
        assert page.evaluate(CUT_OFF) == [], path


def test_dark_and_light_differ(root: Path, browser: Any) -> None:
    colours = set()
    for scheme in ("dark", "light"):
        context = browser.new_context(color_scheme=scheme)
        page = context.new_page()
        page.goto((root / "index.html").as_uri())
        colours.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        context.close()
    assert len(colours) == 2


def test_without_scripts_everything_but_comfort_is_there(root: Path, browser: Any) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto((root / "index.html").as_uri())
    assert page.locator(".row").count() == 4
    assert page.locator("button:visible").count() == 0
    page.click(".row h3 a")
    assert "$WHEELHOUSE/builds/" in page.inner_text("#uv")
    context.close()


def test_nothing_is_loaded_from_elsewhere(root: Path) -> None:
    found = subprocess.run(
        ["grep", "-rhoE", '(src|href)="(https?:)?//[^"]*', str(root), "--include=*.html"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.stdout == ""
