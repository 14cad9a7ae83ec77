# SPDX-License-Identifier: Apache-2.0
"""Single-query attention on Hopper."""

import torch

try:
    from sample_kernel import flash_ops  # noqa: F401
except ImportError as error:
    raise ImportError("Can not import FA3 in sample_kernel. Please check your installation.") from error


def decode_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Attend with one query [d] over keys and values [n, d]; float32."""
    return torch.ops.sample_kernel.decode_attention(query, key, value)
