"""The environment that a build is started in, and one hash over what can change its objects."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

from sglwheel.files import Layout
from sglwheel.recipe import KernelRecipe
from sglwheel.toolchain import host, packages, preflight
from sglwheel.toolchain.cudahome import CudaHome
from sglwheel.toolchain.packages import Package
from sglwheel.toolchain.torchpin import InstalledTorch

# Packages whose files take part in compiling and linking.
_COMPILES = re.compile(r"torch|cmake|ninja|scikit-build-core|cuda-toolkit|nvidia-.*")


def clean_environment(
    recipe: KernelRecipe, layout: Layout, bin_directory: Path, cuda: CudaHome, compiler: host.Compiler
) -> dict[str, str]:
    """The build's whole environment."""
    work = layout.work / recipe.id
    home, temporary = work / "home", work / "tmp"
    for directory in (home, temporary):
        directory.mkdir(parents=True, exist_ok=True)
    path = [str(bin_directory), str(cuda.path / "bin"), str(compiler.cxx.parent), "/usr/bin", "/bin"]
    environment = {
        **recipe.build.environment,
        "PATH": ":".join(dict.fromkeys(path)),
        "HOME": str(home),
        "TMPDIR": str(temporary),
        "LANG": "C.UTF-8",
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
        "PYTHONNOUSERSITE": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "CUDA_HOME": str(cuda.path),
        "CUDA_PATH": str(cuda.path),
        "CUDAToolkit_ROOT": str(cuda.path),
        "CUDACXX": str(cuda.path / "bin" / "nvcc"),
        "CC": str(compiler.cc),
        "CXX": str(compiler.cxx),
        "CUDAHOSTCXX": str(compiler.cxx),
        "TORCH_CUDA_ARCH_LIST": ";".join(str(arch) for arch in recipe.build.architectures),
    }
    if cuda.stub.parent.parent != cuda.path:
        # The stub lies outside the host's toolkit: tell the linker and CMake.
        environment["LIBRARY_PATH"] = str(cuda.stub)
        environment["CMAKE_LIBRARY_PATH"] = str(cuda.stub)
    return environment


def identity(
    recipe: KernelRecipe,
    torch: InstalledTorch,
    cuda: CudaHome,
    found: preflight.Host,
    every: tuple[Package, ...],
) -> str:
    """One hash over what can change an object file; no path of this host is in it.

    A newer sympy is no reason to compile for half an hour.
    """
    compiling = [one for one in every if _COMPILES.fullmatch(one.name)]
    facts = {
        "torch": [torch.full_version, torch.git_version, torch.sha256 or torch.record, torch.cxx11_abi],
        "nvcc": [str(cuda.nvcc_version), cuda.build_id],
        "compiler": found.compiler.description,
        "python": found.python.minor,
        "packages": packages.to_json(compiling),
        "architectures": [str(arch) for arch in recipe.build.architectures],
        "environment": dict(recipe.build.environment),
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
