"""Stands in for a wheel's kernels on the CPU, so that the GPU suite itself can be tried: right, or wrong.

Written apart from the suite's reference: FP4 and FP8 are found by searching tables of values, scales are laid
out by reshape and permute, products are summed in float32. `FAULT` names one fault.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import torch

FAULT = os.environ.get("STANDIN_FAULT", "")
E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
E4M3 = torch.arange(0x7F, dtype=torch.uint8).view(torch.float8_e4m3fn).float()

Function = Callable[..., Any]
library = torch.library.Library("sgl_kernel", "DEF")


def define(schema: str) -> Callable[[Function], Function]:
    def register(function: Function) -> Function:
        name = library.define(schema)
        library.impl(name, function, "CPU")
        return function

    return register


def nearest(values: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Index of the nearest value; between two, the even index."""
    distance = (values.double()[..., None] - table.double()).abs()
    least = distance.amin(-1, keepdim=True)
    tied = distance == least
    even = torch.arange(len(table)) % 2 == 0
    return (tied.int() * 2 + (tied & even).int()).argmax(-1)


def blocked(scales: torch.Tensor) -> torch.Tensor:
    """(rows, scales) of whole tiles as they are stored."""
    rows, columns = scales.shape
    tiles = scales.view(rows // 128, 4, 32, columns // 4, 4)
    return tiles.permute(0, 3, 2, 1, 4).contiguous().view(rows, columns)


def linear(stored: torch.Tensor) -> torch.Tensor:
    """The way back."""
    rows, columns = stored.shape
    tiles = stored.view(rows // 128, columns // 4, 32, 4, 4)
    return tiles.permute(0, 3, 2, 1, 4).contiguous().view(rows, columns)


def quantize(values: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(rows, n) as packed codes (rows, n / 2) and scale bytes (rows, n / 16)."""
    rows, columns = values.shape
    blocks = values.float().view(rows, columns // 16, 16)
    codes = nearest((scale * (blocks.abs().amax(-1) / 6.0)).clamp(max=448), E4M3)
    decoded = E4M3[codes]
    factor = torch.where(decoded > 0, scale / decoded, torch.zeros(()))
    scaled = (blocks * factor[..., None]).view(rows, columns)
    fp4 = nearest(scaled.abs().clamp(max=6), E2M1) + 8 * (scaled < 0)
    return (fp4[:, ::2] + 16 * fp4[:, 1::2]).to(torch.uint8), codes.to(torch.uint8)


def store(target: torch.Tensor, scales: torch.Tensor) -> None:
    """Write scale bytes into (padded rows, padded scales / 4) int32, real rows and columns only."""
    seen = target.view(torch.uint8)
    full = linear(seen)
    full[: scales.shape[0], : scales.shape[1]] = scales
    seen.copy_(full if FAULT == "layout" else blocked(full))


def dequantize(packed: torch.Tensor, stored: torch.Tensor) -> torch.Tensor:
    rows, columns = packed.shape[0], packed.shape[1] * 2
    codes = torch.stack((packed & 15, packed >> 4), -1).view(rows, columns).long()
    values = E2M1[codes & 7] * torch.where(codes > 7, -1.0, 1.0)
    scales = (
        linear(stored.view(torch.uint8))[:rows, : columns // 16]
        .contiguous()
        .view(torch.float8_e4m3fn)
        .float()
    )
    return (values.view(rows, -1, 16) * scales[..., None]).view(rows, columns)


@define("rmsnorm(Tensor! output, Tensor input, Tensor weight, float eps, bool enable_pdl) -> ()")
def rmsnorm(output: Any, input: Any, weight: Any, eps: Any, enable_pdl: Any) -> None:
    if FAULT == "abort":
        os.abort()
    if FAULT == "hang":
        time.sleep(600)
    x = input.float()
    result = (x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * weight.float()).to(output.dtype)
    if FAULT == "unwritten":
        output.view(-1)[:-1] = result.view(-1)[:-1]
        return
    output.copy_(result)
    if FAULT == "nan":
        output.view(-1)[0] = float("nan")
    if FAULT == "overrun":
        torch.as_strided(output, (output.numel() + 1,), (1,))[-1] = 0
    if FAULT == "imprecise":
        output.mul_(1.01)


@define("scaled_fp4_quant(Tensor! output, Tensor! input, Tensor! output_scale, Tensor! input_scale) -> ()")
def scaled_fp4_quant(output: Any, input: Any, output_scale: Any, input_scale: Any) -> None:
    if FAULT == "refuse":
        raise RuntimeError("fp4_quant is only supported on sm100+")
    packed, scales = quantize(input, input_scale)
    output.copy_(packed if FAULT != "nibbles" else packed >> 4 | packed << 4)
    store(output_scale, scales)


@define(
    "cutlass_scaled_fp4_mm(Tensor! out, Tensor a, Tensor b, Tensor block_scale_a, Tensor block_scale_b,"
    " Tensor alpha) -> ()"
)
def cutlass_scaled_fp4_mm(
    out: Any, a: Any, b: Any, block_scale_a: Any, block_scale_b: Any, alpha: Any
) -> None:
    product = dequantize(a, block_scale_a) @ dequantize(b, block_scale_b).t() * alpha
    if FAULT == "alpha":
        product *= 1.05
    if FAULT == "flicker":
        # Less than the bound allows: only comparing two runs shows it.
        product *= 1 + 3e-4 * torch.rand_like(product)
    out.copy_(product.to(out.dtype))


@define(
    "scaled_fp4_experts_quant(Tensor! output, Tensor! output_scale, Tensor input, Tensor input_global_scale,"
    " Tensor input_offset_by_experts, Tensor output_scale_offset_by_experts) -> ()"
)
def scaled_fp4_experts_quant(
    output: Any, output_scale: Any, input: Any, scale: Any, rows: Any, scale_rows: Any
) -> None:
    for e in range(len(scale)):
        own, tiles = slice(rows[e], rows[e + 1]), slice(scale_rows[e], scale_rows[e + 1])
        if rows[e] < rows[e + 1]:
            output[own], scales = quantize(input[own], scale[0 if FAULT == "expert" else e])
            store(output_scale[tiles], scales)


@define(
    "silu_and_mul_scaled_fp4_experts_quant(Tensor! output, Tensor! output_scale, Tensor input,"
    " Tensor input_global_scale, Tensor mask, bool use_silu_and_mul) -> ()"
)
def silu_and_mul_scaled_fp4_experts_quant(
    output: Any, output_scale: Any, input: Any, scale: Any, mask: Any, use_silu_and_mul: Any
) -> None:
    experts = len(scale)
    each, codes = input.view(experts, -1, input.shape[1]), output.view(experts, -1, output.shape[1])
    scales = output_scale.view(experts, -1, output_scale.shape[1])
    for e in range(experts):
        values = each[e, : mask[e]].float()
        if use_silu_and_mul:
            left, right = values.chunk(2, -1)
            values = (left / (1 + (-left).exp()) * right).to(input.dtype).float()
        if len(values):
            codes[e, : mask[e]], found = quantize(values, scale[e])
            store(scales[e], found)


@define(
    "cutlass_fp4_group_mm(Tensor! output, Tensor a, Tensor b, Tensor a_blockscale, Tensor b_blockscale,"
    " Tensor alphas, Tensor ab_strides, Tensor c_strides, Tensor problem_sizes, Tensor expert_offsets,"
    " Tensor sf_offsets) -> ()"
)
def cutlass_fp4_group_mm(
    output: Any,
    a: Any,
    b: Any,
    a_blockscale: Any,
    b_blockscale: Any,
    alphas: Any,
    ab_strides: Any,
    c_strides: Any,
    problem_sizes: Any,
    expert_offsets: Any,
    sf_offsets: Any,
) -> None:
    if output.dtype == torch.float16 and FAULT == "no float16":
        return
    for e, (count, _, _) in enumerate(problem_sizes.tolist()):
        if not count:
            continue
        first, tiles = int(expert_offsets[e]), int(sf_offsets[e])
        left = dequantize(a[first : first + count], a_blockscale[tiles : tiles + -(-count // 128) * 128])
        product = left @ dequantize(b[e], b_blockscale[e]).t() * alphas[e]
        output[first : first + count] = product.to(output.dtype)


from sgl_kernel import products  # noqa: E402, F401
