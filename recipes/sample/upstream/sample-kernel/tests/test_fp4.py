# SPDX-License-Identifier: Apache-2.0
"""The CPU reference against float64; the same cases on a GPU where there is one."""

import json

import pytest
import sample_kernel
import torch

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)


def dequantise(packed: torch.Tensor, scales: torch.Tensor, global_scale: torch.Tensor) -> torch.Tensor:
    nibbles = torch.stack([packed & 15, packed >> 4], dim=-1).flatten(1).long()
    values = E2M1.to(packed.device)[nibbles & 7] * torch.where(nibbles > 7, -1.0, 1.0).double()
    return values * scales.double().repeat_interleave(16, dim=1) / global_scale.double()


def quantised(rows: int, columns: int, device: str, dtype: torch.dtype = torch.float32):
    dense = torch.randn(rows, columns, generator=torch.Generator().manual_seed(rows)).to(device, dtype)
    global_scale = (448 * 6 / dense.float().abs().max()).reshape(1)
    return dense, global_scale, *sample_kernel.scaled_fp4_quant(dense, global_scale)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_quantisation_error(device: str, dtype: torch.dtype) -> None:
    dense, global_scale, packed, scales = quantised(33, 96, device, dtype)
    assert packed.shape == (33, 48) and packed.dtype == torch.uint8
    assert scales.shape == (33, 6) and scales.dtype == torch.float8_e4m3fn
    blocks = dense.double().reshape(33, 6, 16)
    error = (dequantise(packed, scales, global_scale).reshape(33, 6, 16) - blocks).abs()
    # Half of the widest E2M1 step (4 to 6) is 1/6 of the block's maximum; the scale's rounding adds 1/16.
    assert (error <= (1 / 6 + 1 / 16) * blocks.abs().amax(-1, keepdim=True)).all()


@pytest.mark.parametrize("device", DEVICES)
def test_scales_match_torch(device: str) -> None:
    dense, global_scale, _, scales = quantised(64, 256, device)
    expected = dense.reshape(64, 16, 16).abs().amax(-1) * (global_scale * (1 / 6))
    assert torch.equal(scales.float(), expected.to(torch.float8_e4m3fn).float())


@pytest.mark.parametrize("device", DEVICES)
def test_matmul_against_float64(device: str) -> None:
    _, scale_a, a, a_scales = quantised(17, 128, device)
    _, scale_b, b, b_scales = quantised(29, 128, device)
    alpha = 1 / (scale_a * scale_b)
    product = sample_kernel.scaled_fp4_mm(a, b, a_scales, b_scales, alpha)
    expected = dequantise(a, a_scales, scale_a) @ dequantise(b, b_scales, scale_b).T
    torch.testing.assert_close(product.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rmsnorm(device: str, dtype: torch.dtype) -> None:
    x = torch.randn(5, 100, generator=torch.Generator().manual_seed(1)).to(device, dtype)
    weight = torch.linspace(0.5, 2, 100).to(device, dtype)
    expected = x.double() * (x.double().square().mean(-1, keepdim=True) + 1e-6).rsqrt() * weight.double()
    tolerance = 2.0**-8 if dtype == torch.bfloat16 else 1e-5
    result = sample_kernel.rmsnorm(x, weight, 1e-6)
    assert result.dtype == dtype
    torch.testing.assert_close(result.double(), expected, rtol=tolerance, atol=tolerance)


def test_nan_reaches_the_scale() -> None:
    dense = torch.ones(1, 16)
    dense[0, 3] = float("nan")
    _, scales = sample_kernel.scaled_fp4_quant(dense, torch.ones(1))
    assert scales.float().isnan().all()


def test_shapes_are_checked() -> None:
    with pytest.raises(RuntimeError, match=r"\[2, 17\]"):
        sample_kernel.scaled_fp4_quant(torch.zeros(2, 17), torch.ones(1))


def test_build_info() -> None:
    assert json.loads(sample_kernel.build_info())["variant"] in ("sm90", "sm100")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_allocation_range() -> None:
    tensor = torch.empty(1000, device="cuda")
    base, size = sample_kernel.allocation_range(tensor)
    assert base <= tensor.data_ptr() and tensor.data_ptr() + 4000 <= base + size
