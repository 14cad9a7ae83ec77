"""Gated activations: y = f(left half) · right half."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from sglwheel.gpucheck import formats
from sglwheel.gpucheck.families import backend
from sglwheel.gpucheck.harness import Context, Judgement, Outputs, Trial, within

SHAPES = ((1, 8), (3, 248), (83, 1024), (129, 4096), (512, 13824))
# tanh.approx.f32 is within 2^-11 of tanh (PTX ISA); float32's erf within 2 units in the last place of 1.
_TANH, _ERF = 2.0**-11, 2.0**-22


def _silu(x: Any) -> Any:
    return x * torch.sigmoid(x)


def _gelu(x: Any) -> Any:
    return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))


def _gelu_tanh(x: Any) -> Any:
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def _trials(context: Context, name: str, function: Callable[[Any], Any], absolute: float) -> Iterator[Trial]:
    """`absolute` is the error of 1 + tanh or 1 + erf, which cancel where x is negative."""
    for rows, columns in context.sized(SHAPES):
        for dtype in (torch.bfloat16, torch.float16):
            x = context.normal(rows, 2 * columns, dtype=dtype, scale=2.0)
            left, right = x.double().chunk(2, -1)
            exact = function(left) * right
            before = exact.abs() * formats.APPROXIMATE + 0.5 * (left * right).abs() * absolute
            bound = formats.stored(exact, dtype, before)

            def run(outputs: Outputs, x: Any = x, columns: int = columns) -> Mapping[str, Any]:
                out = outputs.new(x.shape[0], columns, dtype=x.dtype)
                context.call(name, out=out, input=x)
                return {"out": out}

            def judge(
                found: Mapping[str, Any], exact: Any = exact, bound: Any = bound
            ) -> Iterator[Judgement]:
                yield within("out", found["out"], exact, bound)

            yield Trial(f"{rows}x{columns} {dtype}", run, judge)


@backend("activation", "silu_and_mul")
def silu_and_mul(context: Context) -> Iterator[Trial]:
    return _trials(context, "silu_and_mul", _silu, 0.0)


@backend("activation", "gelu_and_mul")
def gelu_and_mul(context: Context) -> Iterator[Trial]:
    return _trials(context, "gelu_and_mul", _gelu, _ERF)


@backend("activation", "gelu_tanh_and_mul")
def gelu_tanh_and_mul(context: Context) -> Iterator[Trial]:
    return _trials(context, "gelu_tanh_and_mul", _gelu_tanh, 2 * _TANH)
