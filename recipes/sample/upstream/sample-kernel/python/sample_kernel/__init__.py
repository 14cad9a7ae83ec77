# SPDX-License-Identifier: Apache-2.0
"""CUDA kernels of the sample project."""

import torch

from sample_kernel.load_utils import load_common_ops
from sample_kernel.version import __version__

common_ops = load_common_ops()

rmsnorm = torch.ops.sample_kernel.rmsnorm
scaled_fp4_quant = torch.ops.sample_kernel.scaled_fp4_quant
scaled_fp4_mm = torch.ops.sample_kernel.scaled_fp4_mm
allocation_range = torch.ops.sample_kernel.allocation_range
build_info = torch.ops.sample_kernel.build_info

__all__ = [
    "__version__",
    "allocation_range",
    "build_info",
    "rmsnorm",
    "scaled_fp4_mm",
    "scaled_fp4_quant",
]
