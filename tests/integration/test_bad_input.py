"""What a user sees for bad input: one table, every text golden, exit code 2 or 4, and nothing changed."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from patchworld import CMAKE, DIRECTORY, World, simple, with_line
from sglwheel import cli

pytestmark = pytest.mark.integration
LISTS = f"{DIRECTORY}/CMakeLists.txt"
Damage = Callable[[World], tuple[str, ...]]


def patch(change: Callable[[bytes], bytes]) -> Damage:
    """Damage the one patch of the series, then lint."""

    def damage(world: World) -> tuple[str, ...]:
        path = world.folder / "one.patch"
        path.write_bytes(change(path.read_bytes()))
        return ("check",)

    return damage


def listing(text: str) -> Damage:
    def damage(world: World) -> tuple[str, ...]:
        (world.folder / "series").write_text(text)
        return ("check",)

    return damage


def command(*words: str) -> Damage:
    return lambda world: words


def beside(world: World) -> tuple[str, ...]:
    """A commit that upstream has, on a branch that does not descend from the pin."""
    world.git("checkout", "--quiet", "-b", "side", "main~2")
    other = world.commit({"docs/notes.md": "side\n"})
    world.git("checkout", "--quiet", "main")
    return ("rebase", "r", "--to", other)


def ambiguous(world: World) -> tuple[str, ...]:
    """Git takes four digits for an id: some hundred commits later two begin alike."""
    seen = {id[:4] for id in world.git("rev-list", "main").split()}
    last = "main"
    for number in range(4000):
        last = world.git("commit-tree", "main^{tree}", "-p", last, "-m", f"{number}").strip()
        if last[:4] in seen:
            world.git("update-ref", "refs/heads/main", last)
            return ("drift", "r", "--to", last[:4])
        seen.add(last[:4])
    raise AssertionError("no two ids begin alike")


def dirty_workspace(world: World) -> tuple[str, ...]:
    with pytest.raises(SystemExit) as ended:
        cli.main(["patch", "r", "--edit"])
    assert not ended.value.code
    (world.layout.work / "r" / "edit" / LISTS).write_text("not committed\n")
    return ("export", "r")


BAD: dict[str, Damage] = {
    "traversal": patch(lambda text: text.replace(b"/CMakeLists", b"/../../etc/CMakeLists")),
    "absolute path": patch(lambda text: text.replace(f"a/{DIRECTORY}".encode(), b"/etc")),
    "symlink": patch(lambda text: text.replace(b" 100644\n", b" 120000\n")),
    "binary hunk": patch(lambda text: text[: text.index(b"--- a/")] + b"GIT binary patch\nliteral 4\nLc$\n"),
    "CRLF damage": patch(lambda text: text.replace(b"\n", b"\r\n")),
    "truncated hunk": patch(lambda text: text[: text.index(b"-line(5)")]),
    "wrong counts": patch(lambda text: text.replace(b"@@ -2,7 +2,7 @@", b"@@ -2,6 +2,6 @@")),
    "no reason": patch(lambda text: text.replace(b"Because a test needs it.\n\n", b"")),
    "unknown trailer": patch(lambda text: text.replace(b"Proves: ", b"Profes: ")),
    "unknown predicate": patch(lambda text: text.replace(b"Proves: ", b"Needed-When: gcc < 3\nProves: ")),
    "missing file in series": listing("one.patch\ntwo.patch\n"),
    "duplicate file in series": listing("one.patch\none.patch\n"),
    "unlisted file": listing(""),
    "commit that does not exist": command("rebase", "r", "--to", "1" * 40),
    "branch that does not exist": command("drift", "r", "--to", "mian"),
    "ambiguous commit": ambiguous,
    "commit that is no descendant": beside,
    "option as commit": command("drift", "r", "--to", "--upload-pack=x"),
    "dirty workspace": dirty_workspace,
    "nothing to continue": command("rebase", "r", "--continue"),
    "skip without why": command("rebase", "r", "--skip", "one"),
}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    world = simple(tmp_path)
    world.commit({"docs/notes.md": "more\n"})
    world.commit({"docs/notes.md": "and more\n"})
    world.make_patch("one", {LISTS: with_line(CMAKE, 5, "mine(5)")})
    world.recipe()
    path = world.layout.recipes / "r.toml"
    path.write_text(path.read_text().replace("https://example.invalid/up", world.repository.as_uri()))
    world.commit({"docs/notes.md": "after the pin\n"})
    for name in ("SGLWHEEL_CACHE", "SGLWHEEL_CONFIG", "SGLWHEEL_MIRRORS", "SGLWHEEL_ROOT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(world.layout.root)
    return world


def state(world: World) -> dict[str, bytes]:
    roots = (world.layout.recipes, world.layout.patches)
    files = {str(path): path.read_bytes() for root in roots for path in root.rglob("*") if path.is_file()}
    return files | {"upstream": world.git_bytes("status", "--porcelain", "--branch")}


def run(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        cli.main(list(words))
    return int(ended.value.code or 0), capsys.readouterr().err


@pytest.mark.parametrize("name", BAD)
def test_bad_input(
    name: str, world: World, capsys: pytest.CaptureFixture[str], golden: Callable[[str, str], None]
) -> None:
    words = BAD[name](world)
    before = state(world)
    code, text = run(words, capsys)
    text = text[text.index("error: ") :].replace(world.repository.as_uri(), "UPSTREAM")
    text = text.replace(str(world.root), "ROOT")
    # Both ends of a local fetch say it, and either may be heard first.
    text = text.replace("fatal: remote error: upload-pack: not", "fatal: git upload-pack: not")
    # Columns are as wide as the paths of this run.
    text = re.sub(r"(?<=\S) {2,}", "  ", text)
    golden(f"bad-input/{name.replace(' ', '-')}.txt", f"$ sglwheel {' '.join(words)}\n{text}exit {code}\n")
    assert code in (2, 4)
    assert "Traceback" not in text
    assert state(world) == before


def test_an_old_git_is_told_before_it_fails(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    binary = tmp_path / "bin" / "git"
    binary.parent.mkdir()
    binary.write_text("#!/bin/sh\necho git version 2.38.5\n")
    binary.chmod(0o755)
    monkeypatch.setenv("PATH", f"{binary.parent}{os.pathsep}{os.environ['PATH']}")
    code, text = run(("drift", "r"), capsys)
    assert code == 2
    assert "git 2.39 or later is needed" in text and "git version 2.38.5" in text
