"""Editing, exporting and linting a series: real git on throwaway upstreams."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from patchworld import CMAKE, DIRECTORY, TRAILERS, World, simple, with_line
from sglwheel import files
from sglwheel.errors import PatchError
from sglwheel.patching import editing, exporting, lint

pytestmark = pytest.mark.integration
LISTS = f"{DIRECTORY}/CMakeLists.txt"
LONG = "Größe: a subject that is long enough to be folded over two lines of a mail header, with ümlauts"


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = simple(tmp_path)
    world.make_patch("policy", {LISTS: with_line(CMAKE, 5, "mine()")}, subject="policy: first")
    world.make_patch("new-file", {f"{DIRECTORY}/new.txt": "new\n" * 4}, subject=LONG)
    world.make_patch("drop", {f"{DIRECTORY}/a.txt": None}, subject="drop: a deletion")
    return world


def snapshot(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def open_session(world: World) -> Path:
    return editing.open_session(world.checkout(), world.series(), world.layout, world.recipe()).path


def git(workspace: Path, *args: str, home: Path) -> None:
    """A command as a person types it."""
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "GIT_EDITOR": "true",
        "GIT_AUTHOR_NAME": "Per Son",
        "GIT_AUTHOR_EMAIL": "per@example.invalid",
        "GIT_COMMITTER_NAME": "Per Son",
        "GIT_COMMITTER_EMAIL": "per@example.invalid",
    }
    subprocess.run(["git", *args], cwd=workspace, env=env, check=True, capture_output=True)


def changes(world: World) -> dict[str, str]:
    return {change.name: change.what for change in editing.export(world.layout, world.recipe())}


def test_export_is_the_inverse_of_apply(world: World) -> None:
    before = snapshot(world.folder)
    open_session(world)
    assert changes(world) == {"policy": "same", "new-file": "same", "drop": "same"}
    assert snapshot(world.folder) == before
    assert not editing.path(world.layout, world.recipe()).exists()
    exported = exporting.reexport(world.checkout(), world.series(), world.layout.work, DIRECTORY)
    assert {f"{name}.patch": text for name, text in exported.items()}.items() <= before.items()


def test_commits_become_the_series(world: World, tmp_path: Path) -> None:
    (world.folder / "series").write_text("# why first\npolicy.patch\nnew-file.patch\n\n# last\ndrop.patch\n")
    (world.folder / "README.md").write_text("about\n")
    workspace = open_session(world)
    assert sorted(path.name for path in workspace.iterdir()) == [".git", "LICENSE", DIRECTORY]
    # amend the last, add one, drop the second, which the third does not need
    (workspace / DIRECTORY / "b.txt").write_text("b\n")
    git(workspace, "add", "-A", home=tmp_path)
    git(workspace, "commit", "--amend", "--no-edit", home=tmp_path)
    (workspace / DIRECTORY / "c.txt").write_text("c\n")
    git(workspace, "add", "-A", home=tmp_path)
    git(workspace, "commit", "-m", f"more: a file\n\nIt was missing.\n\n{TRAILERS}", home=tmp_path)
    git(workspace, "rebase", "--onto", "HEAD~3", "HEAD~2", home=tmp_path)
    assert changes(world) == {"policy": "same", "drop": "changed", "more": "added", "new-file": "removed"}
    assert (
        world.folder / "series"
    ).read_text() == "# why first\npolicy.patch\n\n# last\ndrop.patch\nmore.patch\n"
    assert (world.folder / "README.md").read_text() == "about\n"
    stack = world.series()
    assert stack.patches[1].files == (f"{DIRECTORY}/a.txt", f"{DIRECTORY}/b.txt")
    assert stack.patches[2].author == "Per Son <per@example.invalid>"
    assert [state.state for state in world.apply().patches] == ["applied"] * 3


def test_a_reworded_subject_keeps_the_name(world: World, tmp_path: Path) -> None:
    workspace = open_session(world)
    message = f"other: said differently\n\nBecause.\n\n{TRAILERS}"
    git(workspace, "commit", "--amend", "-m", message, home=tmp_path)
    assert changes(world) == {"policy": "same", "new-file": "same", "drop": "changed"}


def test_uncommitted_work_is_neither_exported_nor_lost(world: World, tmp_path: Path) -> None:
    before = snapshot(world.folder)
    workspace = open_session(world)
    (workspace / DIRECTORY / "b.txt").write_text("b\n")
    with pytest.raises(PatchError, match="changes that no commit has") as caught:
        changes(world)
    assert f"?? {DIRECTORY}/b.txt" in caught.value.where["files"]
    assert (workspace / DIRECTORY / "b.txt").read_text() == "b\n"
    (workspace / DIRECTORY / "b.txt").unlink()
    (workspace / ".git/rebase-merge").mkdir()
    with pytest.raises(PatchError, match="a git rebase waits"):
        changes(world)
    assert snapshot(world.folder) == before


def test_what_could_not_be_read_back_is_not_written(world: World, tmp_path: Path) -> None:
    before = snapshot(world.folder)
    workspace = open_session(world)
    (workspace / DIRECTORY / "link").symlink_to("/etc/passwd")
    git(workspace, "add", "-A", home=tmp_path)
    git(workspace, "commit", "-m", "no reason", home=tmp_path)
    with pytest.raises(PatchError, match="what would be exported has 2 mistakes") as caught:
        changes(world)
    reasons = " ".join(caught.value.where.values())
    assert "a symlink" in reasons
    assert "no trailers" in reasons
    assert snapshot(world.folder) == before
    assert workspace.exists()


def test_a_series_that_changed_meanwhile_is_not_overwritten(world: World, tmp_path: Path) -> None:
    workspace = open_session(world)
    git(workspace, "commit", "--amend", "-m", f"drop: again\n\nBecause.\n\n{TRAILERS}", home=tmp_path)
    path = world.folder / "policy.patch"
    path.write_text(path.read_text().replace("Because", "Since"))
    with pytest.raises(PatchError, match="changed while it was being edited"):
        changes(world)
    assert workspace.exists()


def test_an_export_that_was_killed_at_its_end_is_finished(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = open_session(world)
    git(workspace, "commit", "--amend", "-m", f"drop: again\n\nBecause.\n\n{TRAILERS}", home=tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(editing, "_close", lambda _workspace: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            changes(world)
    after = snapshot(world.folder)
    assert workspace.exists()
    assert set(changes(world).values()) == {"same"}
    assert snapshot(world.folder) == after
    assert not workspace.exists()


def test_a_full_disk_leaves_the_old_series(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = snapshot(world.folder)
    workspace = open_session(world)
    git(workspace, "commit", "--amend", "-m", f"drop: again\n\nBecause.\n\n{TRAILERS}", home=tmp_path)
    real, count = files.write_atomic, 0

    def full(path: Path, data: bytes | str, *, mode: int = 0o644) -> None:
        nonlocal count
        count += 1
        if count == 3:
            raise OSError(28, "No space left on device")
        real(path, data, mode=mode)

    monkeypatch.setattr(files, "write_atomic", full)
    with pytest.raises(PatchError, match="cannot write the series: No space left"):
        changes(world)
    assert snapshot(world.folder) == before
    assert [path.name for path in world.layout.patches.iterdir()] == ["s"]
    assert workspace.exists()


def test_one_session_at_a_time_and_discard(world: World) -> None:
    with pytest.raises(PatchError, match="is not being edited"):
        changes(world)
    open_session(world)
    with pytest.raises(PatchError, match="is being edited already"):
        open_session(world)
    editing.discard(world.layout, world.recipe())
    open_session(world)


def test_a_patch_that_conflicts_cannot_be_edited_here(world: World) -> None:
    world.commit({LISTS: with_line(CMAKE, 5, "theirs()")})
    with pytest.raises(PatchError, match="cannot be edited there") as caught:
        open_session(world)
    assert caught.value.where["file"] == f"{LISTS}:5"
    assert not list((world.layout.work / "r").glob("*edit*"))


def test_patches_without_a_commit_keep_their_place(world: World, tmp_path: Path) -> None:
    world.commit({f"{DIRECTORY}/new.txt": "new\n" * 4})
    before = snapshot(world.folder)
    session = editing.open_session(world.checkout(), world.series(), world.layout, world.recipe())
    assert session.kept == ("new-file",)
    git(session.path, "commit", "--amend", "-m", f"drop: again\n\nBecause.\n\n{TRAILERS}", home=tmp_path)
    assert changes(world) == {"policy": "same", "new-file": "same", "drop": "changed"}
    after = snapshot(world.folder)
    assert after["series"] == before["series"]
    assert after["new-file.patch"] == before["new-file.patch"]


def test_merges_and_foreign_bases_are_refused(world: World, tmp_path: Path) -> None:
    workspace = open_session(world)
    git(workspace, "checkout", "-q", "-b", "side", "upstream", home=tmp_path)
    git(workspace, "commit", "--allow-empty", "-m", "side", home=tmp_path)
    git(workspace, "merge", "-q", "--no-ff", "--no-edit", "HEAD@{1}", "HEAD@{2}", home=tmp_path)
    with pytest.raises(PatchError, match="a merge cannot become a patch"):
        changes(world)
    git(workspace, "checkout", "-q", "--orphan", "other", home=tmp_path)
    git(workspace, "commit", "-m", "root", home=tmp_path)
    with pytest.raises(PatchError, match="does not start from the pinned commit"):
        changes(world)


def problems(world: World, *, reexport: bool = True) -> list[str]:
    recipe = world.recipe()
    checkouts = {recipe.id: world.checkout()} if reexport else {}
    found = lint.check(world.layout, [recipe], checkouts)
    return [f"{problem.where} → {problem.reason}" for problem in found]


def test_lint_accepts_what_export_writes(world: World) -> None:
    assert problems(world) == []


def test_lint_finds_what_export_would_change(world: World) -> None:
    path = world.folder / "policy.patch"
    path.write_text(path.read_text().replace("| 2 +-", "| 3 +-"))
    assert problems(world, reexport=False) == []
    assert problems(world) == ["patches/s/policy.patch:11 → not as exported"]


def test_lint_wants_no_more_context_than_needed(world: World) -> None:
    path = world.folder / "policy.patch"
    text = path.read_text().replace("@@ -2,7 +2,7 @@ line(1)\n", "@@ -1,8 +1,8 @@\n line(1)\n")
    assert text != path.read_text()
    path.write_text(text)
    assert problems(world, reexport=False) == [
        "patches/s/policy.patch:17 → more than 3 lines of context (--unified=3)"
    ]


def test_lint_names_ids_numbers_and_unused_series(world: World) -> None:
    path = world.folder / "policy.patch"
    text = path.read_text().replace("From 0000", "From 1234").replace("[PATCH]", "[PATCH 1/3]")
    path.write_text(text)
    other = world.layout.patches / "other"
    other.mkdir()
    (other / "series").write_text("")
    assert problems(world, reexport=False) == [
        "patches/other/series:1 → no recipe uses this series",
        "patches/s/policy.patch:1 → a commit id, which says nothing here (--zero-commit)",
        "patches/s/policy.patch:4 → the subject does not begin with [PATCH], without numbers",
    ]
    assert lint.error(lint.check(world.layout, [world.recipe()])).exit_code == 4


def test_lint_reports_missing_series_and_bad_patches(world: World, tmp_path: Path) -> None:
    (world.folder / "drop.patch").write_text("nonsense")
    assert problems(world) == [
        "patches/s/drop.patch:1 → not a patch of git format-patch: no `From <commit>` line"
    ]
    subprocess.run(["rm", "-r", str(world.folder)], check=True)
    assert problems(world) == ["recipes/r.toml: source.series → no series 's'"]


def test_swap_is_complete(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).write_text("")
    files.swap_directories(tmp_path / "one", tmp_path / "two")
    assert [path.name for path in (tmp_path / "one").iterdir()] == ["two"]
    assert [path.name for path in (tmp_path / "two").iterdir()] == ["one"]


def test_what_a_killed_export_left_is_swept(world: World) -> None:
    (world.layout.patches / ".s.left").mkdir()
    open_session(world)
    changes(world)
    assert [path.name for path in world.layout.patches.iterdir()] == ["s"]
