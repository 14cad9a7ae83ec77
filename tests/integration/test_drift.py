"""Drift on throwaway histories, each answer compared with `git am -3` itself."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from patchworld import CMAKE, DIRECTORY, TRAILERS, World, simple, with_line
from sglwheel import drift, git, process
from sglwheel.drift import Drift, driftview, lineage, revisions
from sglwheel.errors import PatchError, UsageError
from sglwheel.git import Git, objects
from sglwheel.mirrors import Mirrors
from sglwheel.patching import trials, worktree
from sglwheel.types import CommitId

pytestmark = pytest.mark.integration
LISTS = f"{DIRECTORY}/CMakeLists.txt"
MINE = with_line(CMAKE, 20, "mine()")


@pytest.fixture
def world(tmp_path: Path) -> World:
    return simple(tmp_path)


def run(
    world: World, start: str, end: str = "HEAD", *, all: bool = False, repository: Path | None = None
) -> Drift:
    git = Git(repository or world.repository)
    first, last = (CommitId.parse(world.git("rev-parse", name).strip()) for name in (start, end))
    recipe = world.recipe(start)
    facts = world.facts(commit=start)
    return drift.run(git, world.series(None), recipe, facts, first, last, fetch=lambda _ids: None, all=all)


def changes(found: Drift) -> list[tuple[str, str, str | None, str]]:
    return [
        (change.commit.subject, change.patch, change.before, change.after)
        for change in found.changes
        if change.before is not None
    ]


def agrees_with_git(world: World, found: Drift) -> None:
    """Every state is what `git am -3` says in a worktree of that commit; a merged patch stays merged."""
    git = Git(world.repository)
    stack = found.series
    objects.seed(git, trials.bases(git, stack))
    start = found.history.steps[0].commit.id
    with worktree.Worktree(git, start, world.root / "work", (DIRECTORY,)) as tree:
        for step, row in zip(found.history.steps, found.outcomes, strict=True):
            tree.run("reset", "--quiet", "--hard", step.commit.id)
            for patch in stack.patches:
                if row[patch.name].state == "not-needed":
                    continue
                state, _, words = worktree.am(tree, patch)
                worktree.abort(tree)
                if not row[patch.name].detail.startswith(("merged with", "upstream has")):
                    assert row[patch.name].state == state, f"{step.commit.subject}: {patch.name}: {words}"


def test_a_merged_patch_stays_merged_when_upstream_changes_it(world: World) -> None:
    world.make_patch("p", {LISTS: MINE})
    start = world.git("rev-parse", "HEAD").strip()
    world.commit({"docs/notes.md": "other\n"}, "elsewhere")
    merged = world.commit({LISTS: MINE}, "the same (#12)")
    world.commit({LISTS: with_line(MINE, 20, "mine(better)")}, "improved (#13)")
    world.commit({LISTS: CMAKE}, "Revert the same (#14)")
    found = run(world, start)
    assert changes(found) == [
        ("the same (#12)", "p", "applied", "already-upstream"),
        ("Revert the same (#14)", "p", "already-upstream", "applied"),
    ]
    assert found.changes[1].commit.pull_request == 12
    assert found.outcomes[2]["p"].detail == f"merged with {merged[:9]}, and changed since"
    assert found.works
    assert found.failure() is None
    agrees_with_git(world, found)


def test_another_fix_of_the_same_thing_is_a_conflict(world: World) -> None:
    world.make_patch("p", {LISTS: MINE})
    start = world.git("rev-parse", "HEAD").strip()
    world.commit({LISTS: with_line(CMAKE, 20, "theirs()")}, "their fix")
    found = run(world, start)
    assert changes(found) == [("their fix", "p", "applied", "conflict")]
    assert found.outcomes[-1]["p"].detail == f"{LISTS}:20"
    error = found.failure()
    assert error is not None
    assert error.exit_code == 4
    assert error.where == {"p": f"conflict: {LISTS}:20"}
    agrees_with_git(world, found)


def test_a_backport_of_what_upstream_has_is_upstream(world: World) -> None:
    start = world.git("rev-parse", "HEAD").strip()
    theirs = world.commit({LISTS: with_line(CMAKE, 20, "theirs()")}, "their fix")
    world.git("checkout", "--quiet", "-B", "main", start)
    trailers = f"Upstream-Status: Backport {theirs}\nProves: configures"
    world.make_patch("p", {LISTS: MINE}, trailers=trailers)
    found = run(world, start, theirs)
    assert changes(found) == [("their fix", "p", "applied", "already-upstream")]


def test_what_a_status_calls_pointless_is_obsolete_where_it_no_longer_applies(world: World) -> None:
    start = world.git("rev-parse", "HEAD").strip()
    theirs = world.commit({LISTS: with_line(CMAKE, 20, "theirs()")}, "their way")
    world.git("checkout", "--quiet", "-B", "main", start)
    trailers = f"Upstream-Status: Inappropriate theirs since {theirs}\nProves: configures"
    world.make_patch("p", {LISTS: MINE}, trailers=trailers)
    found = run(world, start, theirs)
    assert changes(found) == [("their way", "p", "applied", "obsolete")]
    assert found.outcomes[-1]["p"].detail == f"theirs since {theirs}"


def test_moves_deletions_and_renames(world: World) -> None:
    """A directory moves; then one file is renamed with an edit, and another deleted."""
    world.make_patch("lists", {LISTS: MINE})
    world.make_patch("text", {f"{DIRECTORY}/a.txt": "one\n2\nthree\n"})
    world.make_patch("new", {f"{DIRECTORY}/new.txt": "new\n"})
    start = world.git("rev-parse", "HEAD").strip()
    (world.repository / "python/aot").mkdir(parents=True)
    world.git("mv", DIRECTORY, "python/aot/kernel")
    world.commit_all("move")
    world.git("mv", "python/aot/kernel/CMakeLists.txt", "python/aot/kernel/lists.cmake")
    world.commit({"python/aot/kernel/lists.cmake": with_line(CMAKE, 30, "theirs()")}, "rename and edit")
    world.commit({"python/aot/kernel/a.txt": None}, "delete")
    found = run(world, start)
    assert changes(found) == [
        ("move", "lists", "applied", "applied-3way"),
        ("move", "text", "applied", "applied-3way"),
        ("move", "new", "applied", "applied-3way"),
        ("delete", "text", "applied-3way", "obsolete"),
    ]
    assert found.history.steps[-1].directory == "python/aot/kernel"
    assert found.history.steps[-1].paths[LISTS] == "python/aot/kernel/lists.cmake"
    assert found.notices[0].notice.what == f"source directory moved: {DIRECTORY} → python/aot/kernel"


def test_merges_and_side_branches_are_one_step_of_the_main_line(world: World) -> None:
    world.make_patch("p", {LISTS: MINE})
    start = world.git("rev-parse", "HEAD").strip()
    world.git("checkout", "--quiet", "-b", "side")
    world.commit({LISTS: with_line(CMAKE, 20, "theirs()")}, "on the side")
    world.commit({LISTS: with_line(CMAKE, 18, "theirs()")}, "on the side again")
    world.git("checkout", "--quiet", "main")
    world.commit({"docs/notes.md": "other\n"}, "elsewhere")
    world.git("merge", "--quiet", "--no-ff", "-m", "Merge pull request #77 from side", "side")
    found = run(world, start)
    assert changes(found) == [("Merge pull request #77 from side", "p", "applied", "applied-3way")]
    assert found.changes[-1].commit.pull_request == 77
    assert len(found.history.line) == 3
    agrees_with_git(world, found)
    # A line that leaves the main one: first parents do not lead to its start.
    found = run(world, "side~1", "HEAD")
    assert found.history.steps[0].commit.subject == "on the side"
    assert found.outcomes[0]["p"].state == "conflict"
    assert found.outcomes[-1]["p"].state == "applied-3way"


def test_conditions_on_upstream_are_asked_at_every_commit(world: World) -> None:
    start = world.git("rev-parse", "HEAD").strip()
    theirs = world.commit({LISTS: MINE}, "merged")
    world.git("checkout", "--quiet", "-B", "main", start)
    world.make_patch("p", {LISTS: MINE}, trailers=f"{TRAILERS}\nNeeded-When: upstream lacks {theirs}")
    world.make_patch("q", {f"{DIRECTORY}/q.txt": "q\n"}, trailers=f"{TRAILERS}\nNeeded-When: cmake < 3")
    found = run(world, start, theirs)
    assert changes(found) == [("merged", "p", "applied", "not-needed")]
    assert found.outcomes[0]["q"].detail == "cmake 3.28.4 is not < 3"
    assert found.works
    assert run(world, start, theirs, all=True).outcomes[0]["q"].state == "applied"


@pytest.mark.parametrize("branch", ["main", "side"])
def test_a_commit_that_a_condition_names_counts_although_it_touches_nothing(
    world: World, branch: str
) -> None:
    start = world.git("rev-parse", "HEAD").strip()
    world.commit({"docs/notes.md": "other\n"}, "before")
    world.git("checkout", "--quiet", "-B", branch)
    theirs = world.commit({"docs/fix.md": "fixed elsewhere\n"}, "their fix")
    world.git("checkout", "--quiet", "main")
    if branch == "side":
        world.commit({"docs/notes.md": "more\n"}, "meanwhile")
        world.git("merge", "--quiet", "--no-ff", "-m", "Merge pull request #5 from side", "side")
    world.commit({"docs/notes.md": "last\n"}, "after")
    tip = world.git("rev-parse", "HEAD").strip()
    world.git("checkout", "--quiet", "-B", "main", start)
    world.make_patch("p", {LISTS: MINE}, trailers=f"{TRAILERS}\nNeeded-When: upstream lacks {theirs}")
    found = run(world, start, tip)
    subject = "their fix" if branch == "main" else "Merge pull request #5 from side"
    assert changes(found) == [(subject, "p", "applied", "not-needed")]


@pytest.mark.parametrize("seed", range(4))
def test_random_histories_agree_with_git(world: World, seed: int) -> None:
    """Patches that build on each other, and upstream edits all over the same file."""
    rng = random.Random(seed)
    text = CMAKE
    for number in range(3):
        text = with_line(text, rng.randint(1, 40), f"mine({number})")
        world.make_patch(f"p{number}", {LISTS: text, f"{DIRECTORY}/n{number}.txt": f"{number}\n"})
    start = world.git("rev-parse", "HEAD").strip()
    theirs = CMAKE.splitlines(keepends=True)
    for number in range(6):
        at = rng.randint(0, len(theirs) - 1)
        match rng.choice(["insert", "change", "delete"]):
            case "insert":
                theirs[at:at] = [f"theirs({number})\n"] * rng.randint(1, 3)
            case "change":
                theirs[at] = f"theirs({number})\n"
            case "delete":
                del theirs[at]
        world.commit({LISTS: "".join(theirs)}, f"change {number}")
    found = run(world, start)
    assert len(found.history.steps) == 7
    agrees_with_git(world, found)


@pytest.mark.parametrize("options", [["--filter=blob:none"], ["--filter=blob:none", "--depth=3"]])
def test_partial_and_shallow_clones_do(world: World, options: list[str]) -> None:
    world.make_patch("p", {LISTS: MINE})
    start = world.git("rev-parse", "HEAD").strip()
    world.commit({LISTS: with_line(CMAKE, 18, "theirs()")}, "beside")
    world.commit({LISTS: with_line(CMAKE, 20, "theirs()")}, "there")
    found = run(world, start, repository=world.clone(*options))
    assert [change[3] for change in changes(found)] == ["applied-3way", "conflict"]


def test_what_still_applies_and_is_not_enough(world: World) -> None:
    pyproject = '[project]\nname = "{}"\ndependencies = [{}]\n[build-system]\nrequires = ["torch>={}"]\n'
    lists = (
        CMAKE
        + 'set(CUDA_FLAGS "-gencode=arch=compute_90a,code=sm_90a")\nPython_add_library(ops MODULE a.cc)\n'
    )
    start = world.commit(
        {LISTS: lists, f"{DIRECTORY}/pyproject.toml": pyproject.format("k", "", "2.8")}, "pin"
    )
    world.make_patch("p", {LISTS: with_line(lists, 20, "mine(COVERED_FLAGS)")})
    more = (
        '# set(NO_FLAGS "compute_80")\nset(NEW_FLAGS "-gencode=arch=compute_80,code=sm_80")\n'
        'list(APPEND COVERED_FLAGS "-gencode=arch=compute_80,code=sm_80")\n'
        "Python_add_library(more_ops MODULE b.cc)\nadd_library(alias ALIAS more_ops)\n"
        "FetchContent_Declare(\n  repo-more\n  GIT_TAG x)\n"
    )
    world.commit({f"{DIRECTORY}/cmake/more.cmake": more}, "more")
    world.commit(
        {f"{DIRECTORY}/pyproject.toml": pyproject.format("other-k", '"torch==2.13.0"', "2.13")}, "renamed"
    )
    found = run(world, start)
    assert changes(found) == []
    assert [item.notice.what for item in found.notices] == [
        "new list of GPU architectures: NEW_FLAGS",
        "new library: more_ops",
        "new FetchContent source: repo-more",
        "distribution renamed: k → other-k",
        "required torch: build torch>=2.8 → build torch>=2.13, run torch==2.13.0",
    ]
    text = "\n".join(driftview.lines(found))
    assert "no patch changed its state" in text
    assert "new list of GPU architectures: NEW_FLAGS" in text
    assert "<svg" in driftview.page(found)
    assert "http://" not in driftview.page(found).replace("http://www.w3.org/2000/svg", "")
    assert found.to_json()["notices"][0]["subject"] == "more"


def test_the_picture_fits_and_wraps(world: World) -> None:
    world.make_patch("p", {LISTS: MINE})
    start = world.git("rev-parse", "HEAD").strip()
    for number in range(12):
        world.commit({LISTS: with_line(CMAKE, 20 if number > 5 else 30, f"theirs({number})")}, f"c{number}")
    shown = list(driftview.picture(run(world, start), width=14))
    assert [line for line in shown if line.startswith("p")] == ["p  ■■■■■■■✗✗✗", "p  ✗✗✗"]
    assert shown[-1] == "■ applied  ✗ conflict"
    assert "2026-03" in shown[0]


def test_the_number_of_processes_does_not_grow_with_history(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.make_patch("p", {LISTS: MINE})
    start = world.git("rev-parse", "HEAD").strip()
    counts = []
    real = process.run
    for rounds in (2, 20):
        for number in range(rounds):
            world.commit({"docs/notes.md": f"{rounds} {number}\n"}, "elsewhere")
            world.commit({LISTS: with_line(CMAKE, 18, f"theirs({rounds}, {number})")}, "beside")
        calls = 0

        def counted(*args: object, **rest: object) -> process.Completed:
            nonlocal calls
            calls += 1
            return real(*args, **rest)  # type: ignore[arg-type]

        monkeypatch.setattr(process, "run", counted)
        run(world, start)
        monkeypatch.setattr(process, "run", real)
        counts.append(calls)
    assert counts[0] == counts[1]


def test_ranges_that_are_none(world: World) -> None:
    start = world.git("rev-parse", "HEAD").strip()
    world.git("checkout", "--quiet", "-b", "side")
    side = world.commit({LISTS: MINE}, "side")
    world.git("checkout", "--quiet", "main")
    world.commit({"docs/notes.md": "x"}, "main")
    with pytest.raises(UsageError, match="does not descend"):
        run(world, side, "main")
    with pytest.raises(UsageError, match="does not descend"):
        run(world, "main", start)
    assert run(world, start, start).history.steps[0].commit.id == start


def test_revisions_are_ids_branches_and_dates(world: World) -> None:
    git = Git(world.repository)
    first = world.git("rev-parse", "HEAD").strip()
    second = world.commit({"docs/notes.md": "x"}, "second")

    def resolve(text: str) -> str:
        return revisions.resolve(git, text, tip="main", option="--to")

    assert resolve("main") == second
    assert resolve(second[:9]) == second
    assert resolve("2026-03-03") == first
    assert resolve("2026-03-04") == second
    for text, message in (
        ("nowhere", "names no commit of upstream"),
        ("2020-01-01", "no commit that old"),
        ("2026-02-31", "no such date"),
        ("f" * 40, "names no commit"),
        ("--all", "names no commit"),
    ):
        with pytest.raises(UsageError, match=message):
            resolve(text)


def test_an_ambiguous_id_lists_what_it_could_be(world: World) -> None:
    tree = world.git("rev-parse", "HEAD^{tree}").strip()
    found: dict[str, str] = {}
    for number in range(3000):
        commit = world.git("commit-tree", tree, "-m", str(number)).strip()
        if commit[:4] in found:
            break
        found[commit[:4]] = commit
    else:
        pytest.fail("no two of 3000 ids begin alike")
    with pytest.raises(UsageError, match="ambiguous") as caught:
        revisions.resolve(Git(world.repository), commit[:4], tip="main", option="--from")
    assert len(caught.value.where) >= 2


def test_lineage_has_history_without_files_and_asks_when_it_must(world: World) -> None:
    world.make_patch("p", {LISTS: MINE})
    start = world.git("rev-parse", "HEAD").strip()
    world.commit({LISTS: with_line(CMAKE, 18, "theirs()")}, "beside")
    recipe = world.recipe(start)
    mirrors = Mirrors({}).with_entries({recipe.source.git: world.repository})
    line = lineage.Lineage.open(recipe, world.layout, mirrors)
    tip = line.commit("main", option="--to")
    found = drift.run(
        line.git,
        world.series(),
        recipe,
        world.facts(commit=start),
        CommitId.parse(start),
        tip,
        fetch=line.fetch,
    )
    assert [change[3] for change in changes(found)] == ["applied-3way"]
    newer = world.commit({"docs/notes.md": "x"}, "newer")
    assert line.commit("main", option="--to", offline=True) == tip
    assert line.commit("main", option="--to") == newer
    # On no branch that is tracked, but its full id is enough.
    world.git("checkout", "--quiet", "-b", "side")
    side = world.commit({"docs/notes.md": "y"}, "side")
    assert line.commit(side, option="--to") == side
    # As are a release's tag, and another branch as it is now.
    released = world.commit({"docs/notes.md": "z"}, "released")
    world.git("tag", "-a", "v1.0", "-m", "released")
    assert line.commit("v1.0", option="--to") == released
    assert line.commit("side", option="--to") == released
    later = world.commit({"docs/notes.md": "again"}, "later")
    assert line.commit("side", option="--to") == later
    for unknown in ("v2.0", "si*", "--upload-pack=x"):
        with pytest.raises(UsageError, match="names no commit of upstream"):
            line.commit(unknown, option="--to")


@pytest.mark.parametrize("text", ["git version 2.38.1", "git version 1.9", "nonsense", ""])
def test_an_old_git_is_named(text: str) -> None:
    with pytest.raises(UsageError, match=r"git 2\.39 or later is needed"):
        git.judge(text)


@pytest.mark.parametrize(
    "text", ["git version 2.39.5", "git version 2.50.0 (Apple Git-1)", "git version 3.0"]
)
def test_a_new_enough_git_is_not(text: str) -> None:
    git.judge(text)


def test_crlf_files_drift_as_others(world: World) -> None:
    dos = "".join(f"line {n}\r\n" for n in range(12))
    world.commit({f"{DIRECTORY}/dos.txt": dos}, "dos")
    world.make_patch("p", {f"{DIRECTORY}/dos.txt": dos.replace("line 5\r", "mine\r")})
    start = world.git("rev-parse", "HEAD").strip()
    world.commit({f"{DIRECTORY}/dos.txt": dos.replace("line 7\r", "theirs\r")}, "beside")
    world.commit({f"{DIRECTORY}/dos.txt": dos.replace("\r", "")}, "unix")
    found = run(world, start)
    assert [change[3] for change in changes(found)] == ["applied-3way", "conflict"]
    agrees_with_git(world, found)


def test_the_failure_is_a_patch_error(world: World) -> None:
    world.make_patch("p", {f"{DIRECTORY}/a.txt": "one\n2\nthree\n"})
    start = world.git("rev-parse", "HEAD").strip()
    world.commit({f"{DIRECTORY}/a.txt": None}, "gone")
    error = run(world, start).failure()
    assert isinstance(error, PatchError)
    assert error.where == {"p": f"obsolete: {DIRECTORY}/a.txt is gone"}
