"""The NVFP4 reference against second formulations: searches through tables, and reshapes."""

from __future__ import annotations

import math
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglwheel.gpucheck import nvfp4

# The tables as the standards print them.
E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
FINITE = st.floats(allow_nan=False, width=32)


def e4m3_by_bits(code: int) -> float:
    """Through the bits of a float32: the exponent is rebased, a subnormal is an integer times 2^-9."""
    if code & 0x7F == 0x7F:
        return math.nan
    if not code & 0x78:
        magnitude = (code & 7) * 2.0**-9
    else:
        bits = ((code >> 3 & 15) + 120) << 23 | (code & 7) << 20
        magnitude = struct.unpack("<f", struct.pack("<I", bits))[0]
    return -magnitude if code & 0x80 else magnitude


E4M3 = [e4m3_by_bits(code) for code in range(0x7F)]


def nearest(value: float, table: list[float]) -> int:
    """The index of the nearest value in a rising table; of two, the even one."""
    distance = [abs(value - entry) for entry in table]
    least = min(distance)
    tied = [index for index, each in enumerate(distance) if each == least]
    return tied[0] if len(tied) == 1 else next(index for index in tied if index % 2 == 0)


def test_values_of_all_codes() -> None:
    assert [nvfp4.e2m1_value(code) for code in range(8)] == E2M1
    assert [nvfp4.e2m1_value(code) for code in range(9, 16)] == [-value for value in E2M1[1:]]
    for code in range(256):
        value, again = nvfp4.e4m3_value(code), e4m3_by_bits(code)
        assert value == again or (math.isnan(value) and math.isnan(again))


@settings(deadline=None)
@given(FINITE)
def test_e2m1_rounds_to_the_nearest_of_the_table(value: float) -> None:
    code = nvfp4.e2m1_code(value)
    assert code & 7 == nearest(min(abs(value), 6.0), E2M1)
    assert (code & 8 != 0) == (math.copysign(1.0, value) < 0)


@settings(deadline=None)
@given(st.floats(min_value=-600, max_value=600, width=32))
def test_e4m3_rounds_to_the_nearest_of_the_table(value: float) -> None:
    code = nvfp4.e4m3_code(value)
    assert code & 0x7F == nearest(min(abs(value), 448.0), E4M3)
    assert (code & 0x80 != 0) == (math.copysign(1.0, value) < 0)


@pytest.mark.parametrize("low", range(7))
def test_ties_of_e2m1_go_to_the_even_code(low: int) -> None:
    middle = (E2M1[low] + E2M1[low + 1]) / 2
    assert nvfp4.e2m1_code(middle) == low + low % 2
    assert nvfp4.e2m1_code(math.nextafter(middle, 9)) == low + 1
    assert nvfp4.e2m1_code(math.nextafter(middle, -9)) == low


def test_what_is_beyond_the_formats() -> None:
    assert nvfp4.e2m1_value(nvfp4.e2m1_code(math.inf)) == 6.0
    assert nvfp4.e2m1_value(nvfp4.e2m1_code(-1e30)) == -6.0
    assert nvfp4.e4m3_value(nvfp4.e4m3_code(math.inf)) == 448.0
    assert math.isnan(nvfp4.e4m3_value(nvfp4.e4m3_code(math.nan)))
    assert nvfp4.e2m1_code(math.nan) == 7


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 300), st.integers(1, 20))
def test_swizzling_is_reshape_and_permute(rows: int, scales: int) -> None:
    """(tiles of rows, 4, 32, tiles of columns, 4) → (tiles of rows, tiles of columns, 32, 4, 4)."""
    padded_rows, padded_scales = nvfp4.padded(rows, scales)
    assert padded_rows % 128 == padded_scales % 4 == 0
    assert rows <= padded_rows < rows + 128 and scales <= padded_scales < scales + 4
    order = [
        ((tile_row * 4 + quarter) * 32 + group, tile_column * 4 + column)
        for tile_row in range(padded_rows // 128)
        for tile_column in range(padded_scales // 4)
        for group in range(32)
        for quarter in range(4)
        for column in range(4)
    ]
    stored = {place: offset for offset, place in enumerate(order)}
    seen = {
        (r, c): nvfp4.swizzled_offset(r, c, scales) for r in range(padded_rows) for c in range(padded_scales)
    }
    assert seen == stored


@settings(deadline=None)
@given(st.lists(st.floats(-100, 100, width=16), min_size=16, max_size=16), st.floats(0.5, 2000, width=32))
def test_a_block_comes_back_within_half_a_step(values: list[float], global_scale: float) -> None:
    scale, codes = nvfp4.quantize_block(values, global_scale)
    decoded = nvfp4.e4m3_value(scale)
    largest = max(map(abs, values))
    exact = global_scale * largest / 6
    for value, code in zip(values, codes, strict=True):
        given_back = nvfp4.e2m1_value(code) * decoded / global_scale
        # Half of the largest step (2 in units of the scale); more where the scale itself was rounded down or
        # saturated, so that the block's maximum lies beyond 6.
        beyond = max(0.0, largest * global_scale - 6 * decoded) / global_scale
        assert abs(given_back - value) <= decoded / global_scale + beyond + 1e-9 or decoded == 0
    assert decoded <= 448
    if 2.0**-6 <= exact <= 448:
        assert abs(decoded - exact) <= exact * 2.0**-4


def test_a_block_of_zeros_is_zero() -> None:
    assert nvfp4.quantize_block([0.0] * 16, 2688.0) == (0, [0] * 16)
