"""A recipe of kernels, a real nvcc, and CUDA toolkits whose nvcc says what a test wants."""

from __future__ import annotations

import shutil
from pathlib import Path

from sglwheel import recipe
from sglwheel.recipe import KernelRecipe

ROOT = Path(__file__).parents[1]


def real_nvcc() -> str | None:
    """The nvcc that a build of the sample assembled in this checkout, or else the host's."""
    ours = sorted((ROOT / ".cache" / "toolkits").glob("*/cuda/bin/nvcc"))
    return str(ours[-1]) if ours else shutil.which("nvcc")


RECIPE = """
schema = 1
summary = "test"
[source]
git = "https://example.invalid/x.git"
commit = "6ffc74efd7d23627c0245efb61af7f62cde4a970"
directory = "x"
series = "x"
[torch]
version = "2.12.0"
cuda = "cu130"
[build]
cuda-toolkit = "13.0"
architectures = ["12.0a"]
{build}
[wheel]
build = 1
max-size-mib = 9
[smoke]
imports = ["x"]
"""
HEADER = """
#define cuMemFree cuMemFree_v2
CUresult CUDAAPI cuInit(unsigned int Flags);
CUresult CUDAAPI cuMemFree(CUdeviceptr dptr);
CUresult CUDAAPI cuGetErrorString(CUresult error, const char **pStr);
CUresult CUDAAPI cuGetProcAddress(const char *symbol, void **pfn, int cudaVersion);
"""
NVCC = """#!/bin/sh
if [ "$1" = --version ]; then
  echo "Cuda compilation tools, release {release}, V{release}.88"
  echo "Build cuda_{release}.r{release}/compiler.1_0"
  exit 0
fi
echo "{says}" >&2
exit {status}
"""


def make(build: str = "") -> KernelRecipe:
    made = recipe.parse(RECIPE.format(build=build).encode(), name="test", path="test.toml")
    assert isinstance(made, KernelRecipe)
    return made


def fake_toolkit(home: Path, *, release: str = "13.0", says: str = "", status: int = 0) -> Path:
    """A host's toolkit: empty headers and libraries (scripts, to a linker), and an nvcc that says things."""
    for name in ("bin", "include", "lib64"):
        (home / name).mkdir(parents=True)
    for name in ("cublas_v2.h", "cublasLt.h", "cusparse.h", "cusolverDn.h", "curand_kernel.h"):
        (home / "include" / name).touch()
    for name in ("nvrtc", "cublas", "cublasLt"):
        (home / f"lib64/lib{name}.so").touch()
    (home / "include/cuda.h").write_text(HEADER)
    nvcc = home / "bin/nvcc"
    nvcc.write_text(NVCC.format(release=release, says=says, status=status))
    nvcc.chmod(0o755)
    return home
