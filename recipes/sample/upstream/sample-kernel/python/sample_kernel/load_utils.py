# SPDX-License-Identifier: Apache-2.0
"""Choose and load the variant of common_ops that suits this machine's GPU."""

import importlib.util
from pathlib import Path
from types import ModuleType

import torch

HERE = Path(__file__).parent


def variant() -> str:
    """Name the variant: sm90 (fast math) on compute capability 9.0, sm100 on anything else."""
    if torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0):
        return "sm90"
    return "sm100"


def load_common_ops() -> ModuleType:
    """Load the library by path; both variants have the same module name."""
    directory = HERE / variant()
    for library in sorted(directory.glob("common_ops*.so")):
        spec = importlib.util.spec_from_file_location("common_ops", library)
        if spec is None or spec.loader is None:
            continue
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    raise ImportError(f"no common_ops library in {directory}")
