"""Two builds in two places give the same bytes, or it is said where they do not."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import make_dataclass
from pathlib import Path
from typing import Any

import pytest

import sglwheel.build
from buildworld import CMAKE, World
from sglwheel import files, reproduce
from sglwheel.errors import BuildError
from sglwheel.files import Layout
from sglwheel.patching import PatchState
from toolworld import real_nvcc

pytestmark = pytest.mark.integration
NVCC = real_nvcc()
PROGRAM = Path(sglwheel.build.__file__).parent / "data" / "reproducible.py"

# Exports nothing: nvcc then takes a process id and a time for its internal names.
HIDDEN = """
#include <cstdio>
#include "part.h"
namespace {
__device__ int counter;
template <class F> __global__ void apply(F f, int *p) { p[0] = f(counter); }
void go() { apply<<<1, 1>>>([] __device__(int i) { return i + part(); }, nullptr); puts(__FILE__); }
struct Start { Start() { go(); } } start;
}
"""
OPEN = """
#include "part.h"
static __global__ void twice(float *x) { x[threadIdx.x] *= part(); }
void run(float *x) { twice<<<1, 32>>>(x); }
"""


def tree(root: Path) -> Path:
    """A directory that looks like a build tree."""
    for name, text in {
        "source/hidden.cu": HIDDEN,
        "source/open.cu": OPEN,
        "source/part.h": "__host__ __device__ inline int part() { return 2; }\n",
        "reproducible.py": PROGRAM.read_text(),
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root / "cmake").mkdir()
    return root


def compiled(root: Path, name: str) -> bytes:
    assert NVCC is not None
    subprocess.run(
        [sys.executable, "-I", "-S", root / "reproducible.py", NVCC, "--extended-lambda", "-std=c++17",
         "-gencode=arch=compute_120a,code=sm_120a", f"-Xcompiler=-ffile-prefix-map={root}=.", "-x", "cu",
         "-c", root / "source" / name, "-o", f"{name}.o"],
        cwd=root / "cmake", check=True, capture_output=True,
    )  # fmt: skip
    left = {path.name for path in (root / "cmake").iterdir()}
    assert left <= {"open.cu.o", "hidden.cu.o"}, "intermediates stay behind"
    return (root / "cmake" / f"{name}.o").read_bytes()


@pytest.mark.skipif(NVCC is None, reason="needs nvcc: nox -s build-sample assembles one")
@pytest.mark.parametrize("name", ["open.cu", "hidden.cu"])
def test_an_object_does_not_depend_on_its_place(tmp_path: Path, name: str) -> None:
    one, other = tree(tmp_path / "one"), tree(tmp_path / "quite" / "another" / "place")
    assert compiled(one, name) == compiled(other, name)


def test_the_compilers_end_is_passed_on(tmp_path: Path) -> None:
    program = tree(tmp_path) / "reproducible.py"

    def status(script: str) -> int:
        return subprocess.run([sys.executable, "-I", "-S", program, "sh", "-c", script]).returncode

    assert (status("exit 7"), status("kill -KILL $$"), status("kill -TERM $$")) == (7, -9, -15)
    gone = subprocess.run(
        [sys.executable, "-I", "-S", program, "no-such-nvcc"], capture_output=True, text=True
    )
    assert gone.returncode == 127 and "cannot start no-such-nvcc" in gone.stderr


def again(world: World) -> reproduce.Reproduction:
    first = world.finish(world.build())
    values: dict[str, Any] = vars(world.env)
    env = make_dataclass("Env", list(values), frozen=True)(**values)
    return reproduce.again(
        first, world.recipe, world.patched, world.dependencies, env, world.checkout, world.layout
    )


@pytest.fixture(autouse=True)
def no_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sglwheel.source.materialize", lambda dependencies, into: {})


def test_a_second_build_elsewhere_gives_the_same_bytes(tmp_path: Path) -> None:
    world = World(tmp_path)
    done = again(world)
    built = world.build()
    assert built.reused and done.sha256 == files.sha256(world.finish(built).path)
    assert not (tmp_path / ".work" / "tiny" / "again").exists()


PATCH = f"""From {"0" * 40} Mon Sep 17 00:00:00 2001
From: sglwheel <sglwheel@localhost.invalid>
Date: Fri, 6 Mar 2026 12:00:00 +0000
Subject: [PATCH] named: say it

A reason.

Upstream-Status: Pending
Proves: target-absent nothing
---
 kernel/LICENSE | 2 +-
 1 file changed, 1 insertion(+), 1 deletion(-)

diff --git a/kernel/LICENSE b/kernel/LICENSE
index {"1" * 40}..{"2" * 40} 100644
--- a/kernel/LICENSE
+++ b/kernel/LICENSE
@@ -1,1 +1,1 @@
-a
+b
"""


class PatchedWorld(World):
    """One with a series, of which a patch was applied that must prove its effect in every tree."""

    @property
    def patched(self) -> Any:
        plain = super().patched
        plain.patches = (PatchState("named", "applied", "always needed", "6" * 40, (), 1, 1),)
        return plain


def test_the_series_proves_itself_in_the_second_tree_too(tmp_path: Path) -> None:
    folder = tmp_path / "patches" / "tiny"
    folder.mkdir(parents=True)
    (folder / "series").write_text("named.patch\n")
    (folder / "named.patch").write_text(PATCH)
    assert again(PatchedWorld(tmp_path)).sha256


def compiled_units(layout: Layout) -> list[str]:
    """Units that a compiler was started for, by the recipe's history of costs."""
    lines = (layout.work / "tiny" / "units.jsonl").read_text().splitlines()
    return [json.loads(line)["unit"].rsplit("/", 1)[-1] for line in lines if '"unit"' in line]


def test_what_the_compiler_cache_holds_is_compiled_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All checkouts of a host share one: taken from it, the second build would be the first one's copy."""
    monkeypatch.setenv("SGLWHEEL_CACHE", str(tmp_path / "host"))
    monkeypatch.setenv("SGLWHEEL_COMPILER_CACHE", "local")
    # A compiler that gives other code each time, for the same words and the same source.
    fickle = tmp_path / "fickle-c++"
    fickle.write_text('#!/bin/sh\nexec /usr/bin/c++ "$@" -DSTAMP="\\"stamp $(date +%N)\\""\n')
    fickle.chmod(0o755)
    unit = 'extern "C" const char *one() { return STAMP; }\n'
    world = World(tmp_path / "one", {"units/one.cpp": unit}, environment={"CXX": str(fickle)})
    cold = world.build()
    assert cold.cache["misses"] == len(compiled_units(world.layout)) == 4
    with pytest.raises(BuildError) as caught:
        again(world)
    files_named = {Path(name).name for name in caught.value.where}
    assert files_named == {"first", "second", "tiny.abi3.so", "RECORD"}
    assert ".rodata" in caught.value.where["tiny/tiny.abi3.so"]
    assert "'stamp " in caught.value.where["tiny/tiny.abi3.so"]
    elsewhere = Layout(world.layout.work / "tiny" / "again" / "another" / "checkout")
    # What the first build measured is lent to the second, then comes what was compiled again.
    assert sorted(compiled_units(elsewhere)) == sorted(2 * compiled_units(world.layout))


def test_a_build_path_in_a_library_is_found(tmp_path: Path) -> None:
    leak = CMAKE + 'target_compile_definitions(tiny PRIVATE PLACE="${CMAKE_BINARY_DIR}")\n'
    unit = 'extern "C" const char *one() { return PLACE; }\n'
    world = World(tmp_path, {"CMakeLists.txt": leak, "units/one.cpp": unit})
    with pytest.raises(BuildError) as caught:
        again(world)
    assert caught.value.exit_code == 6
    assert ".rodata" in caught.value.where["tiny/tiny.abi3.so"]
    assert "/again/another/checkout/.work/tiny/build-" in caught.value.where["tiny/tiny.abi3.so"]
    for one in ("first", "second"):
        assert Path(caught.value.where[one]).is_file()


def test_a_search_path_of_the_build_leaves_no_room_behind(tmp_path: Path) -> None:
    linked = CMAKE + 'link_directories("${CMAKE_BINARY_DIR}")\nadd_library(other SHARED stray.cpp)\n'
    linked += "target_link_libraries(tiny PRIVATE other)\ninstall(TARGETS other LIBRARY DESTINATION tiny)\n"
    world = World(tmp_path, {"CMakeLists.txt": linked})
    assert again(world).sha256
