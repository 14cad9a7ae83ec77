"""Rebasing a series: real git, real interruptions."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from patchworld import CMAKE, DIRECTORY, World, simple, with_line
from sglwheel import files, lockverb, rebase, recipe
from sglwheel.drift.lineage import Lineage
from sglwheel.errors import PatchError, UsageError
from sglwheel.mirrors import Mirrors
from sglwheel.patching import editing, lint
from sglwheel.rebase import landing, rebasestate

pytestmark = pytest.mark.integration
LISTS = f"{DIRECTORY}/CMakeLists.txt"
PYPROJECT = '[project]\nname = "kernel"\nversion = "{}"\n'


class Rebase:
    """A world with a recipe on disk, and the verbs as the command line calls them."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.layout = world.layout
        self.path = world.layout.recipes / "r.toml"

    def start(
        self, to: str, skips: Mapping[str, str] | None = None, name: str | None = None
    ) -> landing.Report:
        loaded = recipe.load(self.layout, "r")
        stack = rebase.series.load(self.layout, loaded.source.series, directory=loaded.source.directory)
        facts = self.world.facts()
        self.path.write_bytes(self._text)  # World.facts writes one, too
        return rebase.start(
            self.layout, loaded, stack, facts, self._lineage(), to, skips=skips or {}, new_series=name
        )

    def proceed(self, skips: Mapping[str, str] | None = None) -> landing.Report:
        return rebase.proceed(self.layout, recipe.load(self.layout, "r"), skips=skips)

    def abort(self) -> None:
        rebase.give_up(self.layout, recipe.load(self.layout, "r"))

    def pin(self) -> None:
        """Write a recipe with comments for the upstream's HEAD."""
        self.world.recipe()
        text = (
            self.path.read_text()
            .replace('series = "s"', 'series = "s"  # ours')
            .replace("[source]", "# why\n[source]")
        )
        self.path.write_text(text.replace('commit = "', 'commit     = "', 1))
        self._text = self.path.read_bytes()

    def snapshot(self) -> dict[str, bytes]:
        roots = (self.layout.recipes, self.layout.patches)
        return {
            str(path.relative_to(self.layout.root)): path.read_bytes()
            for root in roots
            for path in sorted(root.rglob("*"))
            if path.is_file()
        }

    def _lineage(self) -> Lineage:
        loaded = recipe.load(self.layout, "r")
        mirrors = Mirrors({}).with_entries({loaded.source.git: self.world.repository})
        return Lineage.open(loaded, self.layout, mirrors)

    @property
    def workspace(self) -> Path:
        return rebase.workspace(self.layout, "r")


@pytest.fixture
def job(tmp_path: Path) -> Rebase:
    """Five patches; upstream merges one, deletes a file, has its own idea of a third, moves the directory."""
    world = simple(tmp_path)
    world.commit(
        {f"{DIRECTORY}/pyproject.toml": PYPROJECT.format("1.0"), f"{DIRECTORY}/gone.txt": "x\ny\nz\n"}
    )
    world.make_patch("merged", {LISTS: with_line(CMAKE, 5, "mine(5)")})
    text = with_line(CMAKE, 5, "mine(5)")
    proof = f"Upstream-Status: Pending\nProves: file {LISTS} contains mine(20)"
    world.make_patch("fought", {LISTS: with_line(text, 20, "mine(20)")}, trailers=proof)
    text = with_line(text, 20, "mine(20)")
    world.make_patch("lost", {f"{DIRECTORY}/gone.txt": "x\n2\nz\n"})
    world.make_patch("clean", {f"{DIRECTORY}/new.txt": "new\n"})
    world.make_patch("beside", {LISTS: with_line(text, 35, "mine(35)")})
    (world.folder / "README.md").write_text("about\n")
    job = Rebase(world)
    job.pin()
    theirs = with_line(CMAKE, 5, "mine(5)")
    world.commit({LISTS: theirs}, "merge the first (#1)")
    theirs = with_line(theirs, 20, "theirs(20)")
    world.commit({LISTS: theirs}, "fight (#2)")
    world.commit({LISTS: with_line(theirs, 33, "theirs(33)"), f"{DIRECTORY}/gone.txt": None}, "lose (#3)")
    (world.repository / "aot").mkdir()
    world.git("mv", DIRECTORY, "aot/kernel")
    world.commit_all("move (#4)")
    world.commit({"aot/kernel/pyproject.toml": PYPROJECT.format("2.0")}, "version 2.0 (#5)")
    return job


def resolve(job: Rebase) -> None:
    path = job.workspace / "aot/kernel/CMakeLists.txt"
    lines = path.read_text().split("\n")
    start = next(at for at, line in enumerate(lines) if line.startswith("<<<<<<<"))
    end = next(at for at, line in enumerate(lines) if line.startswith(">>>>>>>"))
    lines[start : end + 1] = ["theirs_and_mine(20)"]
    path.write_text("\n".join(lines))
    subprocess.run(["git", "add", "-A"], cwd=job.workspace, check=True)


def check_result(job: Rebase) -> None:
    loaded = recipe.load(job.layout, "r")
    assert loaded.source.directory == "aot/kernel"
    assert loaded.source.series == "2.0"
    assert loaded.source.commit == job.world.git("rev-parse", "HEAD").strip()
    stack = rebase.series.load(job.layout, "2.0", directory="aot/kernel")
    assert [patch.name for patch in stack.patches] == ["fought", "clean", "beside"]
    assert str(stack.patches[0].proves[0]) == "file aot/kernel/CMakeLists.txt contains mine(20)"
    assert not rebasestate.file(job.layout, "r").exists()
    assert not job.workspace.exists()


def test_a_rebase_through_everything(job: Rebase) -> None:
    before = job.snapshot()
    with pytest.raises(PatchError) as caught:
        job.start("main")
    error = caught.value
    assert error.what == "patch 2 of 5 conflicts: patches/s/fought.patch"
    assert error.where["file"] == "aot/kernel/CMakeLists.txt:20"
    assert "fight (#2)" in error.where["upstream"]
    assert error.where["ours"] == "fought"
    assert "--continue" in str(error.next)
    assert job.snapshot() == before
    # Not resolved, half resolved, resolved.
    for message in ("CMakeLists.txt:20 has conflict markers",):
        with pytest.raises(PatchError, match="not resolved yet") as unresolved:
            job.proceed()
        assert message in unresolved.value.where["files"]
    resolve(job)
    (job.workspace / "aot/kernel/extra.txt").write_text("not added\n")
    with pytest.raises(PatchError, match="not resolved yet") as unresolved:
        job.proceed()
    assert "extra.txt is changed, and not added" in unresolved.value.where["files"]
    (job.workspace / "aot/kernel/extra.txt").unlink()
    assert job.snapshot() == before
    report = job.proceed()
    check_result(job)
    assert [(done.name, done.action) for done in report.done] == [
        ("merged", "dropped"),
        ("fought", "resolved"),
        ("lost", "dropped"),
        ("clean", "carried"),
        ("beside", "carried-3way"),
    ]
    text = "\n".join(report.lines)
    assert "series s → 2.0, now in aot/kernel" in text
    assert "merge the first" in text or "merged with" in text
    assert "lose (#3)" in text
    after = job.snapshot()
    assert {name: after[name] for name in before if name != "recipes/r.toml"} == {
        name: text for name, text in before.items() if name != "recipes/r.toml"
    }
    assert after["patches/2.0/README.md"] == b"about\n"
    changed = [
        (old, new)
        for old, new in zip(
            before["recipes/r.toml"].splitlines(), after["recipes/r.toml"].splitlines(), strict=True
        )
        if old != new
    ]
    assert [old.split(b"=")[0].strip() for old, _ in changed] == [b"commit", b"directory", b"series"]
    assert changed[2][1] == b'series = "2.0"  # ours'
    loaded = recipe.load(job.layout, "r")
    checkouts = {"r": job.world.checkout("main")}
    problems = lint.check(job.layout, [loaded], checkouts)
    assert [problem.where for problem in problems] == ["patches/s/series:1"]


def test_what_a_status_calls_pointless_is_dropped_and_not_fought_over(job: Rebase) -> None:
    commit = job.world.git("log", "--format=%H", "--grep=fight", "main").strip()
    path = job.world.folder / "fought.patch"
    status = f"Upstream-Status: Inappropriate upstream has its own since {commit}"
    path.write_text(path.read_text().replace("Upstream-Status: Pending", status))
    report = job.start("main")
    fought = next(done for done in report.done if done.name == "fought")
    assert (fought.action, fought.why) == ("dropped", f"upstream has its own since {commit}")


def test_what_applies_although_upstream_has_it_is_asked_about(job: Rebase) -> None:
    commit = job.world.git("log", "--format=%H", "--grep=lose", "main").strip()
    path = job.world.folder / "clean.patch"
    path.write_text(
        path.read_text().replace("Upstream-Status: Pending", f"Upstream-Status: Backport {commit}")
    )
    with pytest.raises(PatchError):
        job.start("main")
    report = job.proceed({"fought": "tested elsewhere"})
    assert f"- {commit[:9]}, which clean names: it still applies, is it still needed?" in report.lines


def test_locks_that_cannot_be_had_are_one_command_away(job: Rebase) -> None:
    lines = lockverb.renew(job.layout, "r", {})
    assert lines[1].startswith("The locks are still those of before: ")
    assert lines[-1] == "next: sglwheel lock r"


def test_a_proof_about_a_file_that_no_patch_touches_moves_along(job: Rebase) -> None:
    proof = f"Upstream-Status: Pending\nProves: file {DIRECTORY}/proof.txt lacks nothing"
    path = job.world.folder / "clean.patch"
    path.write_text(path.read_text().replace("Upstream-Status: Pending\nProves: configures", proof))
    with pytest.raises(PatchError):
        job.start("main")
    with pytest.raises(PatchError, match="prove nothing") as caught:
        job.proceed({"fought": "tested elsewhere"})
    assert "file aot/kernel/proof.txt lacks nothing" in caught.value.where["clean"]


def test_skip_needs_a_reason_and_is_reported(job: Rebase) -> None:
    with pytest.raises(PatchError, match="conflicts"):
        job.start("main")
    with pytest.raises(UsageError, match="needs a reason"):
        job.proceed({"fought": " "})
    with pytest.raises(UsageError, match="no such patch"):
        job.proceed({"fight": "typo"})
    report = job.proceed({"fought": "no longer wanted"})
    assert ("fought", "skipped", "no longer wanted") in [(d.name, d.action, d.why) for d in report.done]
    assert [path.name for path in sorted((job.layout.patches / "2.0").glob("*.patch"))] == [
        "beside.patch",
        "clean.patch",
    ]


def test_the_person_may_finish_the_am(job: Rebase) -> None:
    with pytest.raises(PatchError, match="conflicts"):
        job.start("main")
    resolve(job)
    identity = ["-c", "user.name=P", "-c", "user.email=p@example.invalid"]
    subprocess.run(["git", *identity, "am", "--continue"], cwd=job.workspace, check=True, capture_output=True)
    job.proceed()
    check_result(job)


def test_abort_leaves_everything_as_it_was(job: Rebase) -> None:
    before = job.snapshot()
    with pytest.raises(PatchError, match="no rebase of r is in progress"):
        job.abort()
    with pytest.raises(PatchError, match="no rebase of r is in progress"):
        job.proceed()
    with pytest.raises(PatchError, match="conflicts"):
        job.start("main")
    with pytest.raises(PatchError, match="is in progress"):
        job.start("main~1")
    job.abort()
    assert job.snapshot() == before
    assert not job.workspace.exists()


def test_a_lock_that_a_killed_git_left_is_removed_and_a_living_one_stays(job: Rebase) -> None:
    with pytest.raises(PatchError, match="conflicts"):
        job.start("main")
    lock = job.workspace / ".git/index.lock"
    lock.write_bytes(b"")
    # A commit that waits for its editor.
    waiting = subprocess.Popen(
        ["git", "-C", job.workspace, "-c", "alias.wait=!sleep 60", "wait"], start_new_session=True
    )
    try:
        deadline = time.monotonic() + 60
        while Path(f"/proc/{waiting.pid}/cwd").resolve() != job.workspace.resolve():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        with pytest.raises(PatchError, match=r"index\.lock"):
            job.proceed({"fought": "tested elsewhere"})
        assert lock.exists()
    finally:
        os.killpg(waiting.pid, signal.SIGKILL)
        waiting.wait()
    job.proceed({"fought": "tested elsewhere"})


def test_killed_while_it_locks_it_locks_when_it_goes_on(job: Rebase) -> None:
    with pytest.raises(PatchError, match="conflicts"):
        job.start("main")
    skips = {"fought": "tested elsewhere"}

    def power_loss() -> list[str]:
        raise KeyboardInterrupt

    loaded = recipe.load(job.layout, "r")
    with pytest.raises(KeyboardInterrupt):
        rebase.proceed(job.layout, loaded, skips=skips, relock=power_loss)
    written = job.snapshot()
    with pytest.raises(PatchError, match="only the locks are left"):
        rebase.give_up(job.layout, loaded)
    report = rebase.proceed(job.layout, recipe.load(job.layout, "r"), relock=lambda: ["locked"])
    assert report.locks == ("locked",)
    assert job.snapshot() == written
    with pytest.raises(PatchError, match="no rebase of r is in progress"):
        rebase.proceed(job.layout, loaded)


def test_targets_that_are_none(job: Rebase) -> None:
    before = job.snapshot()
    first = job.world.git("rev-list", "--max-parents=0", "HEAD").strip()
    for target, message in (
        (first, "does not descend"),
        ("nowhere", "names no commit"),
        ("f" * 40, "names no commit"),
    ):
        with pytest.raises(UsageError, match=message):
            job.start(target)
    with pytest.raises(UsageError, match="cannot be the name"):
        job.start("main", name="../x")
    (job.layout.patches / "2.0").mkdir()
    with pytest.raises(UsageError, match="exists already"):
        job.start("main", name="2.0")
    (job.layout.patches / "2.0").rmdir()
    assert job.snapshot() == before
    assert not rebasestate.file(job.layout, "r").exists()


def test_a_proof_that_fails_stops_the_end(job: Rebase) -> None:
    with pytest.raises(PatchError, match="conflicts"):
        job.start("main")
    resolve(job)
    path = job.workspace / "aot/kernel/CMakeLists.txt"
    path.write_text(path.read_text().replace("theirs_and_mine(20)", "only_theirs"))
    subprocess.run(["git", "add", "-A"], cwd=job.workspace, check=True)
    with pytest.raises(PatchError, match="prove nothing at the new commit") as caught:
        job.proceed()
    assert "fought" in caught.value.where
    identity = ["-c", "user.name=P", "-c", "user.email=p@example.invalid"]
    # The fix goes into the right commit with ordinary git.
    path.write_text(path.read_text().replace("only_theirs", "theirs_and_mine(20)"))
    subprocess.run(["git", *identity, "commit", "-qa", "--fixup=HEAD~2"], cwd=job.workspace, check=True)
    subprocess.run(
        ["git", *identity, "-c", "sequence.editor=true", "rebase", "-q", "-i", "--autosquash", "upstream"],
        cwd=job.workspace,
        check=True,
        capture_output=True,
    )
    job.proceed()
    check_result(job)


def test_a_full_disk_loses_nothing(job: Rebase, monkeypatch: pytest.MonkeyPatch) -> None:
    before = job.snapshot()
    with pytest.raises(PatchError, match="conflicts"):
        job.start("main")
    resolve(job)
    real = files.write_atomic

    def full(path: Path, data: bytes | str, *, mode: int = 0o644) -> None:
        if path.suffix == ".patch":
            raise OSError(28, "No space left on device")
        real(path, data, mode=mode)

    with monkeypatch.context() as patch:
        patch.setattr(files, "write_atomic", full)
        with pytest.raises(PatchError, match="No space left"):
            job.proceed()
    assert job.snapshot() == before
    job.proceed()
    check_result(job)


def test_the_same_version_is_replaced_in_place_and_abort_brings_it_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = simple(tmp_path)
    world.commit({f"{DIRECTORY}/pyproject.toml": PYPROJECT.format("1.0")})
    world.make_patch("p", {LISTS: with_line(CMAKE, 20, "mine()")})
    job = Rebase(world)
    job.pin()
    world.folder.rename(world.layout.patches / "1.0")
    job.path.write_text(job.path.read_text().replace('"s"', '"1.0"'))
    job._text = job.path.read_bytes()
    world.folder = world.layout.patches / "1.0"
    world.commit({LISTS: with_line(CMAKE, 18, "theirs()")})
    before = job.snapshot()
    real = files.write_atomic

    def dies(path: Path, data: bytes | str, *, mode: int = 0o644) -> None:
        if path == job.path:
            raise KeyboardInterrupt
        real(path, data, mode=mode)

    with monkeypatch.context() as patch:
        patch.setattr(files, "write_atomic", dies)
        with pytest.raises(KeyboardInterrupt):
            job.start("main")
    assert job.snapshot() != before
    job.abort()
    assert job.snapshot() == before
    report = job.start("main")
    assert report.series == "1.0"
    assert b"theirs()" in job.snapshot()["patches/1.0/p.patch"]


CHILD = """
import os, signal, sys
from pathlib import Path
from patchworld import World
from sglwheel.patching import exporting
from sglwheel import files, process, rebase, recipe, series
from sglwheel.errors import SglwheelError
from sglwheel.files import Layout
from sglwheel.drift.lineage import Lineage
from sglwheel.mirrors import Mirrors
from sglwheel.series.predicates import Facts
from packaging.version import Version

root, upstream, fatal, log = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), Path(sys.argv[4])
count = 0
def point(name):
    global count
    count += 1
    if count == fatal:
        with log.open("a") as out:
            out.write(f"killed before {name}\\n")
        os.kill(os.getpid(), signal.SIGKILL)
def watch(module, name):
    real = getattr(module, name)
    def wrapped(*args, **rest):
        point(f"{name} {[str(a)[-60:] for a in args[:1]]}")
        return real(*args, **rest)
    setattr(module, name, wrapped)
for module, name in ((process, "run"), (files, "write_atomic"), (files, "swap_directories"),
                     (os, "unlink"), (os, "rmdir"), (os, "rename")):
    watch(module, name)
layout = Layout(root)
loaded = recipe.load(layout, "r")
lineage = Lineage.open(loaded, layout, Mirrors({}).with_entries({loaded.source.git: upstream}))
skips = {"fought": "not in this test"}
try:
    if loaded.source.series != "s":
        raise SystemExit(0)
    stack = series.load(layout, loaded.source.series, directory=loaded.source.directory)
    versions = {name: Version("13") for name in ("cmake", "cuda", "torch")}
    facts = Facts.of(loaded, **versions, contains=lambda commit: False)
    rebase.start(layout, loaded, stack, facts, lineage, "main", skips=skips)
except SglwheelError as error:
    print(error.what, error.where, file=sys.stderr)
    sys.exit(error.exit_code)
"""


def test_killed_anywhere_it_ends_in_the_same_result(job: Rebase, tmp_path: Path) -> None:
    def run(root: Path, fatal: int) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [
                sys.executable,
                "-c",
                CHILD,
                str(root),
                str(job.world.repository),
                str(fatal),
                str(tmp_path / "log"),
            ],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
            capture_output=True,
            text=True,
            check=False,
        )

    def copy(name: str) -> Path:
        root = tmp_path / name
        subprocess.run(["cp", "-r", str(job.layout.root), str(root)], check=True)
        return root

    def content(root: Path) -> dict[str, bytes]:
        other = Rebase(job.world)
        other.layout = files.Layout(root)
        return other.snapshot()

    calm = copy("calm")
    assert run(calm, 0).returncode == 0
    expected = content(calm)
    root = copy("killed")
    before = content(root)
    kills = 0
    # Each run dies a little later than the one before it; what it did until then is kept.
    for fatal in range(3, 400, 17):
        done = run(root, fatal)
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL, done.stderr
        kills += 1
        if 'series = "s"' in content(root)["recipes/r.toml"].decode():
            # Not at its end: nothing that was there has changed.
            assert before.items() <= content(root).items()
    assert run(root, 0).returncode == 0
    assert kills >= 3
    after = content(root)
    assert after == expected, (tmp_path / "log").read_text()
    assert not [path for path in (root / "patches").iterdir() if path.name.startswith(".")]


def test_edit_after_rebase(job: Rebase) -> None:
    with pytest.raises(PatchError, match="conflicts"):
        job.start("main")
    resolve(job)
    job.proceed()
    loaded = recipe.load(job.layout, "r")
    stack = rebase.series.load(job.layout, "2.0", directory="aot/kernel")
    editing.open_session(job.world.checkout("main"), stack, job.layout, loaded)
    assert {change.what for change in editing.export(job.layout, loaded)} == {"same"}
