"""NVFP4 in plain Python: what the formats are, written from their definitions.

A value is x ≈ e2m1 · e4m3 / g: a 4-bit float, one 8-bit scale for every 16 values of a row, and one float g
for the whole tensor. Sources: OCP Microscaling Formats 1.0 (E2M1), OCP 8-bit floating point 1.0 (E4M3), and
NVIDIA's PTX documentation of `tcgen05.mma` block scaling, which gives the scales' layout. Nothing here needs
torch; the tensors of `nvfp4_tensors` are made from these functions.
"""

from __future__ import annotations

import math

BLOCK = 16
"""Values of a row that share one scale."""
E2M1_MAX = 6.0
E4M3_MAX = 448.0
ROWS, COLUMNS = 128, 4
"""The tile of scales that the tensor cores read: 128 rows, 4 scales of each."""


def e2m1_value(code: int) -> float:
    """The value of a 4-bit code: sign, two exponent bits of bias 1, one mantissa bit; no infinity, no NaN."""
    exponent, mantissa = (code >> 1) & 3, code & 1
    magnitude = 0.5 * mantissa if exponent == 0 else (1 + 0.5 * mantissa) * 2.0 ** (exponent - 1)
    return -magnitude if code & 8 else magnitude


def e2m1_code(value: float) -> int:
    """Round to nearest, ties to the even mantissa, saturating at 6: `cvt.rn.satfinite.e2m1x2`.

    By arithmetic: the spacing is 0.5 below 2, then 1, then 2. NaN becomes +6, as that instruction does.
    """
    if math.isnan(value):
        return 7
    sign = 8 if math.copysign(1.0, value) < 0 else 0
    magnitude = min(abs(value), E2M1_MAX)
    step = 0.5 if magnitude < 2 else 1.0 if magnitude < 4 else 2.0
    # round() takes ties to even multiples of the step, which are the even mantissas of each binade.
    nearest = min(round(magnitude / step) * step, E2M1_MAX)
    if nearest < 2:
        return sign | int(nearest * 2)
    exponent = int(math.log2(nearest))
    return sign | (exponent + 1) << 1 | int(nearest / 2**exponent >= 1.5)


def e4m3_value(code: int) -> float:
    """The value of an 8-bit code: sign, four exponent bits of bias 7, three of mantissa; NaN is S1111111."""
    exponent, mantissa = (code >> 3) & 15, code & 7
    if exponent == 15 and mantissa == 7:
        return math.nan
    magnitude = mantissa / 8 * 2.0**-6 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7)
    return -magnitude if code & 0x80 else magnitude


def e4m3_code(value: float) -> int:
    """Round to nearest, ties to even, saturating at 448; NaN stays NaN."""
    if math.isnan(value):
        return 0x7F
    sign = 0x80 if math.copysign(1.0, value) < 0 else 0
    magnitude = min(abs(value), E4M3_MAX)
    exponent = max(math.frexp(magnitude)[1] - 1, -6) if magnitude else -6
    units = round(magnitude / 2.0 ** (exponent - 3))
    if units == 16:
        units, exponent = 8, exponent + 1
    if units < 8:
        return sign | units
    return min(sign | (exponent + 7) << 3 | (units - 8), sign | 0x7E)


def padded(rows: int, scales: int) -> tuple[int, int]:
    """How many rows and scales of a row are stored: whole tiles."""
    return -(-rows // ROWS) * ROWS, -(-scales // COLUMNS) * COLUMNS


def swizzled_offset(row: int, column: int, scales: int) -> int:
    """Where the scale of (row, column) lies, in bytes; `scales` is how many each row has.

    Tiles follow each other along a row of tiles. In a tile, 32 groups of 16 bytes: group r % 32 holds, for
    each of the rows r, r + 32, r + 64, r + 96, its four scales.
    """
    tiles = -(-scales // COLUMNS)
    tile = (row // ROWS) * tiles + column // COLUMNS
    inside = row % ROWS
    return tile * ROWS * COLUMNS + (inside % 32) * 16 + (inside // 32) * 4 + column % COLUMNS


def quantize_block(values: list[float], global_scale: float) -> tuple[int, list[int]]:
    """The scale's code and the values' codes of one block.

    scale = e4m3(g · max|x| / 6); code = e2m1(x · g / scale). A block of zeros has scale 0 and codes 0.
    """
    scale = e4m3_code(global_scale * (max(map(abs, values), default=0.0) / E2M1_MAX))
    decoded = e4m3_value(scale)
    factor = global_scale / decoded if decoded else 0.0
    return scale, [e2m1_code(value * factor) for value in values]
