"""Throwaway upstreams and mirrors, made with real git, and a recipe that builds from them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sglwheel import recipe
from sglwheel.files import Layout
from sglwheel.mirrors import Mirrors
from sglwheel.recipe import Recipe
from sglwheel.types import CommitId

UPSTREAM = "https://example.invalid/up"
RECIPE = """
schema = 1
summary = "a test"
[source]
git = "https://example.invalid/up"
commit = "{commit}"
directory = "kernel"
series = "s"
{source}
[torch]
version = "2.12.0"
cuda = "cu130"
[build]
cuda-toolkit = "13.0"
architectures = ["12.0a"]
[build.cmake]
{cmake}
[wheel]
build = 1
max-size-mib = 9
[smoke]
imports = ["x"]
"""


def git(path: Path, *args: str) -> str:
    env = {
        "PATH": os.environ["PATH"],
        "HOME": "/nonexistent",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_AUTHOR_NAME": "A",
        "GIT_AUTHOR_EMAIL": "a@example.invalid",
        "GIT_AUTHOR_DATE": "1760000000 +0000",
        "GIT_COMMITTER_NAME": "A",
        "GIT_COMMITTER_EMAIL": "a@example.invalid",
        "GIT_COMMITTER_DATE": "1760000000 +0000",
    }
    command = ["git", "-c", "protocol.file.allow=always", "-C", str(path), *args]
    return subprocess.run(command, check=True, capture_output=True, env=env, text=True).stdout.strip()


@dataclass
class Repository:
    """A repository with a work tree, to commit to."""

    path: Path

    def __post_init__(self) -> None:
        self.path.mkdir(parents=True)
        git(self.path, "init", "--quiet", "--initial-branch=main")

    def commit(self, files: Mapping[str, str], message: str = "change") -> CommitId:
        for name, text in files.items():
            path = self.path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        git(self.path, "add", "--all")
        git(self.path, "commit", "--quiet", "--allow-empty", "--message", message)
        return CommitId.parse(git(self.path, "rev-parse", "HEAD"))

    def tree(self, revision: str = "HEAD") -> str:
        return git(self.path, "rev-parse", f"{revision}^{{tree}}")


@dataclass
class World:
    """A layout with an empty cache, and urls that lead to repositories of this world alone."""

    root: Path
    entries: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("recipes", "patches"):
            (self.root / name).mkdir(parents=True)
        self.layout = Layout(self.root)

    @property
    def mirrors(self) -> Mirrors:
        return Mirrors().with_entries(self.entries)

    def repository(self, url: str) -> Repository:
        repository = Repository(self.root / "upstreams" / url.rpartition("/")[2])
        self.entries[url] = str(repository.path)
        return repository

    def recipe(self, commit: str = "0" * 40, *, cmake: str = "", source: str = "") -> Recipe:
        text = RECIPE.format(commit=commit, cmake=cmake, source=source)
        return recipe.parse(text.encode(), name="r", path="recipes/r.toml")

    def tree(self, files: Mapping[str, str]) -> Path:
        """A patched tree with these files in its kernel project."""
        root = self.root / "patched"
        for name, text in files.items():
            path = root / "kernel" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return root

    def received(self) -> list[Path]:
        """Packs of all stores: what came over the wire."""
        return sorted((self.root / ".cache" / "git").rglob("*.pack"))
