"""GPU targets that nvcc really writes, as this tool and NVIDIA's cuobjdump read them."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from conftest import ROOT
from sglwheel.inspect import fatbin, kernels
from sglwheel.inspect.elf import Elf
from toolworld import real_nvcc

pytestmark = pytest.mark.integration

NVCC = real_nvcc()
CODE = "__global__ void twice(float *x) { x[threadIdx.x] *= 2; }\nvoid f(float *x) { twice<<<1, 32>>>(x); }\n"


def cuobjdump() -> str | None:
    """Of the PATH or the toolkit, or the one that torch's triton brings."""
    beside = [] if NVCC is None else [Path(NVCC).resolve().with_name("cuobjdump")]
    places = (ROOT / ".cache/envs").glob("*/lib/python3*/site-packages/triton/backends/nvidia/bin/cuobjdump")
    return shutil.which("cuobjdump") or next(
        (str(path) for path in (*beside, *places) if path.is_file()), None
    )


CUOBJDUMP = cuobjdump()


def build(directory: Path, *flags: str) -> Path:
    assert NVCC is not None
    source = directory / "twice.cu"
    source.write_text(CODE)
    output = directory / "twice.so"
    subprocess.run(
        [NVCC, "-shared", "-Xcompiler", "-fPIC", *flags, "-o", str(output), str(source)],
        check=True,
        capture_output=True,
        text=True,
    )
    return output


CODES: list[tuple[tuple[str, ...], set[str]]] = [
    (("-gencode=arch=compute_120a,code=sm_120a",), {"sm_120a"}),
    (("-gencode=arch=compute_120f,code=sm_120f",), {"sm_120f"}),
    (("-gencode=arch=compute_120,code=sm_120",), {"sm_120"}),
    (
        ("-gencode=arch=compute_90a,code=sm_90a", "-gencode=arch=compute_90,code=[sm_90,compute_90]"),
        {"sm_90a", "sm_90", "compute_90"},
    ),
    (("-gencode=arch=compute_100f,code=[sm_100f,compute_100f]",), {"sm_100f", "compute_100f"}),
    (
        ("-Xfatbin", "-compress-all", "-gencode=arch=compute_120a,code=[sm_120a,compute_120a]"),
        {"sm_120a", "compute_120a"},
    ),
]
NAMES = [" ".join(sorted(expected)) for _, expected in CODES]


def targets(library: Path) -> Counter[str]:
    with Elf(library) as elf:
        return Counter(str(entry.target) for entry in fatbin.entries(elf))


@pytest.mark.skipif(NVCC is None, reason="needs nvcc: nox -s build-sample assembles one")
@pytest.mark.parametrize(("flags", "expected"), CODES, ids=NAMES)
def test_nvcc_writes_what_we_read(flags: tuple[str, ...], expected: set[str], tmp_path: Path) -> None:
    assert set(targets(build(tmp_path, *flags))) == expected


@pytest.mark.skipif(NVCC is None or CUOBJDUMP is None, reason="needs nvcc and cuobjdump: nox -s build-sample")
@pytest.mark.parametrize("flags", [flags for flags, _ in CODES], ids=NAMES)
def test_cuobjdump_lists_what_we_read(flags: tuple[str, ...], tmp_path: Path) -> None:
    library = build(tmp_path, *flags)
    said = subprocess.run(
        [str(CUOBJDUMP), "-lelf", "-lptx", library], check=True, capture_output=True, text=True
    ).stdout
    theirs = Counter(re.findall(r"\.(sm_\w+)\.cubin", said))
    theirs.update(f"compute_{name}" for name in re.findall(r"\.sm_(\w+)\.ptx", said))
    # It does not tell a family target's SASS from a plain one.
    ours = Counter[str]()
    for name, count in targets(library).items():
        ours[name.removesuffix("f") if name.startswith("sm_") else name] += count
    assert ours == theirs


@pytest.mark.skipif(NVCC is None, reason="needs nvcc: nox -s build-sample assembles one")
@pytest.mark.parametrize("mode", [(), ("-Xfatbin", "-compress-all")], ids=["plain", "compressed"])
def test_kernels_are_read_out_of_cubins(mode: tuple[str, ...], tmp_path: Path) -> None:
    with Elf(build(tmp_path, *mode, "-gencode=arch=compute_120a,code=sm_120a")) as elf:
        found = kernels.read(elf, "twice.so")
    assert [(each.name, each.target) for each in found] == [("_Z5twicePf", "sm_120a")]
    assert 100 < found[0].size < 10_000
