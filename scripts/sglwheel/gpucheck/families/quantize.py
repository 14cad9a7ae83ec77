"""Quantising to 8 bits: a scale from the largest magnitude, and every value rounded to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from sglwheel.gpucheck.families import at_least, backend
from sglwheel.gpucheck.harness import Context, Judgement, Outputs, Trial, between, within

E4M3_MAX = 448.0
_FP8 = torch.float8_e4m3fn
_SHAPES = ((1, 256), (3, 1408), (127, 2048), (512, 7168))
# A scale is a maximum (exact) divided once; a value is multiplied once or divided once.
_TOLERANCE = 2.0**-21


def _rounded(values: Any, dtype: Any) -> Any:
    if dtype == torch.int8:
        return values.round().clamp(-128, 127)
    return values.clamp(-E4M3_MAX, E4M3_MAX).to(dtype).double()


def _values(name: str, found: Any, exact: Any, dtype: Any) -> Judgement:
    """Codes that rounding gives for a value, or for one that is off by float32's own errors."""
    slack = exact.abs() * _TOLERANCE
    return between(name, found.double(), _rounded(exact - slack, dtype), _rounded(exact + slack, dtype))


def _scales(name: str, found: Any, exact: Any) -> Judgement:
    return within(name, found, exact, exact.abs() * _TOLERANCE + 2.0**-126)


@backend("FP8 quantise", "sgl_per_tensor_quant_fp8", runs_on=at_least(8, 9))
def per_tensor(context: Context) -> Iterator[Trial]:
    for rows, columns in context.sized(_SHAPES):
        for dtype in (torch.bfloat16, torch.float16):
            x = context.normal(rows, columns, dtype=dtype)

            def run(outputs: Outputs, x: Any = x) -> Mapping[str, Any]:
                q = outputs.new(*x.shape, dtype=_FP8, name="q")
                # The kernel keeps a maximum in it: upstream's callers start at zero.
                s = outputs.new(1, dtype=torch.float32, name="scale", fill=0.0)
                context.call("sgl_per_tensor_quant_fp8", input=x, output_q=q, output_s=s, is_static=False)
                return {"q": q, "scale": s}

            def judge(found: Mapping[str, Any], x: Any = x) -> Iterator[Judgement]:
                yield _scales("scale", found["scale"], x.double().abs().max()[None] / E4M3_MAX)
                yield _values("q", found["q"], x.double() / found["scale"].double(), _FP8)

            yield Trial(f"{rows}x{columns} {dtype}", run, judge)


@backend("FP8 quantise", "sgl_per_token_quant_fp8", runs_on=at_least(8, 9))
def per_token(context: Context) -> Iterator[Trial]:
    for rows, columns in context.sized(_SHAPES):
        for dtype in (torch.bfloat16, torch.float16):
            x = context.normal(rows, columns, dtype=dtype)

            def run(outputs: Outputs, x: Any = x) -> Mapping[str, Any]:
                q = outputs.new(*x.shape, dtype=_FP8, name="q")
                s = outputs.new(x.shape[0], 1, dtype=torch.float32, name="scale")
                context.call("sgl_per_token_quant_fp8", input=x, output_q=q, output_s=s)
                return {"q": q, "scale": s}

            def judge(found: Mapping[str, Any], x: Any = x) -> Iterator[Judgement]:
                yield _scales("scale", found["scale"], x.double().abs().amax(-1, keepdim=True) / E4M3_MAX)
                yield _values("q", found["q"], x.double() / found["scale"].double(), _FP8)

            yield Trial(f"{rows}x{columns} {dtype}", run, judge)


def _grouped(context: Context, name: str, **more: Any) -> Iterator[Trial]:
    eps = 1e-10
    for rows, columns in context.sized(_SHAPES):
        for dtype, most in ((_FP8, E4M3_MAX), (torch.int8, 127.0)):
            x = context.normal(rows, columns, dtype=torch.bfloat16)
            groups = x.double().unflatten(-1, (-1, 128))

            def run(
                outputs: Outputs, x: Any = x, dtype: Any = dtype, most: float = most
            ) -> Mapping[str, Any]:
                q = outputs.new(*x.shape, dtype=dtype, name="q")
                s = outputs.new(x.shape[0], x.shape[1] // 128, dtype=torch.float32, name="scale")
                low = -most if dtype == _FP8 else -128.0
                context.call(
                    name,
                    input=x,
                    output_q=q,
                    output_s=s,
                    group_size=128,
                    eps=eps,
                    fp8_min=low,
                    fp8_max=most,
                    scale_ue8m0=False,
                    **more,
                )
                return {"q": q, "scale": s}

            def judge(
                found: Mapping[str, Any], groups: Any = groups, dtype: Any = dtype, most: float = most
            ) -> Iterator[Judgement]:
                yield _scales("scale", found["scale"], groups.abs().amax(-1).clamp(min=eps) / most)
                exact = (groups / found["scale"].double()[..., None]).flatten(-2)
                if dtype == torch.int8:
                    # Upstream truncates in one version and rounds in the other: a step at most.
                    yield between("q", found["q"], (exact - 1e-4).floor(), (exact + 1e-4).ceil())
                else:
                    yield _values("q", found["q"], exact, dtype)

            yield Trial(f"{rows}x{columns} {dtype}", run, judge)


@backend("FP8 quantise", "sgl_per_token_group_quant_8bit", runs_on=at_least(8, 9))
def per_group(context: Context) -> Iterator[Trial]:
    return _grouped(context, "sgl_per_token_group_quant_8bit")


@backend("FP8 quantise", "sgl_per_token_group_quant_8bit_v2", runs_on=at_least(9))
def per_group_v2(context: Context) -> Iterator[Trial]:
    return _grouped(context, "sgl_per_token_group_quant_8bit_v2", fuse_silu_and_mul=False, masked_m=None)
