"""NVFP4: quantising a tensor, and the scaled product of two quantised ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from sglwheel.gpucheck import formats, nvfp4
from sglwheel.gpucheck import nvfp4_tensors as tensors
from sglwheel.gpucheck.families import at_least, backend
from sglwheel.gpucheck.harness import Context, Judgement, Outputs, Trial, between, within

# Padding rows of the scales hold NaN: no result may come from them.
_NAN = 0x7F
_QUANTIZED = ((1, 64), (3, 80), (128, 64), (150, 1024), (333, 4096), (1024, 7168))
_MULTIPLIED = (
    (1, 32, 64),
    (3, 96, 96),
    (128, 128, 128),
    (150, 256, 512),
    (333, 1024, 2048),
    (2048, 4096, 4096),
)


def quantized(
    prefix: str, x: Any, packed: Any, scales: Any, global_scale: float, tolerance: float
) -> Iterator[Judgement]:
    """Judge FP4 codes (rows, n / 2) and their scale bytes (rows, n / 16) against the values x.

    A scale may be what rounding gives for a value within `tolerance`; the codes are then judged by the scale
    that was really stored, so that one scale on the other side of a tie does not count sixteen times.
    """
    wide = x.double()
    blocks = wide.unflatten(-1, (-1, nvfp4.BLOCK))
    wanted = global_scale * blocks.abs().amax(-1) / nvfp4.E2M1_MAX
    got = tensors.scale_values(scales)
    low, high = (tensors.e4m3_round(wanted * (1 + side * tolerance)) for side in (-1, 1))
    yield between("block scale", got, low, high)
    factor = torch.where(got > 0, global_scale / got, torch.zeros_like(got))
    exact = (blocks * factor[..., None]).flatten(-2)
    slack = exact.abs() * tolerance
    yield between(
        "FP4 value",
        tensors.unpack(packed),
        tensors.e2m1_round(exact - slack),
        tensors.e2m1_round(exact + slack),
    )


def global_scale(x: Any) -> Any:
    """What upstream's callers use: the largest magnitude becomes the largest scale times the largest code."""
    return (nvfp4.E4M3_MAX * nvfp4.E2M1_MAX / x.abs().max()).float().reshape(1)


@backend("FP4 quantise", "scaled_fp4_quant", runs_on=at_least(10))
def scaled_fp4_quant(context: Context) -> Iterator[Trial]:
    for rows, columns in context.sized(_QUANTIZED):
        for dtype in (torch.bfloat16, torch.float16):
            x = context.normal(rows, columns, dtype=dtype)
            x[0, :16] = 0  # a block of zeros has scale 0 and must not become NaN
            if rows > 1:
                x[-1, -16:] *= 1e-3  # a block far below the tensor's maximum
            g = global_scale(x)
            scales = columns // nvfp4.BLOCK

            def run(outputs: Outputs, x: Any = x, g: Any = g, scales: int = scales) -> Mapping[str, Any]:
                rows, columns = x.shape
                padded_rows, padded_scales = nvfp4.padded(rows, scales)
                out = outputs.new(rows, columns // 2, dtype=torch.uint8)
                # Upstream's caller zeroes it where a row of scales is not whole.
                fill = 0 if padded_scales != scales else None
                stored = outputs.new(
                    padded_rows, padded_scales // 4, dtype=torch.int32, name="scales", fill=fill
                )
                context.call("scaled_fp4_quant", output=out, input=x, output_scale=stored, input_scale=g)
                codes = tensors.unswizzle(stored.view(torch.uint8), rows, scales)
                return {"packed": out, "scales": codes}

            def judge(found: Mapping[str, Any], x: Any = x, g: Any = g) -> Iterator[Judgement]:
                tolerance = formats.fp4_tolerance()
                yield from quantized("", x, found["packed"], found["scales"], float(g), tolerance)

            yield Trial(f"{rows}x{columns} {dtype}", run, judge)


@backend("FP4 matmul", "cutlass_scaled_fp4_mm", runs_on=at_least(10))
def cutlass_scaled_fp4_mm(context: Context) -> Iterator[Trial]:
    """Random codes and scales, so that the product is judged apart from the quantising."""
    for m, n, k in context.sized(_MULTIPLIED):
        for dtype in (torch.bfloat16, torch.float16):
            (a, sa), (b, sb) = (tensors.random(rows, k, context.generator, context.device) for rows in (m, n))
            alpha = context.uniform(1, low=0.01, high=0.02)
            wide_a, wide_b = tensors.dequantize(a, sa, 1.0), tensors.dequantize(b, sb, 1.0)
            exact = wide_a @ wide_b.t() * alpha.double()
            squares = wide_a.square() @ wide_b.square().t()
            bound = formats.scaled(exact, formats.accumulated(squares, k) * alpha.double(), dtype)

            def run(
                outputs: Outputs,
                a: Any = a,
                b: Any = b,
                sa: Any = sa,
                sb: Any = sb,
                alpha: Any = alpha,
                dtype: Any = dtype,
            ) -> Mapping[str, Any]:
                out = outputs.new(a.shape[0], b.shape[0], dtype=dtype)
                context.call(
                    "cutlass_scaled_fp4_mm",
                    out=out,
                    a=a,
                    b=b,
                    block_scale_a=tensors.swizzle(sa, _NAN).view(torch.float8_e4m3fn),
                    block_scale_b=tensors.swizzle(sb, _NAN).view(torch.float8_e4m3fn),
                    alpha=alpha,
                )
                return {"out": out}

            def judge(
                found: Mapping[str, Any], exact: Any = exact, bound: Any = bound
            ) -> Iterator[Judgement]:
                yield within("out", found["out"], exact, bound)

            yield Trial(f"{m}x{n}x{k} {dtype}", run, judge)


@backend(
    "FP4 matmul",
    "quantise, then multiply",
    operators=("scaled_fp4_quant", "cutlass_scaled_fp4_mm"),
    runs_on=at_least(10),
)
def quantize_then_multiply(context: Context) -> Iterator[Trial]:
    """Both kernels, as a linear layer uses them: they must agree on the scales' layout."""
    for m, n, k in context.sized(((1, 128, 128), (150, 256, 1024), (512, 2048, 4096))):
        x, w = (context.normal(rows, k, dtype=torch.bfloat16) for rows in (m, n))
        gx, gw = global_scale(x), global_scale(w)

        def quantize(outputs: Outputs, values: Any, g: Any, name: str) -> tuple[Any, Any]:
            rows, columns = values.shape
            padded_rows, padded_scales = nvfp4.padded(rows, columns // 16)
            packed = outputs.new(rows, columns // 2, dtype=torch.uint8, name=f"{name} codes")
            stored = outputs.new(padded_rows, padded_scales // 4, dtype=torch.int32, name=f"{name} scales")
            context.call("scaled_fp4_quant", output=packed, input=values, output_scale=stored, input_scale=g)
            return packed, stored.view(torch.float8_e4m3fn)

        def run(outputs: Outputs, x: Any = x, w: Any = w, gx: Any = gx, gw: Any = gw) -> Mapping[str, Any]:
            (a, sa), (b, sb) = quantize(outputs, x, gx, "x"), quantize(outputs, w, gw, "w")
            out = outputs.new(x.shape[0], w.shape[0], dtype=torch.bfloat16)
            context.call(
                "cutlass_scaled_fp4_mm",
                out=out,
                a=a,
                b=b,
                block_scale_a=sa,
                block_scale_b=sb,
                alpha=1 / (gx * gw),
            )
            seen = [
                tensors.unswizzle(s.view(torch.uint8), v.shape[0], v.shape[1] // 16)
                for s, v in ((sa, x), (sb, w))
            ]
            return {"out": out, "a": a, "b": b, "sa": seen[0], "sb": seen[1]}

        def judge(found: Mapping[str, Any], gx: Any = gx, gw: Any = gw, k: int = k) -> Iterator[Judgement]:
            wide_a = tensors.dequantize(found["a"], found["sa"], gx.double())
            wide_b = tensors.dequantize(found["b"], found["sb"], gw.double())
            exact = wide_a @ wide_b.t()
            before = formats.accumulated(wide_a.square() @ wide_b.square().t(), k)
            # alpha is one float32 quotient of a float32 product.
            yield within(
                "out",
                found["out"],
                exact,
                formats.scaled(exact, before, torch.bfloat16) + exact.abs() * 4 * formats.U32,
            )

        yield Trial(f"{m}x{n}x{k}", run, judge)
