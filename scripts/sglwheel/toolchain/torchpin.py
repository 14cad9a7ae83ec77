"""The one torch build that a wheel is compiled against: what is asked for, and what was installed."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

from packaging.version import InvalidVersion, Version

from sglwheel.errors import ToolchainError
from sglwheel.recipe import Recipe
from sglwheel.types import CudaLine

_PYTORCH_INDEX = "https://download.pytorch.org/whl"


@dataclass(frozen=True)
class TorchPin:
    """A torch as a recipe asks for it; `index_url` None means PyPI."""

    version: Version
    cuda: CudaLine
    requirement: str
    index_url: str | None


@dataclass(frozen=True)
class InstalledTorch:
    """A torch as it lies in an environment; `sha256` is that of the wheel it came from.

    `record` is the hash of its RECORD instead, for one that was installed by somebody else.
    """

    version: Version
    full_version: str
    cuda: str
    git_version: str
    path: Path
    sha256: str | None
    cxx11_abi: bool
    record: str | None = None


def pin(recipe: Recipe) -> TorchPin:
    """Say which torch the recipe means. Nightlies need no `index-url`: only PyTorch's index has them."""
    torch = recipe.torch
    index = torch.index_url
    if index is None and torch.version.is_devrelease:
        index = f"{_PYTORCH_INDEX}/nightly/{torch.cuda}"
    return TorchPin(torch.version, torch.cuda, f"torch=={torch.version}", index)


def foresee(runtime: Version | None, wanted: TorchPin) -> None:
    """Refuse a torch whose CUDA runtime is of another release, before its gigabytes are downloaded.

    `runtime` None says nothing: some builds carry their runtime inside. Raises ToolchainError naming both.
    """
    if runtime is not None and runtime.release[:2] != (wanted.cuda.major, wanted.cuda.minor):
        raise _other_cuda(str(wanted.version), f"{runtime.major}.{runtime.minor}", wanted, {})


def read(site_packages: Path, *, sha256: str | None = None) -> InstalledTorch:
    """Read an installed torch's facts from its files: importing it takes seconds and may need a driver.

    Raises ToolchainError when it is missing, or was built without CUDA.
    """
    path = site_packages / "torch"
    facts = _constants(path / "version.py")
    full = facts.get("__version__")
    if not isinstance(full, str):
        raise ToolchainError(
            "no torch in the build environment",
            where={"looked in": str(path)},
            next="install torch there, or leave --torch-from out: the build makes its own environment",
        )
    cuda = facts.get("cuda")
    if not isinstance(cuda, str):
        raise ToolchainError(
            f"torch {full} is built without CUDA",
            where={"torch": str(path)},
            next=f"set torch.index-url in the recipe, for example {_PYTORCH_INDEX}/cu130",
        )
    try:
        public = Version(Version(full).public)
    except InvalidVersion:
        raise ToolchainError(
            f"torch's version {full!r} is none",
            where={"torch": str(path)},
            next="name a torch of PyTorch's own indexes: sglwheel torch list",
        ) from None
    return InstalledTorch(
        public, full, cuda, str(facts.get("git_version") or "unknown"), path, sha256, _cxx11_abi(path)
    )


def verify(torch: InstalledTorch, wanted: TorchPin) -> None:
    """Refuse a torch that is not the one the recipe names. Raises ToolchainError naming both."""
    if torch.version != wanted.version:
        raise ToolchainError(
            f"torch {torch.full_version} is installed, the recipe names {wanted.version}",
            where={"torch": str(torch.path)},
            next=f"give --torch {torch.version}, or an environment with torch {wanted.version}",
        )
    if torch.cuda != wanted.cuda.version:
        raise _other_cuda(torch.full_version, torch.cuda, wanted, {"torch": str(torch.path)})


def _other_cuda(torch: str, cuda: str, wanted: TorchPin, where: dict[str, str]) -> ToolchainError:
    return ToolchainError(
        f"torch {torch} is built for CUDA {cuda}, the recipe names {wanted.cuda}, CUDA {wanted.cuda.version}",
        where={"index": wanted.index_url or "PyPI", **where},
        next=f"set torch.index-url to {_PYTORCH_INDEX}/{wanted.cuda}, or correct torch.cuda",
    )


def _constants(path: Path) -> dict[str, object]:
    """The module-level literals of a Python file that is not run."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, UnicodeDecodeError):
        return {}
    found: dict[str, object] = {}
    for node in tree.body:
        if isinstance(node, ast.AnnAssign):
            targets: list[ast.expr] = [node.target]
        elif isinstance(node, ast.Assign):
            targets = node.targets
        else:
            continue
        if isinstance(node.value, ast.Constant):
            found.update({target.id: node.value.value for target in targets if isinstance(target, ast.Name)})
    return found


def _cxx11_abi(path: Path) -> bool:
    """Whether libstdc++'s new ABI is used; torch's CMake files stopped saying so when the old one went."""
    try:
        config = (path / "share/cmake/Torch/TorchConfig.cmake").read_text(encoding="utf-8")
    except OSError:
        return True
    return "_GLIBCXX_USE_CXX11_ABI=0" not in config
