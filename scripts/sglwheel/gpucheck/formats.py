"""How far a right result may lie from the exact one, by number format.

u is the unit roundoff of a format with p significant bits, 2^-p: rounding the exact x to nearest gives
x(1 + d), |d| <= u, or is off by half of the smallest subnormal (Higham, Accuracy and Stability of Numerical
Algorithms, 2.2). Every bound below is a sum of what each step of the operator may add; none is fitted to a
kernel. A quotient of error and bound above 1 is a failure.
"""

from __future__ import annotations

import math
from typing import Any

import torch

Tensor = Any
UNIT = {
    torch.float32: 2.0**-24,
    torch.float16: 2.0**-11,
    torch.bfloat16: 2.0**-8,
    torch.float8_e4m3fn: 2.0**-4,
}
"""Unit roundoff, from 24, 11, 8 and 4 significant bits."""
_HALF_SUBNORMAL = {
    torch.float32: 2.0**-126,  # subnormals may be flushed
    torch.float16: 2.0**-25,
    torch.bfloat16: 2.0**-126,
    torch.float8_e4m3fn: 2.0**-10,
}
U32 = UNIT[torch.float32]
APPROXIMATE = 2.0**-18
"""Relative error of float32 arithmetic with the GPU's fast exp, reciprocal, square root and division, each
within 2 units in the last place and exp within 2 + 1.2|x| of them for |x| < 20 (CUDA Programming Guide,
intrinsic functions): fewer than 64 u in all."""


def stored(exact: Tensor, dtype: Any, before: Tensor | float = 0.0) -> Tensor:
    """Bound for `exact` rounded to `dtype` after an error of `before`.

    |fl(x + e) - x| <= |e| + u(|x| + |e|) + s/2.
    """
    error = torch.as_tensor(before, dtype=torch.float64, device=exact.device)
    return error + UNIT[dtype] * (exact.abs() + error) + _HALF_SUBNORMAL[dtype]


def normalised(exact: Tensor, columns: int, dtype: Any, *, sum_unit: float = 0.0) -> Tensor:
    """Bound for x · w / rms(x): a sum of `columns` squares, a reciprocal root, two products, one rounding.

    The squares are positive, so their sum has relative error of at most n u in any order, the root half of
    that. `sum_unit` is u of the format that x itself was rounded to before (a residual that was added): it
    enters once in x and at most once in the root.
    """
    relative = columns / 2 * U32 + APPROXIMATE + 2 * sum_unit
    return stored(exact, dtype, exact.abs() * relative)


def accumulated(squares: Tensor, k: int, *, inner: int | None = None, bits: int = 13) -> Tensor:
    """Bound for the accumulation of k products of 8-bit or 4-bit floats in a tensor core, before scaling.

    `squares` is the sum of (a b)^2 over k, so R = sqrt(squares) is the size that partial sums of products
    with random signs have. Hopper's FP8 units keep about 14 bits of an accumulator and truncate (DeepSeek-V3
    Technical Report, 3.3.2; 2^-13 relative to the partial sum), once for each instruction of 32 products; a
    partial sum averages below R and exceeds 4R with probability below 1e-4. So k/32 steps add at most
    k/32 · 2^-13 · 4R. Where the kernel moves partial sums to float32 after `inner` products, they are only
    as large as R(inner) = R sqrt(inner / k). Products of 4-bit and 8-bit floats themselves are exact.
    """
    steps = max(k / 32, 1)
    root = squares.clamp(min=0).sqrt() * (math.sqrt(inner / k) if inner and inner < k else 1.0)
    return steps * 2.0**-bits * 4 * root


def scaled(product: Tensor, before: Tensor, dtype: Any, bias: Tensor | None = None) -> Tensor:
    """Bound for product · s_a · s_b (+ bias), three float32 roundings and the one to `dtype`.

    `product` is exact and scaled, `before` the scaled bound of the accumulation.
    """
    exact = product if bias is None else product + bias
    spread = product.abs() if bias is None else product.abs() + bias.abs()
    return stored(exact, dtype, before + 4 * U32 * spread)


def blockwise(exact: Tensor, squares: Tensor, k: int, dtype: Any) -> Tensor:
    """Bound for products whose scales enter between blocks of 128 along k, in float32.

    The tensor core's accumulators never see more than a block; then come k / 128 products and sums of
    float32, each off by u of a partial sum (below 4R, see `accumulated`), and up to four more roundings.
    """
    before = accumulated(squares, k, inner=128) + (k / 128 + 4) * U32 * squares.sqrt() * 4
    return stored(exact, dtype, before)


BF16_BITS = 19
"""For `accumulated`: products of bfloat16 are exact in float32, and in whatever order they are added each sum
is off by 2^-24 of a partial sum at most, 32 of them by 2^-19. Tensor cores round once for 16."""


def fp4_tolerance(dtype: Any | None = None) -> float:
    """Relative error of a value before it is rounded to FP4 or its scale to FP8.

    Two or three float32 products and approximate reciprocals: 2^-20. After an activation that is first
    rounded to `dtype`, one more such rounding on each side.
    """
    return 2.0**-20 if dtype is None else 2 * UNIT[dtype] + 2.0**-18
