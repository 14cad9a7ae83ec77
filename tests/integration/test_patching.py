"""Applying a series: real git on throwaway upstreams."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from patchworld import CMAKE, DIRECTORY, TRAILERS, World, simple, with_line
from sglwheel import patching, series
from sglwheel.errors import PatchError
from sglwheel.patching import PatchedTree, PatchState, plaintree, worktree

pytestmark = pytest.mark.integration
LISTS = f"{DIRECTORY}/CMakeLists.txt"


@pytest.fixture
def world(tmp_path: Path) -> World:
    return simple(tmp_path)


def states(patched: PatchedTree) -> dict[str, str]:
    return {state.name: state.state for state in patched.patches}


def only(patched: PatchedTree) -> PatchState:
    (state,) = patched.patches
    return state


def nothing_left(world: World) -> bool:
    """Neither a temporary tree nor a worktree that the store remembers."""
    work = world.layout.work / "r"
    listed = world.git("worktree", "list", "--porcelain").count("worktree ")
    return listed == 1 and not list(work.glob(".src-*")) and not list(work.glob("src-*/"))


def test_an_exact_patch_gives_a_plain_directory(world: World) -> None:
    world.make_patch("p", {LISTS: with_line(CMAKE, 20, "mine()"), f"{DIRECTORY}/new.txt": "new\n"})
    patched = world.apply()
    state = only(patched)
    assert (state.state, state.because) == ("applied", "always needed")
    assert (state.files, state.added, state.removed) == ((LISTS, f"{DIRECTORY}/new.txt"), 2, 1)
    assert state.commit == patched.commit
    assert (patched.path / LISTS).read_text() == with_line(CMAKE, 20, "mine()")
    assert sorted(path.name for path in patched.path.iterdir()) == ["LICENSE", DIRECTORY]
    assert patched.path.name == f"src-{patched.tree[:12]}"
    assert world.git("worktree", "list").count("\n") == 1
    assert world.git("status", "--porcelain") == ""


def test_no_patch_is_a_success(world: World) -> None:
    patched = world.apply()
    assert (patched.patches, patched.commit) == ((), patched.base)
    assert (patched.path / LISTS).is_file()


def test_a_change_beside_the_patch_needs_three_ways(world: World) -> None:
    world.make_patch("p", {LISTS: with_line(CMAKE, 20, "mine()")})
    world.commit({LISTS: with_line(CMAKE, 18, "theirs()")})
    patched = world.apply()
    assert only(patched).state == "applied-3way"
    text = (patched.path / LISTS).read_text()
    assert "mine()" in text
    assert "theirs()" in text


def test_an_offset_is_no_reason_for_three_ways(world: World) -> None:
    world.make_patch("p", {LISTS: with_line(CMAKE, 20, "mine()")})
    world.commit({LISTS: "first()\n" + CMAKE})
    assert only(world.apply()).state == "applied"


def test_a_patch_that_upstream_has_is_an_error_that_says_so(world: World) -> None:
    mine = {LISTS: with_line(CMAKE, 20, "mine()")}
    world.make_patch("p", mine)
    world.commit(mine)
    with pytest.raises(PatchError) as caught:
        world.apply()
    assert caught.value.what == "patch 1 of 1 is upstream already: patches/s/p.patch"
    assert caught.value.where["because"] == f"upstream has all changes to {LISTS}"
    assert "Needed-When: upstream lacks" in str(caught.value.next)
    assert nothing_left(world)


def test_needed_when_says_that_it_is_expected_upstream(world: World) -> None:
    mine = {LISTS: with_line(CMAKE, 20, "mine()")}
    before = world.git("rev-parse", "HEAD").strip()
    merged = world.commit(mine)
    world.git("checkout", "--quiet", before)
    world.git("branch", "--quiet", "--force", "main", before)
    world.git("checkout", "--quiet", "main")
    world.make_patch("p", mine, trailers=f"{TRAILERS}\nNeeded-When: upstream lacks {merged}")
    assert states(world.apply()) == {"p": "applied"}
    patched = world.apply(merged)
    assert only(patched).state == "not-needed"
    assert only(patched).because == f"upstream contains {merged[:9]}"
    assert patched.commit == merged


def test_a_partly_merged_patch_says_which_part(world: World) -> None:
    world.make_patch("p", {LISTS: with_line(CMAKE, 20, "mine()"), f"{DIRECTORY}/a.txt": "one\n2\nthree\n"})
    world.commit({f"{DIRECTORY}/a.txt": "one\n2\nthree\n"})
    state = only(world.apply())
    assert state.state == "applied-3way"
    assert state.because.endswith(f"upstream has its change of {DIRECTORY}/a.txt already")


def test_not_needed_names_the_value_and_all_overrules(world: World) -> None:
    world.make_patch(
        "p", {LISTS: with_line(CMAKE, 20, "mine()")}, trailers=f"{TRAILERS}\nNeeded-When: cmake < 3.31"
    )
    skipped = world.apply(cmake="3.31.10")
    assert (only(skipped).state, only(skipped).because) == ("not-needed", "cmake 3.31.10 is not < 3.31")
    assert skipped.commit == skipped.base
    forced = world.apply(cmake="3.31.10", all=True)
    assert only(forced).state == "applied"
    assert only(forced).because == "--all, although cmake 3.31.10 is not < 3.31"
    assert forced.tree == world.apply(cmake="3.28.4").tree


def test_all_reports_what_is_upstream_although_it_is_not_needed(world: World) -> None:
    mine = {LISTS: with_line(CMAKE, 20, "mine()")}
    world.make_patch("p", mine, trailers=f"{TRAILERS}\nNeeded-When: cmake < 3.31")
    world.commit(mine)
    assert only(world.apply(cmake="3.31.10", all=True)).state == "already-upstream"


def test_a_patch_whose_file_is_gone_is_obsolete(world: World) -> None:
    world.make_patch("p", {f"{DIRECTORY}/a.txt": "one\n2\nthree\n"})
    world.commit({f"{DIRECTORY}/a.txt": None})
    with pytest.raises(PatchError) as caught:
        world.apply()
    assert caught.value.what == "patch 1 of 1 has lost its target: patches/s/p.patch"
    assert f"{DIRECTORY}/a.txt" in caught.value.where["because"]
    assert nothing_left(world)


def test_a_conflict_names_file_and_line_and_leaves_nothing(world: World) -> None:
    world.make_patch("first", {f"{DIRECTORY}/b.txt": "b\n"})
    world.make_patch("p", {LISTS: with_line(CMAKE, 20, "mine()")})
    world.commit({LISTS: with_line(CMAKE, 20, "theirs()")})
    before = world.git("for-each-ref"), world.git("rev-parse", "HEAD")
    with pytest.raises(PatchError) as caught:
        world.apply()
    error = caught.value
    assert error.what == "patch 2 of 2 does not apply: patches/s/p.patch"
    assert error.where["file"] == f"{LISTS}:20"
    assert error.where["onto"].startswith(world.git("rev-parse", "HEAD")[:9])
    assert error.next is not None
    assert error.next.startswith("nox -s rebase -- r --to ")
    assert error.log is not None
    assert "CONFLICT (content)" in error.log.read_text()
    assert nothing_left(world)
    assert (world.git("for-each-ref"), world.git("rev-parse", "HEAD")) == before
    assert world.git("status", "--porcelain") == ""


def test_fuzz_is_not_accepted(world: World) -> None:
    """`patch -p1` would take this: the outer context line differs, and there is no common ancestor."""
    path = world.make_patch("p", {LISTS: with_line(CMAKE, 20, "mine()")})
    text = path.read_text().replace(" line(17)", " line(seventeen)")
    text = text.replace(text[text.index("index ") :].splitlines()[0], f"index {'1' * 40}..{'2' * 40} 100644")
    path.write_text(text)
    with pytest.raises(PatchError) as caught:
        world.apply()
    assert caught.value.where["file"] == f"{LISTS}:17"
    assert nothing_left(world)


def test_status_goes_on_after_a_failure(world: World) -> None:
    world.make_patch("bad", {LISTS: with_line(CMAKE, 20, "mine()")})
    world.make_patch("gone", {f"{DIRECTORY}/a.txt": "one\n2\nthree\n"})
    world.make_patch("good", {f"{DIRECTORY}/b.txt": "b\n"})
    world.commit({LISTS: with_line(CMAKE, 20, "theirs()"), f"{DIRECTORY}/a.txt": None})
    found, errors = patching.status(
        world.checkout(), world.series(), world.facts(), world.layout, world.recipe()
    )
    assert [state.state for state in found] == ["conflict", "obsolete", "applied"]
    assert len(errors) == 2
    assert nothing_left(world)


@pytest.mark.parametrize("how", ["repository", "blobless", "shallow"])
def test_a_moved_directory_is_followed(world: World, how: str) -> None:
    world.make_patch("p", {LISTS: with_line(CMAKE, 20, "mine()")})
    (world.repository / "python/aot").mkdir(parents=True)
    world.git("mv", DIRECTORY, "python/aot/kernel")
    world.commit_all("move")
    moved = "python/aot/kernel/CMakeLists.txt"
    world.commit({moved: with_line(CMAKE, 30, "theirs()")})
    options = {
        "repository": None,
        "blobless": ["--filter=blob:none"],
        "shallow": ["--filter=blob:none", "--depth=1"],
    }
    clone = options[how]
    repository = world.repository if clone is None else world.clone(*clone)
    checkout = world.checkout(repository=repository)
    patched = patching.apply(
        checkout,
        series.load(world.layout, "s"),
        world.facts(),
        world.layout,
        world.recipe(directory="python/aot/kernel"),
    )
    assert only(patched).state == "applied-3way"
    assert only(patched).files == (moved,)
    text = (patched.path / moved).read_text()
    assert "mine()" in text
    assert "theirs()" in text
    assert not (patched.path / DIRECTORY).exists()


def test_crlf_content_is_patched_as_it_is(world: World) -> None:
    world.commit({f"{DIRECTORY}/dos.txt": "one\r\ntwo\r\nthree\r\n"})
    world.make_patch("p", {f"{DIRECTORY}/dos.txt": "one\r\n2\r\nthree\r\n"})
    patched = world.apply()
    assert only(patched).state == "applied"
    assert (patched.path / DIRECTORY / "dos.txt").read_bytes() == b"one\r\n2\r\nthree\r\n"


@pytest.mark.parametrize(
    ("proof", "message"),
    [
        (f"file {LISTS} contains line(1)", "holds before it is applied"),
        (f"file {LISTS} contains nowhere", "does not hold after it is applied"),
        (f"file {LISTS} lacks nowhere", "holds before it is applied"),
        (f"file {DIRECTORY}/none.txt contains x", "does not hold after it is applied"),
    ],
)
def test_a_patch_that_proves_nothing_fails(world: World, proof: str, message: str) -> None:
    world.make_patch(
        "p",
        {LISTS: with_line(CMAKE, 20, "mine()")},
        trailers=f"Upstream-Status: Pending\nProves: {proof}",
    )
    with pytest.raises(PatchError) as caught:
        world.apply()
    assert caught.value.what == "patch 1 of 1 proves nothing: patches/s/p.patch"
    assert caught.value.where["proof"] == f"`{proof}` {message}"
    assert nothing_left(world)


def test_a_proof_that_turns_true(world: World) -> None:
    trailers = (
        f"Upstream-Status: Pending\nProves: file {LISTS} contains mine()\nProves: file {LISTS} lacks line(20)"
    )
    world.make_patch("p", {LISTS: with_line(CMAKE, 20, "mine()")}, trailers=trailers)
    assert only(world.apply()).state == "applied"


def test_a_second_run_touches_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.make_patch("p", {LISTS: with_line(CMAKE, 20, "mine()")})
    arguments = (world.checkout(), world.series(), world.facts(), world.layout, world.recipe())
    first = patching.apply(*arguments)
    before = {path: path.stat().st_mtime_ns for path in first.path.rglob("*")}
    monkeypatch.setenv("PATH", "/nowhere")  # no git: a repeat needs none
    assert patching.apply(*arguments) == first
    assert {path: path.stat().st_mtime_ns for path in first.path.rglob("*")} == before


def test_another_reason_gives_the_same_tree_and_keeps_its_files(world: World) -> None:
    path = world.make_patch("p", {LISTS: with_line(CMAKE, 20, "mine()")})
    first = world.apply()
    inodes = {entry: entry.stat().st_ino for entry in first.path.rglob("*")}
    path.write_text(path.read_text().replace("a test needs it", "two tests need it"))
    second = world.apply()
    assert (second.tree, second.path) == (first.tree, first.path)
    assert second.commit != first.commit
    assert {entry: entry.stat().st_ino for entry in second.path.rglob("*")} == inodes


def test_edits_are_found_set_aside_and_not_built(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.make_patch("p", {LISTS: with_line(CMAKE, 20, "mine()")})
    first = world.apply()
    assert plaintree.edited(first.path) == ()
    (first.path / LISTS).write_text("edited")
    (first.path / DIRECTORY / "more.txt").write_text("more")
    (first.path / DIRECTORY / "__pycache__").mkdir()
    (first.path / DIRECTORY / "__pycache__/x.pyc").write_text("cache")
    assert plaintree.edited(first.path) == (LISTS, f"{DIRECTORY}/more.txt")
    again = world.apply()
    assert again == first
    assert (again.path / LISTS).read_text() == with_line(CMAKE, 20, "mine()")
    aside = again.path.with_name(f"{again.path.name}.modified")
    assert (aside / LISTS).read_text() == "edited"
    said = capsys.readouterr().err
    assert str(aside) in said and f"{LISTS}, {DIRECTORY}/more.txt" in said


def test_a_killed_run_leaves_nothing_that_harms(world: World) -> None:
    world.make_patch("p", {LISTS: with_line(CMAKE, 20, "mine()")})
    expected = world.apply()
    work = world.layout.work / "r"
    subprocess.run(["rm", "-rf", str(expected.path), str(work / "patched")], check=True)
    # As after SIGKILL: a registered worktree in the middle of `git am`, and a tree without record.
    tree = worktree.Worktree(worktree.Git(world.repository), expected.base, work, (DIRECTORY,))
    tree.__enter__()
    tree.status("am", input=b"From 0\nFrom: a <b>\nSubject: x\n\nnothing\n", accept=(0, 1, 128))
    expected.path.mkdir()
    (expected.path / "half").write_text("")
    assert world.apply() == expected
    assert not list(work.glob(".src-*"))
    assert plaintree.edited(expected.path) == ()


def test_what_a_patch_was_made_from_need_not_be_in_the_store(world: World) -> None:
    """The second was made on top of the first, which is not needed here: git alone could not merge it."""
    text = with_line(CMAKE, 20, "mine(20)")
    world.make_patch("first", {LISTS: text}, trailers=f"{TRAILERS}\nNeeded-When: cmake < 3")
    world.make_patch("second", {LISTS: with_line(text, 22, "mine(22)")})
    patched = world.apply(repository=world.clone())
    assert states(patched) == {"first": "not-needed", "second": "applied-3way"}
    assert (patched.path / LISTS).read_text() == with_line(CMAKE, 22, "mine(22)")


CHILD = """
import os, sys
from pathlib import Path
from patchworld import World
os.umask(int(sys.argv[2], 8))
world = object.__new__(World)
world.__dict__.update(root=Path(sys.argv[1]), _clock=0)
from sglwheel.files import Layout
world.layout = Layout(Path(sys.argv[3]))
world.folder = world.layout.patches / "s"
world.repository = world.root / "upstream"
store = Path(sys.argv[4])
patched = world.apply(repository=store)
import hashlib
from sglwheel.patching import exporting
checkout = world.checkout("HEAD~1", repository=store)
exported = exporting.reexport(checkout, world.series(), Path(sys.argv[3]) / "scratch", "kernel")
for patch in world.series().patches:
    assert exported[patch.name] == patch.text, patch.name
    print(patch.name, hashlib.sha256(exported[patch.name]).hexdigest())
mode = (patched.path / "kernel/CMakeLists.txt").stat()
print(patched.commit, patched.tree, oct(mode.st_mode), mode.st_mtime_ns)
"""


def test_two_hosts_get_the_same_commit_and_the_same_exports(world: World, tmp_path: Path) -> None:
    world.make_patch("p", {LISTS: with_line(CMAKE, 20, "mine()")})
    world.make_patch("q", {f"{DIRECTORY}/dos.txt": "x\r\ny\n"}, subject="naïve: ✓ wide")
    world.commit({LISTS: with_line(CMAKE, 18, "theirs()")})
    config = """[user]
name = Somebody Else
email = else@example.invalid
signingkey = 1234
[commit]
gpgsign = true
cleanup = verbatim
[core]
autocrlf = true
eol = crlf
abbrev = 5
hooksPath = {hooks}
[apply]
whitespace = fix
ignoreWhitespace = change
[am]
keepcr = false
threeWay = false
messageid = true
[diff]
noprefix = true
algorithm = patience
[merge]
conflictStyle = diff3
renames = false
[i18n]
commitEncoding = latin1
[init]
defaultBranch = other
[rerere]
enabled = true
"""
    found = set()
    for number, (zone, umask) in enumerate(
        [("UTC", "022"), ("Asia/Tokyo", "077"), ("America/New_York", "002")]
    ):
        home = tmp_path / f"home{number}"
        hooks = home / "hooks"
        hooks.mkdir(parents=True)
        for hook in ("applypatch-msg", "pre-applypatch", "post-checkout", "prepare-commit-msg"):
            (hooks / hook).write_text("#!/bin/sh\nexit 1\n")
            (hooks / hook).chmod(0o755)
        (home / ".gitconfig").write_text(config.format(hooks=hooks) if number else "")
        root = home / "checkout"
        root.mkdir()
        subprocess.run(["cp", "-r", world.layout.patches, world.layout.recipes, root], check=True)
        store = world.clone()
        done = subprocess.run(
            [sys.executable, "-c", CHILD, str(world.root), umask, str(root), str(store)],
            env={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": str(Path(__file__).parents[1]),
                "HOME": str(home),
                "TZ": zone,
                "LC_ALL": "C.UTF-8",
                "GIT_AUTHOR_NAME": "Env",
                "GIT_COMMITTER_DATE": "2001-01-01T00:00:00",
                "GIT_DIR": "/nowhere",
            },
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        found.add(done.stdout)
    assert len(found) == 1, found
