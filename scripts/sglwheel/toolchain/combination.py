"""Combinations of torch, CUDA and GPU that cannot work: refused before anything is fetched for them."""

from __future__ import annotations

from packaging.version import Version

from sglwheel.errors import ToolchainError
from sglwheel.recipe import KernelRecipe
from sglwheel.toolchain.torchpin import TorchPin

# https://docs.nvidia.com/cuda/cuda-toolkit-release-notes/ : the release that brought a target, by
# compute capability.
_SINCE = {
    (9, 0): Version("11.8"),
    (10, 0): Version("12.8"),
    (10, 3): Version("12.9"),
    (11, 0): Version("13.0"),
    (12, 0): Version("12.8"),
    (12, 1): Version("12.9"),
}


def require(recipe: KernelRecipe, pin: TorchPin) -> None:
    """Refuse what no build can make work. Raises ToolchainError with every reason."""
    toolkit = recipe.build.cuda_toolkit
    wrong: dict[str, str] = {}
    if toolkit.major != pin.cuda.major:
        # Within a major release CUDA's libraries are compatible, across them they are not.
        wrong["build.cuda-toolkit"] = f"{toolkit} beside a torch for CUDA {pin.cuda.version}"
    for arch in recipe.build.architectures:
        since = _SINCE.get(arch.capability)
        if since is not None and toolkit < since:
            wrong[f"architecture {arch}"] = f"CUDA {since} and newer have it, the recipe names {toolkit}"
    if wrong:
        raise ToolchainError(
            f"torch {pin.version}, CUDA {toolkit} and these GPUs do not go together",
            where=wrong,
            next="name another build.cuda-toolkit, torch.cuda or build.architectures",
        )
