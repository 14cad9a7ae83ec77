"""NVFP4 for mixtures of experts: rows sorted by expert, every expert with its own scales."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from sglwheel.gpucheck import formats, nvfp4
from sglwheel.gpucheck import nvfp4_tensors as tensors
from sglwheel.gpucheck.families import Capability, at_least, backend
from sglwheel.gpucheck.families.fp4_matmul import quantized
from sglwheel.gpucheck.harness import Context, Judgement, Outputs, Trial, within

# Rows of each expert: none, one, a few, more than a tile.
_COUNTS = ((5,), (1, 0, 7, 128), (3, 200, 0, 17, 64, 1, 0, 33) * 2)


def _offsets(counts: tuple[int, ...], device: Any) -> tuple[Any, Any]:
    """First row of each expert, and first row of its scales, which are padded to whole tiles."""
    rows = torch.tensor([0, *counts], device=device).cumsum(0).int()
    tiles = [-(-count // nvfp4.ROWS) * nvfp4.ROWS for count in counts]
    return rows, torch.tensor([0, *tiles], device=device).cumsum(0).int()


def _label(counts: tuple[int, ...], *sizes: Any) -> str:
    return f"{len(counts)} experts, {sum(counts)} rows, " + "x".join(map(str, sizes))


@backend("FP4 grouped", "scaled_fp4_experts_quant", runs_on=at_least(10))
def experts_quant(context: Context) -> Iterator[Trial]:
    for counts in _COUNTS:
        for k in (64, 1024):
            x = context.normal(sum(counts), k, dtype=torch.bfloat16)
            g = context.uniform(len(counts), low=200.0, high=500.0)
            rows, scale_rows = _offsets(counts, context.device)

            def run(
                outputs: Outputs, x: Any = x, g: Any = g, rows: Any = rows, scale_rows: Any = scale_rows
            ) -> Mapping[str, Any]:
                out = outputs.new(x.shape[0], x.shape[1] // 2, dtype=torch.uint8)
                stored = outputs.new(int(scale_rows[-1]), x.shape[1] // 64, dtype=torch.int32, name="scales")
                context.call(
                    "scaled_fp4_experts_quant",
                    output=out,
                    output_scale=stored,
                    input=x,
                    input_global_scale=g,
                    input_offset_by_experts=rows,
                    output_scale_offset_by_experts=scale_rows,
                )
                found = [
                    tensors.unswizzle(
                        stored[scale_rows[e] : scale_rows[e + 1]].view(torch.uint8),
                        int(rows[e + 1] - rows[e]),
                        x.shape[1] // 16,
                    )
                    for e in range(len(g))
                ]
                return {"packed": out, "scales": torch.cat(found)}

            def judge(
                found: Mapping[str, Any], x: Any = x, g: Any = g, rows: Any = rows
            ) -> Iterator[Judgement]:
                for e in range(len(g)):
                    own = slice(int(rows[e]), int(rows[e + 1]))
                    if own.start < own.stop:
                        yield from quantized(
                            "",
                            x[own],
                            found["packed"][own],
                            found["scales"][own],
                            float(g[e]),
                            formats.fp4_tolerance(),
                        )

            yield Trial(_label(counts, k), run, judge)


def _masked(context: Context, gated: bool) -> Iterator[Trial]:
    """(experts, rows, k) where only the first rows of each expert count."""
    for experts, rows, k in ((1, 16, 64), (4, 128, 256), (6, 200, 1024)):
        x = context.normal(experts, rows, k * (2 if gated else 1), dtype=torch.bfloat16)
        g = context.uniform(experts, low=200.0, high=500.0)
        mask = context.integers(experts, low=0, high=rows + 1)
        mask[0] = rows
        padded_rows, padded_scales = nvfp4.padded(rows, k // 16)

        def run(
            outputs: Outputs,
            x: Any = x,
            g: Any = g,
            mask: Any = mask,
            k: int = k,
            padding: tuple[int, int] = (padded_rows, padded_scales),
        ) -> Mapping[str, Any]:
            experts, rows = x.shape[:2]
            out = outputs.new(experts * rows, k // 2, dtype=torch.uint8)
            stored = outputs.new(experts * padding[0], padding[1] // 4, dtype=torch.int32, name="scales")
            context.call(
                "silu_and_mul_scaled_fp4_experts_quant",
                output=out,
                output_scale=stored,
                input=x.view(experts * rows, -1),
                input_global_scale=g,
                mask=mask,
                use_silu_and_mul=gated,
            )
            each = stored.view(experts, padding[0], -1).view(torch.uint8)
            kept = [slice(int(mask[e])) for e in range(experts)]
            scales = [tensors.unswizzle(each[e].contiguous(), rows, k // 16)[kept[e]] for e in range(experts)]
            codes = [out.view(experts, rows, -1)[e, kept[e]] for e in range(experts)]
            return {"packed": torch.cat(codes), "scales": torch.cat(scales)}

        def judge(found: Mapping[str, Any], x: Any = x, g: Any = g, mask: Any = mask) -> Iterator[Judgement]:
            first = 0
            for e in range(len(g)):
                count = int(mask[e])
                if not count:
                    continue
                own, values = slice(first, first + count), x[e, :count].double()
                first += count
                if gated:
                    left, right = values.chunk(2, -1)
                    values = (left * torch.sigmoid(left) * right).bfloat16().double()
                tolerance = formats.fp4_tolerance(torch.bfloat16 if gated else None)
                yield from quantized(
                    "", values, found["packed"][own], found["scales"][own], float(g[e]), tolerance
                )

        yield Trial(f"{experts} experts of {rows}x{k}", run, judge)


@backend(
    "FP4 grouped",
    "masked quantise",
    operators=("silu_and_mul_scaled_fp4_experts_quant",),
    runs_on=at_least(10),
)
def masked(context: Context) -> Iterator[Trial]:
    return _masked(context, False)


@backend("FP4 grouped", "silu_and_mul_scaled_fp4_experts_quant", runs_on=at_least(10))
def gated(context: Context) -> Iterator[Trial]:
    return _masked(context, True)


def _grouped(context: Context, dtype: Any) -> Iterator[Trial]:
    for counts in _COUNTS:
        for n, k in ((128, 128), (1024, 512)):
            experts, total = len(counts), sum(counts)
            if not context.sized([(total, n, k)]):
                continue
            rows, scale_rows = _offsets(counts, context.device)
            a, sa = tensors.random(total, k, context.generator, context.device)
            b, sb = tensors.random(experts * n, k, context.generator, context.device)
            alphas = context.uniform(experts, low=0.01, high=0.02)
            # Scales of an expert begin at a whole tile, and experts follow each other.
            own = [slice(int(rows[e]), int(rows[e + 1])) for e in range(experts)]
            tiles = [tensors.swizzle(sa[part], 0x7F) for part in own if part.start < part.stop]
            stored_a = torch.cat(tiles)
            stored_b = torch.stack([tensors.swizzle(sb[e * n : (e + 1) * n], 0x7F) for e in range(experts)])
            wide_a = tensors.dequantize(a, sa, 1.0)
            wide_b = tensors.dequantize(b, sb, 1.0).view(experts, n, k)
            exact = torch.cat([wide_a[own[e]] @ wide_b[e].t() * alphas[e].double() for e in range(experts)])
            squares = torch.cat(
                [
                    wide_a[own[e]].square() @ wide_b[e].square().t() * alphas[e].double() ** 2
                    for e in range(experts)
                ]
            )
            bound = formats.scaled(exact, formats.accumulated(squares, k), dtype)
            sizes = torch.tensor(
                [[count, n, k] for count in counts], dtype=torch.int32, device=context.device
            )

            def run(
                outputs: Outputs,
                a: Any = a,
                b: Any = b,
                stored_a: Any = stored_a,
                stored_b: Any = stored_b,
                alphas: Any = alphas,
                rows: Any = rows,
                scale_rows: Any = scale_rows,
                sizes: Any = sizes,
                n: int = n,
                k: int = k,
            ) -> Mapping[str, Any]:
                out = outputs.new(a.shape[0], n, dtype=dtype)
                experts = len(alphas)
                context.call(
                    "cutlass_fp4_group_mm",
                    output=out,
                    a=a,
                    b=b.view(experts, n, k // 2),
                    a_blockscale=stored_a.view(torch.float8_e4m3fn),
                    b_blockscale=stored_b.view(torch.float8_e4m3fn),
                    alphas=alphas,
                    ab_strides=torch.full((experts,), k, dtype=torch.int64, device=a.device),
                    c_strides=torch.full((experts,), n, dtype=torch.int64, device=a.device),
                    problem_sizes=sizes,
                    expert_offsets=rows[:-1].contiguous(),
                    sf_offsets=scale_rows[:-1].contiguous(),
                )
                return {"out": out}

            def judge(
                found: Mapping[str, Any], exact: Any = exact, bound: Any = bound
            ) -> Iterator[Judgement]:
                yield within("out", found["out"], exact, bound)

            yield Trial(_label(counts, n, k), run, judge)


@backend(
    "FP4 grouped", "cutlass_fp4_group_mm bfloat16", operators=("cutlass_fp4_group_mm",), runs_on=at_least(10)
)
def grouped_bfloat16(context: Context) -> Iterator[Trial]:
    return _grouped(context, torch.bfloat16)


def _prints_instead(capability: Capability) -> str | None:
    if capability >= (12, 0):
        return "upstream's SM120 path has no float16: it prints a line and leaves the result unwritten"
    return None


@backend(
    "FP4 grouped",
    "cutlass_fp4_group_mm float16",
    operators=("cutlass_fp4_group_mm",),
    runs_on=at_least(10),
    unsafe_on=_prints_instead,
)
def grouped_float16(context: Context) -> Iterator[Trial]:
    return _grouped(context, torch.float16)
