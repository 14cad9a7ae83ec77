"""Throwaway upstreams and series, made with real git."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from packaging.version import Version

from sglwheel import patching, recipe, series
from sglwheel.files import Layout
from sglwheel.recipe import Recipe
from sglwheel.series import Series
from sglwheel.series.predicates import Facts
from sglwheel.types import CommitId

DIRECTORY = "kernel"
START = datetime(2026, 3, 1, 12, tzinfo=UTC)
TRAILERS = "Upstream-Status: Pending\nProves: configures"
CMAKE = "".join(f"line({number})\n" for number in range(1, 41))
RECIPE = """
schema = 1
summary = "a test"
[source]
git = "https://example.invalid/up"
commit = "{commit}"
directory = "{directory}"
series = "s"
[torch]
version = "2.12.0"
cuda = "cu130"
[build]
cuda-toolkit = "13.0"
architectures = ["12.0a"]
[build.cmake]
FA3 = false
[wheel]
build = 1
max-size-mib = 9
[smoke]
imports = ["x"]
"""


@dataclass(frozen=True)
class Checkout:
    """What patching needs of a checkout."""

    repository: Path
    commit: CommitId
    date: datetime


@dataclass
class World:
    """An upstream repository with a work tree, and a layout with one series."""

    root: Path
    _clock: int = field(default=0)

    def __post_init__(self) -> None:
        self.layout = Layout(self.root / "checkout")
        self.folder = self.layout.patches / "s"
        self.folder.mkdir(parents=True)
        (self.folder / "series").write_text("")
        self.layout.recipes.mkdir()
        self.repository = self.root / "upstream"
        self.repository.mkdir(parents=True)
        self.git("init", "--quiet", "--initial-branch=main")
        self.git("config", "uploadpack.allowFilter", "true")
        self.git("config", "uploadpack.allowAnySHA1InWant", "true")

    def git(self, *args: str, date: datetime = START) -> str:
        return self.git_bytes(*args, date=date).decode()

    def git_bytes(self, *args: str, date: datetime = START) -> bytes:
        stamp = f"{int(date.timestamp())} +0000"
        env = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.root),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "LC_ALL": "C",
            **{f"GIT_{who}_NAME": "Up Stream" for who in ("AUTHOR", "COMMITTER")},
            **{f"GIT_{who}_EMAIL": "up@example.invalid" for who in ("AUTHOR", "COMMITTER")},
            **{f"GIT_{who}_DATE": stamp for who in ("AUTHOR", "COMMITTER")},
        }
        done = subprocess.run(["git", *args], cwd=self.repository, env=env, capture_output=True, check=False)
        assert done.returncode == 0, f"git {args}: {done.stdout!r}{done.stderr!r}"
        return done.stdout

    def commit(self, changes: Mapping[str, str | bytes | None], message: str = "a change") -> CommitId:
        """Write files (None deletes) and commit them, a day after the last commit."""
        for name, content in changes.items():
            path = self.repository / name
            if content is None:
                path.unlink()
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return self.commit_all(message)

    def commit_all(self, message: str) -> CommitId:
        self._clock += 1
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", message, date=START + timedelta(days=self._clock))
        return CommitId.parse(self.git("rev-parse", "HEAD").strip())

    def read(self, name: str) -> str:
        return (self.repository / name).read_text()

    def make_patch(
        self,
        name: str,
        changes: Mapping[str, str | None],
        *,
        trailers: str = TRAILERS,
        reason: str = "Because a test needs it.",
        subject: str | None = None,
    ) -> Path:
        """A patch over the upstream's HEAD and the patches before it, added to the series."""
        head = self.git("rev-parse", "HEAD").strip()
        self.git("checkout", "--quiet", "--detach")
        for path in series.load(self.layout, "s").patches:
            self.git("am", "--quiet", "--3way", "--keep-cr", str(path.path))
        message = f"{subject or name}\n\n{reason}\n\n{trailers}\n"
        self.commit(changes, message)
        text = self.git_bytes(
            "format-patch",
            "-1",
            "--stdout",
            "--zero-commit",
            "--no-signature",
            "--full-index",
            "--no-renames",
            "-N",
        )
        self.git("checkout", "--quiet", "main")
        assert self.git("rev-parse", "HEAD").strip() == head
        return self.add_patch(name, text)

    def add_patch(self, name: str, text: str | bytes) -> Path:
        path = self.folder / f"{name}.patch"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        with (self.folder / "series").open("a") as listing:
            listing.write(f"{name}.patch\n")
        return path

    def checkout(self, commit: str = "HEAD", *, repository: Path | None = None) -> Checkout:
        id = CommitId.parse(self.git("rev-parse", commit).strip())
        when = int(self.git("show", "--no-patch", "--format=%ct", id))
        return Checkout(repository or self.repository, id, datetime.fromtimestamp(when, UTC))

    def recipe(self, commit: str = "HEAD", directory: str = DIRECTORY) -> Recipe:
        id = self.git("rev-parse", commit).strip()
        text = RECIPE.format(commit=id, directory=directory)
        (self.layout.recipes / "r.toml").write_text(text)
        return recipe.parse(text.encode(), name="r", path="recipes/r.toml")

    def series(self, directory: str | None = DIRECTORY) -> Series:
        return series.load(self.layout, "s", directory=directory)

    def facts(self, cmake: str = "3.28.4", commit: str = "HEAD") -> Facts:
        return Facts.of(
            self.recipe(commit),
            cmake=Version(cmake),
            cuda=Version("13.0.2"),
            torch=Version("2.12.0"),
            contains=lambda other: other in self.git("rev-list", commit).split(),
        )

    def apply(
        self,
        commit: str = "HEAD",
        *,
        cmake: str = "3.28.4",
        all: bool = False,
        repository: Path | None = None,
    ) -> patching.PatchedTree:
        checkout = self.checkout(commit, repository=repository)
        return patching.apply(
            checkout, self.series(), self.facts(cmake, commit), self.layout, self.recipe(commit), all=all
        )

    def clone(self, *options: str) -> Path:
        """A bare clone of the upstream, as the tool's store is one."""
        path = self.root / f"clone-{len(list(self.root.iterdir()))}"
        self.git("clone", "--quiet", "--bare", *options, self.repository.as_uri(), str(path))
        return path


def simple(root: Path) -> World:
    """An upstream with a kernel directory, and a note outside of it."""
    world = World(root)
    files = {
        f"{DIRECTORY}/CMakeLists.txt": CMAKE,
        f"{DIRECTORY}/a.txt": "one\ntwo\nthree\n",
        "LICENSE": "licence\n",
        "docs/notes.md": "notes\n",
    }
    world.commit(files, "begin")
    return world


def with_line(text: str, number: int, new: str) -> str:
    """`text` with line `number` replaced."""
    lines = text.splitlines(keepends=True)
    lines[number - 1] = new + "\n"
    return "".join(lines)
