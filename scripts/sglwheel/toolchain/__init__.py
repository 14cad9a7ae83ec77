"""The build environment: Python, torch, CMake, a CUDA toolkit and the host's compiler, pinned and checked."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.version import Version

from sglwheel import console, process
from sglwheel.errors import ToolchainError
from sglwheel.files import Layout, cache_directory, locked, write_atomic
from sglwheel.mirrors import Mirrors
from sglwheel.recipe import KernelRecipe
from sglwheel.toolchain import (
    borrowed,
    cudahome,
    driverstub,
    host,
    packages,
    preflight,
    probe,
    torchpin,
    wheels,
)
from sglwheel.toolchain.borrowed import Borrowed
from sglwheel.toolchain.cudahome import CudaHome
from sglwheel.toolchain.packages import Lock, Package
from sglwheel.toolchain.pylocks import Pylocks
from sglwheel.toolchain.torchpin import InstalledTorch, TorchPin

__all__ = ["BuildEnv", "InstalledTorch", "Package", "Versions", "prepare", "resolve"]

# Raised when what lies in an environment changes while its requirements do not.
_FORM = "1"
_DONE = "complete.json"
# Packages whose files take part in compiling and linking.
_COMPILES = re.compile(r"torch|cmake|ninja|scikit-build-core|cuda-toolkit|nvidia-.*")


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
    objects come out. `lock` pins torch and what it runs with, for environments like the one it will meet.
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
    logs = layout.work / recipe.id / "toolchain"
    locks = Pylocks(recipe, pin, layout, mirrors, own=False if lent else None)
    supply = Supply(layout, mirrors or Mirrors(), locks.index)
    if lent is not None:
        lock, torch = lent.lock, lent.torch
        python, installed = _beside(lent, locks, layout, logs, supply)
    else:
        lock = locks.environment()
        torchpin.foresee(lock.version("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12"), pin)
        site, python, installed = _environment(lock, found.python, layout, logs, supply)
        wheel = next((package.sha256 for package in installed if package.name == "torch"), None)
        torch = torchpin.read(site, sha256=wheel)
    torchpin.verify(torch, pin)
    if recipe.build.provider == "pypi":
        cuda, toolkit = _toolkit(locks.toolkit(lock), recipe, found, python, layout, logs, supply)
    else:
        cuda, toolkit = cudahome.system(layout, recipe.build.cuda_toolkit, cc=found.compiler.cc), ()
    _same_major(torch, cuda)
    environment = clean_environment(recipe, layout, python.parent, cuda, found.compiler)
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
        identity=identity(recipe, torch, cuda, found, every),
        stub=cuda.stub,
        cmake=found.cmake,
        python_version=found.python.version,
        lock=lock,
    )


@dataclass(frozen=True)
class Supply:
    """Where wheels come from: the store, mirrors, then what uv knows."""

    layout: Layout
    mirrors: Mirrors
    index: str | None

    def install(
        self, lock: Lock, version: Version, *, python: Path, log: Path, title: str, target: Path | None = None
    ) -> None:
        """Install a lock; what its index will drop is kept in the store first. Raises ToolchainError."""
        chosen = wheels.of(lock, version)
        mapped = [item for item in chosen if not item.lasting or self.mirrors.mapped(item.url)]
        wheels.keep(mapped, self.layout, self.mirrors, title=title)
        links, complete = wheels.links(chosen, self.layout)
        packages.install(
            lock,
            python=python,
            log=log,
            title=title,
            target=target,
            # All that is on it is in the store now: whether it answers does not matter.
            index=self.index if target is None and len(mapped) == 0 else None,
            links=links,
            only_links=complete,
        )


def _environment(
    lock: Lock, python: host.Interpreter, layout: Layout, logs: Path, supply: Supply
) -> tuple[Path, Path, tuple[Package, ...]]:
    key = _key(lock.digest, str(python.path), str(python.version))
    root = layout.cache / "envs" / key
    executable = root / "bin" / "python"
    site = root / "lib" / f"python{python.minor}" / "site-packages"
    with made(root, needs=executable) as data:
        if not data:
            console.detail(f"making the build environment with Python {python.version}")
            process.run(
                [packages.uv_binary(), "venv", "--no-config", "--no-project", "--python", python.path, root],
                failure=ToolchainError,
                env=packages.environment(),
                what="making the build environment",
            )
            log = logs / "environment.log"
            supply.install(lock, python.version, python=executable, log=log, title="build environment")
            data["packages"] = packages.to_json(packages.installed(site, [lock]))
    return site, executable, packages.from_json(data["packages"])


def _beside(
    lent: Borrowed, locks: Pylocks, layout: Layout, logs: Path, supply: Supply
) -> tuple[Path, tuple[Package, ...]]:
    """An environment of ours that sees the lent one, with the build tools which that one lacks."""
    missing = lent.missing()
    lock = locks.tools(missing) if missing else None
    root = layout.cache / "envs" / _key(lent.digest, lock.digest if lock else "")
    executable = root / "bin" / "python"
    with made(root, needs=executable) as data:
        if not data:
            console.detail(f"making a build environment on top of torch {lent.torch.full_version}")
            lent.fill(root)
            own: tuple[Package, ...] = ()
            if lock is not None:
                log = logs / "tools.log"
                supply.install(
                    lock, lent.interpreter.version, python=executable, log=log, title="build tools"
                )
                own = packages.installed(borrowed.site_packages(root, lent.interpreter), [lock])
            kept = [one for one in lent.packages if one.name not in {ours.name for ours in own}]
            data["packages"] = packages.to_json([*kept, *own])
    return executable, packages.from_json(data["packages"])


def _toolkit(
    lock: Lock,
    recipe: KernelRecipe,
    found: preflight.Host,
    python: Path,
    layout: Layout,
    logs: Path,
    supply: Supply,
) -> tuple[CudaHome, tuple[Package, ...]]:
    root = layout.cache / "toolkits" / _key(lock.digest, found.compiler.description)
    home = root / "cuda"
    with made(root, needs=home / "bin" / "nvcc") as data:
        if not data:
            console.detail("assembling the CUDA toolkit")
            site = root / "site-packages"
            log = logs / "toolkit.log"
            supply.install(
                lock, found.python.version, python=python, target=site, log=log, title="CUDA toolkit"
            )
            cudahome.assemble(site, home)
            driverstub.build_stub(home, home / "lib64" / "stubs", cc=found.compiler.cc)
            version, build_id = cudahome.version(home / "bin" / "nvcc")
            cudahome.verify(version, recipe.build.cuda_toolkit, home)
            data["packages"] = packages.to_json(packages.installed(site, [lock]))
            data["nvcc"] = [str(version), build_id]
            # The files live on under their second names.
            shutil.rmtree(site)
    version, build_id = Version(data["nvcc"][0]), str(data["nvcc"][1])
    return CudaHome(home, version, build_id, home / "lib64" / "stubs"), packages.from_json(data["packages"])


@contextmanager
def made(root: Path, *, needs: Path) -> Iterator[dict[str, Any]]:
    """Hold `root`'s lock and yield what its done-marker says; empty means: make it, and put something in.

    A virtual environment cannot be moved to its place when it is ready, so the marker, written last, is what
    makes it whole; what has none is thrown away.
    """
    cache_directory(root.parent)
    with locked(root.with_suffix(".lock"), failure=ToolchainError, what=f"{root.parent.name}/{root.name}"):
        marker = root / _DONE
        try:
            data = json.loads(marker.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            data = {}
        fresh = not data or not needs.exists()
        if fresh:
            data = {}
            shutil.rmtree(root, ignore_errors=True)
        else:
            # `store gc` goes by the last use.
            marker.touch()
        yield data
        if fresh:
            write_atomic(marker, json.dumps(data, indent=1, sort_keys=True) + "\n")


def _key(*parts: str) -> str:
    return hashlib.sha256("\n".join((_FORM, *parts)).encode()).hexdigest()[:16]


def _same_major(torch: InstalledTorch, cuda: CudaHome) -> None:
    """Within a major release CUDA's libraries are compatible, across them they are not."""
    if torch.cuda.split(".")[0] != str(cuda.nvcc_version.major):
        raise ToolchainError(
            f"torch {torch.full_version} is built for CUDA {torch.cuda}, nvcc is of CUDA {cuda.nvcc_version}",
            where={"torch": str(torch.path), "toolkit": str(cuda.path)},
            next="name a build.cuda-toolkit of torch's major release",
        )


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
