"""8-bit matrix products with scales; results have the format of the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from sglwheel.gpucheck import formats
from sglwheel.gpucheck.families import at_least, backend
from sglwheel.gpucheck.harness import Context, Judgement, Outputs, Trial, within

_FP8 = torch.float8_e4m3fn
# (m, n, k): one token, odd counts, tall and wide, large.
_SHAPES = (
    (1, 128, 128),
    (1, 4096, 512),
    (13, 1024, 2048),
    (64, 512, 7168),
    (333, 1536, 1024),
    (2048, 4096, 4096),
)

_BLOCKWISE = ((1, 128, 256), (4, 512, 512), (64, 512, 7168), (332, 1536, 1024), (2048, 4096, 4096))
_BATCHED = ((1, 16, 16, 64), (3, 48, 80, 64), (16, 112, 256, 512), (2, 1024, 1024, 2048))


def _fp8(context: Context, *shape: int) -> Any:
    return context.normal(*shape).clamp(-6, 6).to(_FP8)


def _result(found: Mapping[str, Any], exact: Any, bound: Any) -> Iterator[Judgement]:
    yield within("out", found["out"], exact, bound)


@dataclass(frozen=True)
class _Operands:
    """A (m, k), B (n, k), a scale for each of their rows, and the bound of accumulating before scaling."""

    a: Any
    b: Any
    sa: Any
    sb: Any
    accumulated: Any


def _scaled(context: Context, name: str, operands: Callable[[int, int, int], _Operands]) -> Iterator[Trial]:
    """One scale for each row of A and each column of B, with and without a bias."""
    for m, n, k in context.sized(_SHAPES):
        for dtype in (torch.bfloat16, torch.float16):
            given = operands(m, n, k)
            bias = context.normal(n, dtype=dtype) if dtype == torch.bfloat16 else None
            scale = given.sa.double() * given.sb.double().t()
            product = given.a.double() @ given.b.double().t() * scale
            wide_bias = None if bias is None else bias.double()
            bound = formats.scaled(product, given.accumulated * scale, dtype, wide_bias)
            exact = product if wide_bias is None else product + wide_bias

            def run(
                outputs: Outputs, given: _Operands = given, bias: Any = bias, dtype: Any = dtype
            ) -> Mapping[str, Any]:
                outputs.dirty(given.a.shape[0] * given.b.shape[0] * 2)
                out = context.call(
                    name,
                    mat_a=given.a,
                    mat_b=given.b.t(),
                    scales_a=given.sa,
                    scales_b=given.sb,
                    out_dtype=dtype,
                    bias=bias,
                )
                return {"out": out}

            yield Trial(
                f"{m}x{n}x{k} {dtype}{' bias' if bias is not None else ''}",
                run,
                partial(_result, exact=exact, bound=bound),
            )


@backend("FP8 matmul", "fp8_scaled_mm", runs_on=at_least(8, 9))
def fp8_scaled_mm(context: Context) -> Iterator[Trial]:
    def operands(m: int, n: int, k: int) -> _Operands:
        a, b = _fp8(context, m, k), _fp8(context, n, k)
        sa, sb = (context.uniform(count, 1, low=0.005, high=0.02) for count in (m, n))
        squares = a.double().square() @ b.double().square().t()
        return _Operands(a, b, sa, sb, formats.accumulated(squares, k))

    return _scaled(context, "fp8_scaled_mm", operands)


@backend("INT8 matmul", "int8_scaled_mm", runs_on=lambda capability: (7, 5) <= capability < (10, 0))
def int8_scaled_mm(context: Context) -> Iterator[Trial]:
    """Integers accumulate exactly; a sum beyond 2^24 is rounded once when it becomes a float32."""

    def operands(m: int, n: int, k: int) -> _Operands:
        a, b = (context.integers(rows, k, low=-127, high=128, dtype=torch.int8) for rows in (m, n))
        sa, sb = (context.uniform(count, 1, low=0.0005, high=0.002) for count in (m, n))
        return _Operands(a, b, sa, sb, torch.zeros(m, n, dtype=torch.float64, device=a.device))

    return _scaled(context, "int8_scaled_mm", operands)


@backend(
    "FP8 matmul",
    "fp8_blockwise_scaled_mm",
    runs_on=lambda capability: capability in ((9, 0), (10, 0), (10, 3), (12, 0), (12, 1)),
)
def fp8_blockwise_scaled_mm(context: Context) -> Iterator[Trial]:
    """A scale for each 128 values of a row of A and each 128 by 128 block of B, both column-major.

    Where k > 3n upstream's SM90 path splits k among blocks and adds their parts as they come
    (`ReductionMode::Nondeterministic`).
    """
    for m, n, k in context.sized(_BLOCKWISE):
        for dtype in (torch.bfloat16, torch.float16):
            a, b = _fp8(context, m, k), _fp8(context, n, k)
            sa = context.uniform(k // 128, m, low=0.005, high=0.02).t()
            sb = context.uniform(n // 128, k // 128, low=0.005, high=0.02).t()
            wide_a = a.double() * sa.double().repeat_interleave(128, 1)
            wide_b = b.double().t() * sb.double().repeat_interleave(128, 0).repeat_interleave(128, 1)
            exact = wide_a @ wide_b
            bound = formats.blockwise(exact, wide_a.square() @ wide_b.square(), k, dtype)

            def run(
                outputs: Outputs, a: Any = a, b: Any = b, sa: Any = sa, sb: Any = sb, dtype: Any = dtype
            ) -> Mapping[str, Any]:
                outputs.dirty(a.shape[0] * b.shape[0] * 2)
                out = context.call(
                    "fp8_blockwise_scaled_mm", mat_a=a, mat_b=b.t(), scales_a=sa, scales_b=sb, out_dtype=dtype
                )
                return {"out": out}

            yield Trial(
                f"{m}x{n}x{k} {dtype}",
                run,
                partial(_result, exact=exact, bound=bound),
                repeatable=context.capability != (9, 0) or k <= 3 * n,
            )


@backend("FP8 matmul", "bmm_fp8", runs_on=at_least(8, 9))
def bmm_fp8(context: Context) -> Iterator[Trial]:
    """Batches through cuBLASLt, one scale for each operand."""
    for batch, m, n, k in context.sized(_BATCHED):
        a, b = _fp8(context, batch, m, k), _fp8(context, batch, n, k).transpose(1, 2)
        sa, sb = context.uniform(1, low=0.005, high=0.02), context.uniform(1, low=0.005, high=0.02)
        scale = float(sa.double() * sb.double())
        product = a.double() @ b.double() * scale
        before = formats.accumulated(a.double().square() @ b.double().square(), k) * scale
        bound = formats.scaled(product, before, torch.bfloat16)

        def run(outputs: Outputs, a: Any = a, b: Any = b, sa: Any = sa, sb: Any = sb) -> Mapping[str, Any]:
            out = outputs.new(*a.shape[:2], b.shape[2], dtype=torch.bfloat16)
            workspace = torch.empty(32 << 20, dtype=torch.uint8, device=context.device)
            handle = torch.cuda.current_blas_handle() if a.is_cuda else 0
            context.call(
                "bmm_fp8",
                A=a,
                B=b,
                D=out,
                A_scale=sa,
                B_scale=sb,
                workspace_buffer=workspace,
                cublas_handle=handle,
            )
            return {"out": out}

        yield Trial(
            f"{batch}x{m}x{n}x{k}",
            run,
            partial(_result, exact=product, bound=bound),
        )
