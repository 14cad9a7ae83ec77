"""RMSNorm and its fused forms: y = x / sqrt(mean(x²) + eps) · w."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from sglwheel.gpucheck import formats
from sglwheel.gpucheck.families import backend
from sglwheel.gpucheck.harness import Context, Judgement, Outputs, Trial, within

SHAPES = ((1, 128), (3, 1000), (7, 512), (33, 4096), (129, 5120), (1024, 8192))
EPS = 1e-6
DTYPES = (torch.bfloat16, torch.float16)


def _exact(x: Any, weight: Any, offset: float) -> Any:
    wide = x.double()
    return wide * (wide.square().mean(-1, keepdim=True) + EPS).rsqrt() * (weight.double() + offset)


def _plain(context: Context, name: str, offset: float) -> Iterator[Trial]:
    for rows, columns in context.sized(SHAPES):
        for dtype in DTYPES:
            x = context.normal(rows, columns, dtype=dtype)
            weight = context.uniform(columns, low=0.5, high=1.5, dtype=dtype)
            exact = _exact(x, weight, offset)

            def run(outputs: Outputs, x: Any = x, weight: Any = weight) -> Mapping[str, Any]:
                out = outputs.new(*x.shape, dtype=x.dtype)
                context.call(name, output=out, input=x, weight=weight, eps=EPS, enable_pdl=False)
                return {"out": out}

            def judge(
                found: Mapping[str, Any], exact: Any = exact, dtype: Any = dtype
            ) -> Iterator[Judgement]:
                yield within("out", found["out"], exact, formats.normalised(exact, exact.shape[-1], dtype))

            yield Trial(f"{rows}x{columns} {dtype}", run, judge)


def _added(context: Context, name: str, offset: float) -> Iterator[Trial]:
    for rows, columns in context.sized(SHAPES):
        for dtype in DTYPES:
            x = context.normal(rows, columns, dtype=dtype)
            residual = context.normal(rows, columns, dtype=dtype)
            weight = context.uniform(columns, low=0.5, high=1.5, dtype=dtype)
            total = x.double() + residual.double()
            exact = _exact(total, weight, offset)

            def run(
                outputs: Outputs, x: Any = x, residual: Any = residual, weight: Any = weight
            ) -> Mapping[str, Any]:
                out, kept = outputs.copy(x), outputs.copy(residual, "residual")
                context.call(name, input=out, residual=kept, weight=weight, eps=EPS, enable_pdl=False)
                return {"out": out, "residual": kept}

            def judge(
                found: Mapping[str, Any], exact: Any = exact, total: Any = total, dtype: Any = dtype
            ) -> Iterator[Judgement]:
                yield within("residual", found["residual"], total, formats.stored(total, dtype))
                bound = formats.normalised(exact, exact.shape[-1], dtype, sum_unit=formats.UNIT[dtype])
                yield within("out", found["out"], exact, bound)

            yield Trial(f"{rows}x{columns} {dtype}", run, judge)


@backend("RMSNorm", "rmsnorm")
def rmsnorm(context: Context) -> Iterator[Trial]:
    return _plain(context, "rmsnorm", 0.0)


@backend("RMSNorm", "gemma_rmsnorm")
def gemma_rmsnorm(context: Context) -> Iterator[Trial]:
    return _plain(context, "gemma_rmsnorm", 1.0)


@backend("RMSNorm", "fused_add_rmsnorm")
def fused_add_rmsnorm(context: Context) -> Iterator[Trial]:
    return _added(context, "fused_add_rmsnorm", 0.0)


@backend("RMSNorm", "gemma_fused_add_rmsnorm")
def gemma_fused_add_rmsnorm(context: Context) -> Iterator[Trial]:
    return _added(context, "gemma_fused_add_rmsnorm", 1.0)
