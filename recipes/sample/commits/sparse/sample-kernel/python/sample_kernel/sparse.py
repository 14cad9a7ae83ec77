# SPDX-License-Identifier: Apache-2.0
"""Sparsification; the library is loaded by the first call."""

import torch


def keep_above(tensor: torch.Tensor, threshold: float) -> torch.Tensor:
    """Zero what is not above `threshold` in magnitude."""
    from sample_kernel import sparse_ops  # noqa: F401

    return torch.ops.sample_kernel.keep_above(tensor, threshold)
