"""The build environment: Python, torch, CMake, a CUDA toolkit and the host's compiler, pinned and checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version

from sglwheel.errors import ToolchainError
from sglwheel.files import Layout
from sglwheel.mirrors import Mirrors, as_url
from sglwheel.recipe import KernelRecipe
from sglwheel.toolchain import environments, hermetic, hosttoolkit, preflight, probe, torchpin
from sglwheel.toolchain.borrowed import Borrowed
from sglwheel.toolchain.cudahome import CudaHome
from sglwheel.toolchain.environments import Supply
from sglwheel.toolchain.packages import Lock, Package
from sglwheel.toolchain.pylocks import Pylocks
from sglwheel.toolchain.torchpin import InstalledTorch, TorchPin

__all__ = ["BuildEnv", "InstalledTorch", "Package", "Versions", "prepare", "resolve"]


@dataclass(frozen=True)
class Versions:
    """What patches' conditions are evaluated against."""

    cmake: Version
    ninja: Version
    scikit_build_core: Version
    cuda: Version
    torch: Version


@dataclass(frozen=True)
class BuildEnv:
    """Everything that compiles, and the environment to start it in.

    `environment` is complete: nothing of the caller's is inherited. `cmake` holds definitions that say where
    host libraries lie. `stub` is the directory of the driver stub. `identity` is the same wherever the same
    objects come out. `lock` pins torch and what it runs with, for environments like the one it will meet;
    `sources` says to uv where it finds these.
    """

    python: Path
    bin: Path
    torch: InstalledTorch
    cuda_home: Path
    nvcc_version: Version
    versions: Versions
    environment: Mapping[str, str]
    packages: tuple[Package, ...]
    provider: str
    cxx: str
    identity: str
    stub: Path
    cmake: Mapping[str, str]
    python_version: Version
    lock: Lock
    sources: tuple[str, ...]

    @property
    def description(self) -> Mapping[str, str]:
        """What compiled, in words that travel inside the wheel."""
        return {
            "provider": self.provider,
            "nvcc": str(self.nvcc_version),
            "cxx": self.cxx,
            "cmake": str(self.versions.cmake),
            "ninja": str(self.versions.ninja),
            "scikit-build-core": str(self.versions.scikit_build_core),
        }


def resolve(recipe: KernelRecipe, pin: TorchPin, lent: Borrowed | None = None) -> Versions:
    """Say which versions the build will have, without making anything."""
    build = recipe.build
    tools = lent.tools if lent is not None else {}
    return Versions(
        cmake=tools.get("cmake", build.cmake_version),
        ninja=tools.get("ninja", build.ninja_version),
        scikit_build_core=tools.get("scikit-build-core", build.scikit_build_core_version),
        cuda=build.cuda_toolkit,
        torch=pin.version,
    )


def prepare(
    recipe: KernelRecipe,
    pin: TorchPin,
    layout: Layout,
    mirrors: Mirrors | None = None,
    lent: Borrowed | None = None,
) -> BuildEnv:
    """Make or reuse the build environment, and prove that it compiles.

    With `lent` it is built on that environment: its torch, and those build tools that it has. Raises
    ToolchainError.
    """
    if lent is not None:
        torchpin.verify(lent.torch, pin)
    found = preflight.require(recipe, layout, borrowed=lent.interpreter if lent else None)
    # Nothing is fetched for a toolkit that will not do.
    own = hosttoolkit.find(recipe, layout, found.compiler) if recipe.build.provider == "system" else None
    logs = layout.work / recipe.id / "toolchain"
    locks = Pylocks(recipe, pin, layout, mirrors, own=False if lent else None)
    supply = Supply(layout, mirrors or Mirrors(), locks.index)
    if lent is not None:
        lock, torch = lent.lock, lent.torch
        python, installed = environments.beside(lent, locks, layout, logs, supply)
        sources: tuple[str, ...] = ("--index", as_url(locks.index)) if locks.index else ()
    else:
        lock = locks.environment()
        torchpin.foresee(lock.version("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12"), pin)
        site, python, installed = environments.environment(lock, found.python, layout, logs, supply)
        wheel = next((package.sha256 for package in installed if package.name == "torch"), None)
        torch = torchpin.read(site, sha256=wheel)
        sources = supply.sources(lock, found.python.version)
    torchpin.verify(torch, pin)
    toolkit: tuple[Package, ...] = ()
    if own is None:
        cuda, toolkit = environments.toolkit(locks.toolkit(lock), recipe, found, python, layout, logs, supply)
    else:
        cuda = own
    _same_major(torch, cuda)
    environment = hermetic.clean_environment(recipe, layout, python.parent, cuda, found.compiler)
    probe.compile_probe(
        cuda.path / "bin" / "nvcc", found.compiler, recipe.build.architectures, environment, layout
    )
    every = tuple(sorted({*installed, *toolkit}, key=lambda one: (one.name, one.version)))
    return BuildEnv(
        python=python,
        bin=python.parent,
        torch=torch,
        cuda_home=cuda.path,
        nvcc_version=cuda.nvcc_version,
        versions=resolve(recipe, pin, lent),
        environment=environment,
        packages=every,
        provider=recipe.build.provider,
        cxx=found.compiler.description,
        identity=hermetic.identity(recipe, torch, cuda, found, every),
        stub=cuda.stub,
        cmake=found.cmake,
        python_version=found.python.version,
        lock=lock,
        sources=sources,
    )


def _same_major(torch: InstalledTorch, cuda: CudaHome) -> None:
    """Within a major release CUDA's libraries are compatible, across them they are not."""
    if torch.cuda.split(".")[0] != str(cuda.nvcc_version.major):
        raise ToolchainError(
            f"torch {torch.full_version} is built for CUDA {torch.cuda}, nvcc is of CUDA {cuda.nvcc_version}",
            where={"torch": str(torch.path), "toolkit": str(cuda.path)},
            next="name a build.cuda-toolkit of torch's major release",
        )
