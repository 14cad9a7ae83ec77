"""The upstream at an exact commit, from whatever place has it."""

from __future__ import annotations

import shutil
import subprocess
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from sglwheel import source
from sglwheel.errors import SourceError
from sglwheel.files import Layout
from sglwheel.git import Git
from sglwheel.mirrors import Mirrors
from sglwheel.source.store import GitStore
from sglwheel.types import CommitId
from sourceworld import UPSTREAM, Repository, World, git

pytestmark = pytest.mark.integration


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture
def upstream(world: World) -> Repository:
    repository = world.repository(UPSTREAM)
    repository.commit({"LICENSE": "Apache", "kernel/a.cu": "one\n", "big/other.bin": "x" * 50_000})
    repository.commit({"kernel/a.cu": "two\n"})
    return repository


def test_exact_commit_and_only_its_kernel_project(world: World, upstream: Repository) -> None:
    wanted = upstream.commit({"kernel/b.cu": "three\n"})
    upstream.commit({"kernel/b.cu": "four\n"})
    found = source.checkout(world.recipe(wanted), world.layout, world.mirrors)
    assert (found.commit, found.tree, found.date.year) == (wanted, upstream.tree(wanted), 2025)
    store = Git(found.repository)
    assert store.read(wanted, "kernel/b.cu") == "three\n"
    assert 0 < found.bytes_fetched < 20_000, "the large file elsewhere did not come"
    assert (found.repository / "shallow").read_text().strip() == wanted


def test_second_time_nothing_is_received(world: World, upstream: Repository) -> None:
    recipe = world.recipe(upstream.commit({}))
    source.checkout(recipe, world.layout, world.mirrors)
    shutil.rmtree(upstream.path)
    assert source.checkout(recipe, world.layout, world.mirrors).bytes_fetched == 0


def test_history_comes_only_when_asked_for(world: World, upstream: Repository) -> None:
    first = CommitId(git(upstream.path, "rev-list", "--max-parents=0", "HEAD"))
    found = source.checkout(world.recipe(upstream.commit({})), world.layout, world.mirrors)
    later = upstream.commit({})
    assert source.contains(found, first, world.layout, world.mirrors)
    assert not source.contains(found, later, world.layout, world.mirrors)
    assert not (found.repository / "shallow").exists()


def test_three_way_merge_gets_the_blob_it_needs(world: World, upstream: Repository, tmp_path: Path) -> None:
    lines = [f"{number}\n" for number in range(40)]
    upstream.commit({"kernel/c.cu": "".join(lines)})
    changed = [*lines[:20], "patched\n", *lines[21:]]
    upstream.commit({"kernel/c.cu": "".join(changed)}, "patch")
    patch = git(upstream.path, "format-patch", "-1", "--stdout", "--full-index") + "\n"
    git(upstream.path, "reset", "--quiet", "--hard", "HEAD^")
    # The context of the patch moves, so that only a merge with the older file can apply it.
    moved = upstream.commit(
        {"kernel/c.cu": "".join([*lines[:18], "new\n", *lines[18:]]).replace("17\n", "x\n")}
    )
    found = source.checkout(world.recipe(moved), world.layout, world.mirrors)
    tree = tmp_path / "tree"
    Git(found.repository).run("worktree", "add", "--quiet", "--detach", tree, moved)
    date = found.date
    Git(tree).run("am", "-3", input=patch.encode(), env=Git.identity_env(date))
    assert "patched\n" in (tree / "kernel/c.cu").read_text()
    assert "new\n" in (tree / "kernel/c.cu").read_text()


def test_missing_commit(world: World, upstream: Repository) -> None:
    with pytest.raises(SourceError, match="cannot get commit 1111") as caught:
        source.checkout(world.recipe("1" * 40), world.layout, world.mirrors)
    assert "does not have it" in caught.value.where[str(upstream.path)]
    assert caught.value.exit_code == 3
    assert "SGLWHEEL_MIRRORS" in (caught.value.next or "")


def test_missing_mirror(world: World) -> None:
    world.entries[UPSTREAM] = str(world.root / "nowhere")
    with pytest.raises(SourceError) as caught:
        source.checkout(world.recipe(), world.layout, world.mirrors)
    assert caught.value.where == {str(world.root / "nowhere"): "no such directory"}


def test_not_a_repository(world: World) -> None:
    (world.root / "empty").mkdir()
    world.entries[UPSTREAM] = str(world.root / "empty")
    with pytest.raises(SourceError) as caught:
        source.checkout(world.recipe(), world.layout, world.mirrors)
    assert "no repository there" in caught.value.where[str(world.root / "empty")]


def test_no_mirror_for_a_reserved_name(world: World) -> None:
    with pytest.raises(SourceError) as caught:
        source.checkout(world.recipe(), world.layout, world.mirrors)
    assert caught.value.where == {UPSTREAM: "a reserved name, and no mirror is set for it"}


def test_missing_directory(world: World, upstream: Repository) -> None:
    git(upstream.path, "rm", "-r", "--quiet", "kernel")
    commit = upstream.commit({})
    with pytest.raises(SourceError, match="no directory 'kernel'"):
        source.checkout(world.recipe(commit), world.layout, world.mirrors)


def lying(honest: Repository, commit: CommitId, path: Path, *, blob: str | None = None) -> Path:
    """A mirror that has other content under an id: its object file is that of another object."""
    git(honest.path, "clone", "--quiet", "--bare", "--no-local", str(honest.path), str(path))
    pack = next((path / "objects/pack").glob("*.pack"))
    loose = path.parent / "loose.pack"
    pack.rename(loose)
    for item in (path / "objects/pack").iterdir():
        item.unlink()
    with loose.open("rb") as stream:
        subprocess.run(["git", "-C", str(path), "unpack-objects", "-q"], stdin=stream, check=True)
    wanted = git(path, "rev-parse", f"{commit}:{blob}") if blob else str(commit)
    other = git(path, "rev-parse", f"{commit}~1:{blob}") if blob else git(path, "rev-parse", f"{commit}~1")
    target, content = (path / "objects" / item[:2] / item[2:] for item in (wanted, other))
    target.chmod(0o644)
    target.write_bytes(content.read_bytes())
    return path


@pytest.mark.parametrize("blob", [None, "kernel/a.cu"])
def test_lying_mirror_is_refused(world: World, upstream: Repository, blob: str | None) -> None:
    commit = CommitId(git(upstream.path, "rev-parse", "HEAD"))
    mirror = lying(upstream, commit, world.root / "liar", blob=blob)
    world.entries[UPSTREAM] = str(mirror)
    with pytest.raises(SourceError) as caught:
        source.checkout(world.recipe(commit), world.layout, world.mirrors)
    assert "sent something else than this id, or damaged data" in caught.value.where[str(mirror)]
    assert not list((world.root / ".cache").rglob("sources/*"))


def test_next_mirror_is_tried(world: World, upstream: Repository) -> None:
    commit = upstream.commit({"kernel/c.cu": "here\n"})
    liar = lying(upstream, commit, world.root / "liar")
    places = (str(world.root / "nowhere"), str(liar), str(upstream.path))
    mirrors = Mirrors({UPSTREAM: places})
    found = source.checkout(world.recipe(commit), world.layout, mirrors)
    assert Git(found.repository).read(commit, "kernel/c.cu") == "here\n"


def test_bare_mirror_without_any_setting(world: World, upstream: Repository) -> None:
    commit = CommitId(git(upstream.path, "rev-parse", "HEAD~1"))
    bare = world.root / "bare.git"
    git(upstream.path, "clone", "--quiet", "--bare", str(upstream.path), str(bare))
    (bare / "config").unlink()
    world.entries[UPSTREAM] = bare.as_uri()
    found = source.checkout(world.recipe(commit), world.layout, world.mirrors)
    assert Git(found.repository).read(commit, "kernel/a.cu") == "one\n"


def test_tags_and_branches_resolve(world: World, upstream: Repository) -> None:
    commit = CommitId(git(upstream.path, "rev-parse", "HEAD"))
    git(upstream.path, "tag", "-a", "v1.0", "-m", "annotated")
    upstream.commit({})
    store = GitStore.open(UPSTREAM, world.layout, world.mirrors)
    assert store.resolve("v1.0") == commit
    assert store.resolve("origin/main") == store.resolve("main") != commit
    with pytest.raises(SourceError, match="tag or branch 'v2'"):
        store.resolve("v2")


def fetch(root: str, url: str, upstream: str, commit: str) -> int:
    store = GitStore.open(url, Layout(Path(root)), Mirrors({url: (upstream,)}))
    return store.commit(CommitId(commit)) + store.blobs(CommitId(commit), ["kernel"])


def test_processes_share_a_store(world: World, upstream: Repository) -> None:
    commit = CommitId(git(upstream.path, "rev-parse", "HEAD"))
    with ProcessPoolExecutor(4, mp_context=get_context("spawn")) as pool:
        jobs = [
            pool.submit(fetch, str(world.root), UPSTREAM, str(upstream.path), str(commit)) for _ in range(4)
        ]
        counts = [job.result() for job in jobs]
    assert sum(count > 0 for count in counts) in (1, 2), "one process fetches the commit, one the files"
    assert len(world.received()) == 2, "nothing was fetched twice"
