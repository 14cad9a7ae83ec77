"""NVFP4 for whole tensors: tables and indexes of `nvfp4`, applied by torch on any device."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import torch

from sglwheel.gpucheck import nvfp4

Tensor = Any


@functools.cache
def _tables(device: str) -> tuple[Tensor, Tensor, Tensor]:
    """Values of the 16 and 256 codes, and the 7 boundaries between neighbouring magnitudes of e2m1."""
    e2m1 = [nvfp4.e2m1_value(code) for code in range(16)]
    e4m3 = [nvfp4.e4m3_value(code) for code in range(256)]
    middles = [(low + high) / 2 for low, high in itertools.pairwise(e2m1[:8])]
    return tuple(torch.tensor(each, dtype=torch.float64, device=device) for each in (e2m1, e4m3, middles))


def e2m1_round(values: Tensor) -> Tensor:
    """Round float64 values to the nearest of e2m1, ties to the even code, saturating."""
    e2m1, _, middles = _tables(str(values.device))
    magnitude = values.abs()
    # Codes below the middle, and the one above it exactly where a tie goes to an even code.
    low = torch.bucketize(magnitude, middles, right=False)
    high = torch.bucketize(magnitude, middles, right=True)
    code = torch.where(low % 2 == 0, low, high)
    return e2m1[code] * torch.where(torch.signbit(values), -1.0, 1.0)


def e4m3_round(values: Tensor) -> Tensor:
    """Round non-negative float64 values to the nearest of e4m3, ties to even, saturating at 448."""
    exponent = torch.frexp(values.clamp(max=nvfp4.E4M3_MAX))[1].clamp(min=-5) - 1
    step = torch.ldexp(torch.ones_like(values), exponent - 3)
    return ((values.clamp(max=nvfp4.E4M3_MAX) / step).round() * step).clamp(max=nvfp4.E4M3_MAX)


def unpack(packed: Tensor) -> Tensor:
    """Values of (…, n / 2) bytes as (…, n) float64; the low half of a byte comes first."""
    e2m1 = _tables(str(packed.device))[0]
    return e2m1[torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2).long()]


def pack(codes: Tensor) -> Tensor:
    """(…, n) codes as (…, n / 2) bytes."""
    return (codes[..., ::2] | codes[..., 1::2] << 4).to(torch.uint8)


def offsets(rows: int, scales: int, device: Any) -> Tensor:
    """The swizzled byte offset of each of (rows, scales) scales, relative to the tensor's first tile."""
    row = torch.arange(rows, device=device)[:, None]
    column = torch.arange(scales, device=device)[None]
    tiles = -(-scales // nvfp4.COLUMNS)
    tile = row // nvfp4.ROWS * tiles + column // nvfp4.COLUMNS
    inside = row % nvfp4.ROWS
    return tile * nvfp4.ROWS * nvfp4.COLUMNS + inside % 32 * 16 + inside // 32 * 4 + column % nvfp4.COLUMNS


def swizzle(codes: Tensor, fill_rows: int, fill_columns: int = 0) -> Tensor:
    """Lay (rows, scales) scale bytes out as the tensor cores read them: (padded rows, padded scales) bytes.

    Padding rows hold `fill_rows`, padding columns of real rows `fill_columns`.
    """
    rows, scales = codes.shape
    padded_rows, padded_scales = nvfp4.padded(rows, scales)
    full = torch.full((padded_rows, padded_scales), fill_rows, dtype=torch.uint8, device=codes.device)
    full[:rows, scales:] = fill_columns
    full[:rows, :scales] = codes
    out = torch.empty(padded_rows * padded_scales, dtype=torch.uint8, device=codes.device)
    out[offsets(padded_rows, padded_scales, codes.device).flatten()] = full.flatten()
    return out.view(padded_rows, padded_scales)


def unswizzle(stored: Tensor, rows: int, scales: int) -> Tensor:
    """The (rows, scales) scale bytes of swizzled storage."""
    return stored.flatten()[offsets(rows, scales, stored.device)]


def scale_values(codes: Tensor) -> Tensor:
    """Scale bytes as float64."""
    return _tables(str(codes.device))[1][codes.long()]


def dequantize(packed: Tensor, scales: Tensor, global_scale: Any) -> Tensor:
    """(rows, n / 2) bytes and (rows, n / 16) scale bytes as float64 values."""
    blocks = unpack(packed).unflatten(-1, (-1, nvfp4.BLOCK))
    return (blocks * scale_values(scales)[..., None]).flatten(-2) / global_scale


def random(rows: int, columns: int, generator: Any, device: Any) -> tuple[Tensor, Tensor]:
    """Random codes and scales, packed and not swizzled: every code; scales around 1, none of them zero."""
    codes = torch.randint(0, 16, (rows, columns), generator=generator, device=device, dtype=torch.int32)
    scales = torch.randint(
        0x30, 0x48, (rows, columns // nvfp4.BLOCK), generator=generator, device=device, dtype=torch.int32
    )
    return pack(codes), scales.to(torch.uint8)
