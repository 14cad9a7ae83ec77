"""A CUDA_HOME: assembled from PyPI's wheels, or the host's own."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version

from sglwheel import process
from sglwheel.errors import ToolchainError
from sglwheel.files import Layout, cache_directory, locked, sha256
from sglwheel.toolchain import driverstub

# Extras of the `cuda-toolkit` meta-package. Where torch uses the same CUDA release most of them are wheels
# that torch brings along anyway; only nvcc, nvvm, crt, cccl and a few headers come on top (105 MB).
_COMPILER_EXTRAS = ("nvcc", "crt", "nvvm", "cccl", "culibos", "cuxxfilt", "nvml", "nvfatbin", "profiler")
_LIBRARY_EXTRAS = (
    *("cudart", "cupti", "nvtx", "nvrtc", "curand", "cusolver", "cusparse", "cufft", "nvjitlink", "cufile"),
)
EXTRAS = (*_COMPILER_EXTRAS, *_LIBRARY_EXTRAS)

_SONAME = re.compile(r"(lib[^/]+?\.so)(\.\d+)+")
_RELEASE = re.compile(r"release (\d+\.\d+), V(\d+\.\d+\.\d+)")


@dataclass(frozen=True)
class CudaHome:
    """A toolkit that compiles; `stub` is the driver stub's directory, `build_id` nvcc's own exact name."""

    path: Path
    nvcc_version: Version
    build_id: str
    stub: Path


def assemble(site_packages: Path, into: Path) -> None:
    """Lay the wheels' files out as CUDA_HOME, by hard links where the file system has them.

    As shipped the files do not work: nvcc looks beside itself for its profile (so a symbolic link to it
    misleads it), its profile names `lib64`, and the libraries have no unversioned names. CUDA 13's wheels
    share `nvidia/cu13`, CUDA 12's have a directory each.
    """
    components = [
        path
        for path in sorted((site_packages / "nvidia").glob("*"))
        if any((path / part).is_dir() for part in ("bin", "include", "lib", "nvvm"))
    ]
    for component in components:
        for part, name in (("bin", "bin"), ("include", "include"), ("lib", "lib64"), ("nvvm", "nvvm")):
            if (component / part).is_dir():
                _link_tree(component / part, into / name)
    if not (into / "bin" / "nvcc").is_file():
        raise ToolchainError(
            "the CUDA wheels hold no nvcc", where={"looked in": str(site_packages / "nvidia")}
        )
    for path in (*(into / "bin").iterdir(), *(into / "nvvm" / "bin").iterdir()):
        if path.is_file() and path.suffix != ".profile":
            path.chmod(path.stat().st_mode | 0o111)
    libraries = into / "lib64"
    for path in sorted(libraries.glob("lib*.so.*")):
        match = _SONAME.fullmatch(path.name)
        if match and not (libraries / match[1]).exists():
            (libraries / match[1]).symlink_to(path.name)
    (into / "lib").symlink_to("lib64")


def _link_tree(source: Path, into: Path) -> None:
    for directory, _, names in os.walk(source):
        here = into / Path(directory).relative_to(source)
        here.mkdir(parents=True, exist_ok=True)
        for name in names:
            target = here / name
            if name.endswith((".py", ".pyc")) or target.exists():
                continue
            try:
                target.hardlink_to(Path(directory) / name)
            except OSError:
                shutil.copy2(Path(directory) / name, target)


def version(nvcc: Path) -> tuple[Version, str]:
    """Ask nvcc for its version (`13.0.88`) and its build's name. Raises ToolchainError."""
    text = process.run(
        [nvcc, "--version"], failure=ToolchainError, timeout=60, what=f"{nvcc} --version"
    ).stdout
    match = _RELEASE.search(text)
    if match is None:
        raise ToolchainError(f"{nvcc} does not say its version: {text.strip()[-300:]}")
    return Version(match[2]), text.strip().splitlines()[-1].strip()


def verify(found: Version, wanted: Version, home: Path) -> None:
    """Refuse a toolkit of another release than the recipe's. Raises ToolchainError naming both."""
    if found.release[:2] != wanted.release[:2]:
        raise ToolchainError(
            f"nvcc is of CUDA {found.major}.{found.minor} ({found}), the recipe names cuda-toolkit {wanted}",
            where={"toolkit": str(home)},
            next='point CUDA_HOME to the right one, or let the tool assemble it: provider = "pypi"',
        )


def find_system(environment: Mapping[str, str] = os.environ) -> Path:
    """Find the host's toolkit: `CUDA_HOME`, else where nvcc on PATH lies. Raises ToolchainError."""
    named = environment.get("CUDA_HOME", "").strip()
    if named:
        home = Path(named).expanduser().absolute()
        if not (home / "bin" / "nvcc").is_file():
            raise ToolchainError(
                "CUDA_HOME has no bin/nvcc",
                where={"CUDA_HOME": str(home)},
                next="correct CUDA_HOME, or unset it",
            )
        return home
    found = shutil.which("nvcc", path=environment.get("PATH"))
    home = Path(found).resolve().parent.parent if found else Path("/usr/local/cuda")
    # A wrapper script on PATH says nothing about where the toolkit is.
    if not (home / "bin" / "nvcc").is_file() or not (home / "include" / "cuda.h").is_file():
        home = Path("/usr/local/cuda").resolve()
    if not (home / "bin" / "nvcc").is_file():
        raise ToolchainError(
            'no CUDA toolkit on this host, and the recipe says provider = "system"',
            where={"looked at": "CUDA_HOME, nvcc on PATH, /usr/local/cuda"},
            next='install CUDA and set CUDA_HOME, or let the tool assemble it: provider = "pypi"',
        )
    return home


def system(layout: Layout, wanted: Version, *, cc: Path) -> CudaHome:
    """The host's toolkit with a driver stub of ours. Raises ToolchainError when it is another release."""
    home = find_system()
    found, build_id = version(home / "bin" / "nvcc")
    verify(found, wanted, home)
    header = home / "include" / "cuda.h"
    if not header.is_file():
        raise ToolchainError("the CUDA toolkit has no include/cuda.h", where={"toolkit": str(home)})
    stubs = cache_directory(layout.cache / "stubs")
    directory = stubs / sha256(header)[:16]
    with locked(stubs / f"{directory.name}.lock", failure=ToolchainError, what="the driver stub"):
        if not (directory / driverstub.SONAME).exists():
            driverstub.build_stub(home, directory, cc=cc)
    return CudaHome(home, found, build_id, directory)
