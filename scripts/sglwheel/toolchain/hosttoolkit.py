"""The host's own toolkit, if it has what torch's headers and CMake files take from one.

A host may have CUDA's compiler and runtime and none of its libraries. CMake would say so after everything was
fetched, with the name of a variable.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from packaging.version import Version

from sglwheel import process
from sglwheel.errors import ToolchainError
from sglwheel.files import Layout
from sglwheel.recipe import KernelRecipe
from sglwheel.toolchain import cudahome, host
from sglwheel.toolchain.cudahome import CudaHome
from sglwheel.toolchain.host import Compiler

# ATen/cuda/CUDAContextLight.h includes these, sampling kernels the last one. Caffe2/public/cuda.cmake wants
# nvrtc, torch's and upstream's own targets the other two.
_HEADERS = ("cublas_v2.h", "cublasLt.h", "cusparse.h", "cusolverDn.h", "curand_kernel.h")
_LIBRARIES = ("nvrtc", "cublas", "cublasLt")
_ABSENT = re.compile(r"^absent (\S+)$", re.MULTILINE)
# GNU ld, gold and lld: `cannot find -lnvrtc`, `unable to find library -lnvrtc`.
_UNLINKED = re.compile(r"find (?:library )?-l(\w+)")


def find(recipe: KernelRecipe, layout: Layout, compiler: Compiler) -> CudaHome:
    """The host's toolkit of the recipe's release, whole. Raises ToolchainError naming each file it lacks."""
    cuda = cudahome.system(layout, recipe.build.cuda_toolkit, cc=compiler.cc)
    if absent := missing(cuda.path, compiler):
        count = f"{len(absent)} file" + "s" * (len(absent) > 1)
        raise ToolchainError(
            f"the host's CUDA toolkit lacks {count} that torch's headers and CMake files ask for",
            where={"toolkit": str(cuda.path), "missing": ", ".join(absent)},
            next=f"{_package(cuda.nvcc_version)}; or point CUDA_HOME to a whole one; or let the tool assemble"
            ' it: provider = "pypi"',
        )
    return cuda


def missing(home: Path, compiler: Compiler) -> tuple[str, ...]:
    """Names of headers and libraries that neither the toolkit nor the compiler's own directories have."""
    code = "".join(f"#if !__has_include(<{name}>)\nabsent {name}\n#endif\n" for name in _HEADERS)
    includes = [f"-I{path}" for path in (home / "include", *sorted(home.glob("targets/*/include")))]
    read = process.run(
        [compiler.cxx, "-E", "-P", *includes, "-x", "c++", "-"],
        failure=ToolchainError,
        input=code.encode(),
        timeout=60,
        what="looking for the toolkit's headers",
    )
    folders = [
        f"-L{path}"
        for path in (home / "lib64", home / "lib", *sorted(home.glob("targets/*/lib")))
        if path.is_dir()
    ]
    wanted = [f"-l{name}" for name in _LIBRARIES]
    linked = process.run(
        [compiler.cxx, "-shared", "-nostdlib", "-x", "c++", os.devnull, "-o", os.devnull, *folders, *wanted],
        failure=ToolchainError,
        accept=range(256),
        timeout=60,
        what="looking for the toolkit's libraries",
        env={**os.environ, "LC_ALL": "C"},
    )
    unlinked = dict.fromkeys(_UNLINKED.findall(linked.stderr))
    return (*_ABSENT.findall(read.stdout), *(f"lib{name}.so" for name in unlinked))


def _package(version: Version) -> str:
    """How NVIDIA's repositories call all libraries with their headers."""
    ending = f"{version.major}-{version.minor}"
    apt, others = f"apt-get install cuda-libraries-dev-{ending}", f"cuda-libraries-devel-{ending}"
    here = host.distribution()
    if here & {"debian", "ubuntu"}:
        return apt
    if any("suse" in name for name in here):
        return f"zypper install {others}"
    if here & {"fedora", "rhel"}:
        return f"dnf install {others}"
    return f"{apt} | dnf install {others}"
