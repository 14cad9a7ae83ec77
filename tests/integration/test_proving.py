"""What a patch proves must be false without it: real git, real CMake."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import buildworld
import patchworld
from sglwheel import proving
from sglwheel.errors import PatchError, SourceError
from sglwheel.patching.proofs import ProofResult
from sglwheel.source import Dependencies

pytestmark = pytest.mark.integration
LISTS = f"{patchworld.DIRECTORY}/CMakeLists.txt"
CMAKE = """cmake_minimum_required(VERSION 3.26)
project(tiny LANGUAGES NONE)
option(FA3 "" ON)
set(FA3 ON)
if(FA3)
    add_custom_target(flash_ops)
endif()

# room


# room

if(POLICY CMP0999)
else()
    message(STATUS "fine")
endif()
"""


class Job:
    """An upstream that configures, a series, and the check as a build calls it."""

    def __init__(self, root: Path, text: str = CMAKE) -> None:
        self.tiny = buildworld.World(root / "tiny")
        self.world = patchworld.simple(root / "world")
        files: dict[str, str | bytes | None] = {
            f"{patchworld.DIRECTORY}/{name}": content
            for name, content in self.tiny.files.items()
            if not name.endswith(".cpp")
        }
        self.world.commit({**files, LISTS: text})
        self.text = text
        self.fetched = 0

    def patch(self, name: str, old: str, new: str, *proofs: str) -> None:
        self.text = self.text.replace(old, new)
        trailers = "Upstream-Status: Pending\n" + "\n".join(f"Proves: {proof}" for proof in proofs)
        self.world.make_patch(name, {LISTS: self.text}, trailers=trailers)

    def fetch(self, tree: Path) -> Dependencies:
        assert (tree / LISTS).is_file()
        assert not (tree / ".git").exists()
        self.fetched += 1
        return Dependencies(())

    def check(self, fetch: Any = None, *, repository: Path | None = None) -> tuple[ProofResult, ...]:
        world = self.world
        patched, checkout = world.apply(repository=repository), world.checkout(repository=repository)
        recipe, stack = world.recipe(), world.series()
        return proving.check(
            recipe, stack, patched, self.tiny.env, world.layout, checkout, fetch or self.fetch
        )


def test_an_effect_is_missing_without_its_patch_and_that_is_asked_once(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.patch("guard", "set(FA3 ON)\n", "", "target-absent flash_ops")
    for _ in range(2):
        (guard,) = job.check()
        assert (guard.holds, guard.detail) == (False, "target flash_ops exists")
    assert job.fetched == 1
    assert not list((job.world.layout.work / "r").glob("without-*/cmake"))


def test_what_is_there_without_its_patch_proves_nothing(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.patch("guard", "set(FA3 ON)\n", "", "target-absent flash_ops")
    job.patch("idle", "# room\n\n\n# room", "# room\n# more\n\n# room", "target-absent flash_ops")
    for _ in range(2):
        with pytest.raises(PatchError, match="a patch proves nothing") as caught:
            job.check()
        assert caught.value.where == {
            "patches/s/idle.patch": "`target-absent flash_ops`: target flash_ops does not exist"
        }
    assert job.fetched == 2  # for each patch, and not again


def test_configures_means_that_it_did_not(tmp_path: Path) -> None:
    job = Job(tmp_path, CMAKE.replace('message(STATUS "fine")', 'message(FATAL_ERROR "too old")'))
    job.patch("policy", "FATAL_ERROR", "STATUS", "configures", "target-absent other")
    configures, other = job.check()
    assert (configures.holds, configures.detail) == (False, "CMake cannot configure: too old")
    assert other.holds is None
    assert "not shown that `target-absent other` is false without it" in proving.describe((other,))[0]


def test_a_source_that_cannot_be_had_leaves_it_open(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.patch("guard", "set(FA3 ON)\n", "", "target-absent flash_ops")

    def refuse(tree: Path) -> Dependencies:
        raise SourceError("repo-x: no such host")

    (found,) = job.check(refuse)
    assert (found.holds, found.detail) == (None, "repo-x: no such host")


def test_a_store_that_was_deleted_meanwhile_costs_no_proof(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.patch("more", "# room\n\n\n# room", "# room\n# more\n\n# room", f"file {LISTS} contains # more")
    job.patch("guard", "set(FA3 ON)\n", "", "target-absent flash_ops")
    world = job.world
    world.apply(repository=world.clone())
    seen: list[str] = []

    def fetch(tree: Path) -> Dependencies:
        seen.append((tree / LISTS).read_text())
        return job.fetch(tree)

    (guard,) = job.check(fetch, repository=world.clone())
    assert (guard.holds, guard.detail) == (False, "target flash_ops exists")
    assert "# more" in seen[0] and "set(FA3 ON)" in seen[0]
