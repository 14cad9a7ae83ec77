"""Proofs on a configured tree, from files as CMake writes them."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from patchworld import World, simple
from sglwheel import series
from sglwheel.errors import PatchError
from sglwheel.patching import PatchedTree, PatchState, proofs
from sglwheel.patching.proofs import ProofResult
from sglwheel.types import CommitId

NVCC = "/opt/cuda/bin/nvcc -forward-unknown-to-host-compiler -DX=1 -O3"


def configured(path: Path, *commands: str, targets: tuple[str, ...] = ("common_ops",)) -> Path:
    reply = path / ".cmake/api/v1/reply"
    reply.mkdir(parents=True)
    (path / "build.ninja").write_text("")
    (path / "CMakeCache.txt").write_text(
        "# This is the CMakeCache file.\n//doc\nFA3:BOOL=OFF\nNAME:STRING=a=b\nEMPTY:STRING=\n"
    )
    entries = [
        {"directory": str(path), "command": f"{command} -c {name} -o x.o", "file": f"/src/{name}"}
        for name, command in (entry.split(": ", 1) for entry in commands)
    ]
    (path / "compile_commands.json").write_text(json.dumps(entries))
    model = {"configurations": [{"targets": [{"name": name, "jsonFile": "t.json"} for name in targets]}]}
    (reply / "codemodel-v2-1.json").write_text(json.dumps(model))
    objects = [
        {"kind": "cache", "jsonFile": "no.json"},
        {"kind": "codemodel", "jsonFile": "codemodel-v2-1.json"},
    ]
    (reply / "index-2026-01-02T00-00-00-0000.json").write_text(json.dumps({"objects": objects}))
    (reply / "index-2026-01-01T00-00-00-0000.json").write_text(json.dumps({"objects": []}))
    return path


@pytest.fixture
def world(tmp_path: Path) -> World:
    return simple(tmp_path / "world")


def check(world: World, build: Path, *texts: str) -> list[tuple[bool | None, str]]:
    trailers = "Upstream-Status: Pending\n" + "\n".join(f"Proves: {text}" for text in texts)
    world.make_patch("p", {"kernel/new.txt": "new\n"}, trailers=trailers)
    results = proofs.check_configured(world.series().patches, build, world.recipe())
    return [(result.holds, result.detail) for result in results]


def test_targets_cache_and_what_comes_later(world: World, tmp_path: Path) -> None:
    build = configured(tmp_path / "build", targets=("common_ops", "flash_ops"))
    texts = (
        "configures",
        "target-absent flash_ops",
        "target-absent flashmla_ops",
        "cache FA3=OFF",
        "cache FA3=0",
        "cache FA3=ON",
        "cache NAME=a=b",
        "cache NONE=1",
        "imports sgl_kernel",
        "file kernel/new.txt contains new",
    )
    assert check(world, build, *texts) == [
        (True, "CMake finished"),
        (False, "target flash_ops exists"),
        (True, "target flashmla_ops does not exist"),
        (True, "FA3 is 'OFF'"),
        (True, "FA3 is 'OFF'"),
        (False, "FA3 is 'OFF'"),
        (True, "NAME is 'a=b'"),
        (False, "NONE is not in CMake's cache"),
        (None, "decided by the smoke test"),
    ]


@pytest.mark.parametrize(
    ("commands", "holds", "detail"),
    [
        (
            [f"a.cu: {NVCC} -gencode=arch=compute_120a,code=sm_120a", "b.cc: c++ -O2"],
            True,
            "1 CUDA files, each for exactly sm_120a",
        ),
        ([f'a.cu: {NVCC} "--generate-code=arch=compute_120a,code=[sm_120a]"'], True, "1 CUDA files"),
        ([f"a.cc: {NVCC} -x cu -gencode arch=compute_120a,code=sm_120a"], True, "1 CUDA files"),
        ([f"a.cu: {NVCC} -arch=sm_120a"], True, "1 CUDA files"),
        (
            [
                f"a.cu: {NVCC} -gencode=arch=compute_120a,code=sm_120a",
                f"b.cu: {NVCC} -gencode=arch=compute_120a,code=sm_120a -gencode=arch=compute_90a,code=sm_90a",
            ],
            False,
            "1 of 2 CUDA files differ from sm_120a: /src/b.cu has sm_120a, sm_90a",
        ),
        (
            [f'a.cu: {NVCC} "--generate-code=arch=compute_120a,code=[compute_120a,sm_120a]"'],
            False,
            "has compute_120a",
        ),
        ([f"a.cu: {NVCC}"], False, "no -gencode at all"),
        (["b.cc: c++ -O2"], False, "the build compiles no CUDA file"),
    ],
)
def test_gencodes(world: World, tmp_path: Path, commands: list[str], holds: bool, detail: str) -> None:
    build = configured(tmp_path / "build", *commands)
    ((held, found),) = check(world, build, "gencodes == recipe")
    assert held == holds
    assert detail in found


def test_a_tree_that_is_not_configured_says_what_is_missing(world: World, tmp_path: Path) -> None:
    (tmp_path / "build").mkdir()
    with pytest.raises(PatchError) as caught:
        check(world, tmp_path / "build", "target-absent x")
    assert "index-*.json" in caught.value.where["missing"]


def test_only_applied_patches_are_asked(world: World, tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        world.make_patch(name, {f"kernel/{name}.txt": "new\n"})
    commit = CommitId("0" * 40)
    states = tuple(
        PatchState(name, state, "", None, (), 0, 0)
        for name, state in (("a", "applied"), ("b", "not-needed"), ("c", "applied-3way"))
    )
    patched = PatchedTree(tmp_path, commit, "", commit, states)
    assert [patch.name for patch in proofs.applied(world.series(), patched)] == ["a", "c"]


def test_what_proves_nothing_is_one_error(world: World) -> None:
    stack = series.load(world.layout, "s")
    good = ProofResult("a", "configures", True, "CMake finished")
    later = ProofResult("a", "imports x", None, "later")
    proofs.require([good, later], stack)
    bad = [ProofResult("b", "cache X=1", False, "X is '2'"), ProofResult("b", "cache Y=1", False, "Y is '2'")]
    with pytest.raises(PatchError, match="a patch proves nothing") as caught:
        proofs.require([good, *bad], stack)
    assert caught.value.where == {"patches/s/b.patch": "`cache X=1`: X is '2'\n`cache Y=1`: Y is '2'"}


@pytest.mark.skipif(shutil.which("cmake") is None, reason="needs cmake")
def test_files_of_a_real_cmake(world: World, tmp_path: Path) -> None:
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.20)\nproject(x NONE)\n"
        "option(FA3 doc ON)\nadd_custom_target(other)\n"
    )
    query = tmp_path / "build/.cmake/api/v1/query/codemodel-v2"
    query.parent.mkdir(parents=True)
    query.touch()
    command = ["cmake", "-S", tmp_path, "-B", tmp_path / "build", "-DFA3=OFF"]
    subprocess.run(command, check=True, capture_output=True)
    texts = ("configures", "target-absent flash_ops", "target-absent other", "cache FA3=OFF")
    assert [holds for holds, _ in check(world, tmp_path / "build", *texts)] == [True, True, False, True]
