"""BF16 products of fixed sizes for up to 16 tokens (DeepSeek V3, Kimi K2), and 4-bit weights made wide."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch

from sglwheel.gpucheck import formats
from sglwheel.gpucheck.families import at_least, backend
from sglwheel.gpucheck.harness import Context, Judgement, Outputs, Trial, within

_HIDDEN = 7168
_TOKENS = (1, 3, 8, 16)


def _result(found: Mapping[str, Any], exact: Any, bound: Any) -> Iterator[Judgement]:
    yield within("out", found["out"], exact, bound)


def _product(context: Context, name: str, tokens: int, n: int, dtype: Any, *, columns: bool) -> Trial:
    """A (tokens, 7168) times B, which upstream gives as (n, 7168) or as a view of its `columns`."""
    a, b = (context.normal(rows, _HIDDEN, dtype=torch.bfloat16) for rows in (tokens, n))
    exact = a.double() @ b.double().t()
    squares = a.double().square() @ b.double().square().t()
    before = formats.accumulated(squares, _HIDDEN, bits=formats.BF16_BITS)

    def run(outputs: Outputs) -> Mapping[str, Any]:
        out = outputs.new(tokens, n, dtype=dtype)
        context.call(name, output=out, mat_a=a, mat_b=b.t() if columns else b)
        return {"out": out}

    judge = partial(_result, exact=exact, bound=formats.stored(exact, dtype, before))
    return Trial(f"{tokens}x{n}x{_HIDDEN} {dtype}", run, judge)


@backend("BF16 matmul", "dsv3_router_gemm", runs_on=at_least(9))
def dsv3_router_gemm(context: Context) -> Iterator[Trial]:
    for tokens in _TOKENS:
        for experts in (256, 384):
            for dtype in (torch.bfloat16, torch.float32):
                yield _product(context, "dsv3_router_gemm", tokens, experts, dtype, columns=False)


@backend("BF16 matmul", "dsv3_fused_a_gemm", runs_on=at_least(9))
def dsv3_fused_a_gemm(context: Context) -> Iterator[Trial]:
    for tokens in _TOKENS:
        yield _product(context, "dsv3_fused_a_gemm", tokens, 2112, torch.bfloat16, columns=True)


# Where AWQ keeps the eight 4-bit numbers of a word.
_AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)


def _nibbles(packed: Any) -> Any:
    """(rows, words) of AWQ's 32-bit words as (rows, 8 words) of numbers from 0 to 15."""
    shifts = torch.tensor(_AWQ_ORDER, device=packed.device, dtype=torch.int32) * 4
    return ((packed[..., None] >> shifts) & 0xF).flatten(-2)


@backend("4-bit dequantise", "awq_dequantize")
def awq_dequantize(context: Context) -> Iterator[Trial]:
    """(w - z) s: integers, one product; upstream may round w s and z s apart, so two roundings."""
    for k, n, group in ((128, 128, 128), (384, 256, 64), (3584, 4608, 128)):
        if not context.sized([(k, n)]):
            continue
        for dtype in (torch.float16, torch.bfloat16):
            words, zeros = (
                context.integers(rows, n // 8, low=-(2**31), high=2**31 - 1, dtype=torch.int32)
                for rows in (k, k // group)
            )
            scales = context.uniform(k // group, n, low=0.001, high=0.01, dtype=dtype)
            w = _nibbles(words).double()
            z, s = (each.double().repeat_interleave(group, 0) for each in (_nibbles(zeros), scales))
            exact = (w - z) * s
            bound = formats.stored(exact, dtype, formats.UNIT[dtype] * (w + z) * s)

            def run(
                outputs: Outputs, words: Any = words, scales: Any = scales, zeros: Any = zeros
            ) -> Mapping[str, Any]:
                outputs.dirty(words.numel() * 16)
                return {"out": context.call("awq_dequantize", qweight=words, scales=scales, qzeros=zeros)}

            yield Trial(
                f"{k}x{n}, groups of {group}, {dtype}", run, partial(_result, exact=exact, bound=bound)
            )
