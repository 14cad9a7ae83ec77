"""Matrix products of a mixture of experts: rows sorted by expert, 8-bit activations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch

from sglwheel.gpucheck import formats
from sglwheel.gpucheck.families import Capability, backend
from sglwheel.gpucheck.harness import Context, Judgement, Outputs, Trial, within

_FP8 = torch.float8_e4m3fn
_BLOCK = 128
# Rows of each expert: one expert, none and few, many experts, more than a tile each.
_COUNTS = ((5,), (2, 0, 3), (1, 0, 7, 128), (3, 200, 0, 17, 64, 1, 0, 33) * 2, (300, 513))
_SIZES = ((256, 128), (256, 256), (512, 1024), (2048, 4096))
_WORKSPACE = 256 << 20


def _offsets(counts: tuple[int, ...], device: Any) -> Any:
    return torch.tensor([0, *counts], device=device).cumsum(0).int()


def _sized(context: Context) -> Iterator[tuple[tuple[int, ...], int, int]]:
    for counts in _COUNTS:
        for n, k in _SIZES:
            # The large size for a few experts only: the reference is computed in float64.
            if len(counts) * n * k <= 1 << 25 and context.sized([(sum(counts), n, k)]):
                yield counts, n, k


def _label(counts: tuple[int, ...], n: int, k: int, dtype: Any) -> str:
    return f"{len(counts)} experts, {sum(counts)} rows, {n}x{k} {dtype}"


def _result(found: Mapping[str, Any], exact: Any, bound: Any) -> Iterator[Judgement]:
    yield within("out", found["out"], exact, bound)


def _products(counts: tuple[int, ...], a: Any, b: Any) -> tuple[Any, Any]:
    """Each expert's rows of A (rows, k) times its B (n, k): exact, and the sums of squared products."""
    parts = [(rows, b[e].t()) for e, rows in enumerate(a.split(counts))]
    exact = torch.cat([rows @ weight for rows, weight in parts])
    return exact, torch.cat([rows.square() @ weight.square() for rows, weight in parts])


def _blockwise(context: Context, name: str, *, prepared: bool) -> Iterator[Trial]:
    """A scale for each 128 values of a row of A and each 128 by 128 block of an expert's B.

    `prepared`: upstream's older kernel takes memory for the pointers and layouts that it works out.
    """
    for counts, n, k in _sized(context):
        for dtype in (torch.bfloat16, torch.float16):
            experts, total, device = len(counts), sum(counts), context.device
            a, b = (context.normal(*shape).clamp(-6, 6).to(_FP8) for shape in ((total, k), (experts, n, k)))
            sa = context.uniform(total, k // _BLOCK, low=0.005, high=0.02)
            sb = context.uniform(experts, n // _BLOCK, k // _BLOCK, low=0.005, high=0.02)
            wide_a = a.double() * sa.double().repeat_interleave(_BLOCK, 1)
            wide_b = b.double() * sb.double().repeat_interleave(_BLOCK, 1).repeat_interleave(_BLOCK, 2)
            exact, squares = _products(counts, wide_a, wide_b)
            bound = formats.blockwise(exact, squares, k, dtype)
            along_k = torch.full((experts,), k, dtype=torch.int64, device=device)
            along_n = torch.full((experts,), n, dtype=torch.int64, device=device)
            values: dict[str, Any] = {
                "a": a,
                "b": b.transpose(1, 2),
                "scales_a": sa,
                "scales_b": sb.transpose(1, 2),
                "stride_a": along_k,
                "stride_b": along_k,
                "stride_c" if prepared else "stride_d": along_n,
                "problem_sizes": torch.tensor([[m, n, k] for m in counts], dtype=torch.int32, device=device),
                "expert_offsets": _offsets(counts, device)[:-1].contiguous(),
            }

            def run(
                outputs: Outputs, values: Mapping[str, Any] = values, n: int = n, dtype: Any = dtype
            ) -> Mapping[str, Any]:
                device, experts = values["a"].device, len(values["expert_offsets"])
                out = outputs.new(values["a"].shape[0], n, dtype=dtype)
                more = {"workspace": torch.empty(_WORKSPACE, dtype=torch.uint8, device=device)}
                if prepared:
                    for what in ("a", "b", "out", "a_scales", "b_scales"):
                        more[f"{what}_ptrs"] = torch.empty(experts, dtype=torch.int64, device=device)
                    for what in ("layout_sfa", "layout_sfb"):
                        more[what] = torch.zeros(experts, 5, dtype=torch.int32, device=device)
                context.call(name, output=out, **values, **more)
                return {"out": out}

            yield Trial(_label(counts, n, k, dtype), run, partial(_result, exact=exact, bound=bound))


def _hopper_or_datacentre(capability: Capability) -> bool:
    return capability in ((9, 0), (10, 0), (10, 3))


def _hopper(capability: Capability) -> bool:
    return capability == (9, 0)


@backend("FP8 grouped", "fp8_blockwise_scaled_grouped_mm", runs_on=_hopper_or_datacentre)
def fp8_blockwise_scaled_grouped_mm(context: Context) -> Iterator[Trial]:
    return _blockwise(context, "fp8_blockwise_scaled_grouped_mm", prepared=True)


@backend("FP8 grouped", "es_fp8_blockwise_scaled_grouped_mm", runs_on=_hopper)
def es_fp8_blockwise_scaled_grouped_mm(context: Context) -> Iterator[Trial]:
    return _blockwise(context, "es_fp8_blockwise_scaled_grouped_mm", prepared=False)


def _interleaved(scales: Any) -> Any:
    """(experts, n, groups) as the kernel loads them: up to four groups of a column beside each other."""
    experts, n, groups = scales.shape
    together = 4 if groups % 4 == 0 else 1
    tiles = scales.view(experts, n, groups // together, together).transpose(1, 2)
    return tiles.reshape(experts, -1, n * together).contiguous()


@backend("W4A8 grouped", "cutlass_w4a8_moe_mm", runs_on=_hopper)
def cutlass_w4a8_moe_mm(context: Context) -> Iterator[Trial]:
    """4-bit integers with a bfloat16 scale for each 128 along k, times FP8 with one scale in all.

    Integers up to 8 are exact in FP8, which is what they are multiplied as; scales enter after each 128.
    """
    for counts, n, k in _sized(context):
        if k % 256:
            continue
        experts, device = len(counts), context.device
        a = context.normal(sum(counts), k).clamp(-6, 6).to(_FP8)
        codes = context.integers(experts, n, k, low=-8, high=8, dtype=torch.int8)
        scales = context.normal(experts, n, k // _BLOCK, dtype=torch.bfloat16, scale=0.005)
        scale = context.uniform(1, low=0.005, high=0.02)
        wide_b = codes.double() * scales.double().repeat_interleave(_BLOCK, 2)
        exact, squares = _products(counts, a.double() * scale.double(), wide_b)
        bound = formats.blockwise(exact, squares, k, torch.bfloat16)
        along_k = torch.full((experts, 3), k, dtype=torch.int64, device=device)
        along_n = torch.full((experts, 3), n, dtype=torch.int64, device=device)
        values: dict[str, Any] = {
            "a": a,
            # Two to a byte, the first in the lower half.
            "b": (codes[..., 1::2] << 4) | (codes[..., ::2] & 0xF),
            "a_scales": scale,
            "b_scales": _interleaved(scales),
            "expert_offsets": _offsets(counts, device)[:-1].contiguous(),
            "problem_sizes": torch.tensor([[n, m, k] for m in counts], dtype=torch.int32, device=device),
            "a_strides": along_k,
            "b_strides": along_k,
            "d_strides": along_n,
            "s_strides": along_n,
            "chunk_size": _BLOCK,
            "topk": 8,
        }

        def run(outputs: Outputs, values: Mapping[str, Any] = values, n: int = n) -> Mapping[str, Any]:
            out = outputs.new(values["a"].shape[0], n, dtype=torch.bfloat16)
            context.call("cutlass_w4a8_moe_mm", d=out, **values)
            return {"out": out}

        yield Trial(_label(counts, n, k, torch.bfloat16), run, partial(_result, exact=exact, bound=bound))
