"""Parts of attention that stand alone: merging two partial results, and rotary embedding."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from sglwheel.gpucheck import formats
from sglwheel.gpucheck.families import backend
from sglwheel.gpucheck.harness import Context, Judgement, Outputs, Trial, within


def _merge(context: Context, name: str, unit: float) -> Iterator[Trial]:
    """(v, s) pairs weigh each value by unit^s; `unit` is e, or 2 for FlashInfer's own kernel."""
    for tokens, heads, size in ((1, 1, 64), (99, 16, 128), (1024, 32, 128), (513, 3, 256)):
        va, vb = (context.normal(tokens, heads, size, dtype=torch.bfloat16) for _ in range(2))
        sa, sb = (context.normal(tokens, heads, scale=3.0) for _ in range(2))
        log = math.log(unit)
        a, b = sa.double() * log, sb.double() * log
        total = torch.logaddexp(a, b)
        left, right = (a - total).exp()[..., None] * va.double(), (b - total).exp()[..., None] * vb.double()
        exact, exact_s = left + right, total / log
        # The exponents carry u |s|, and exp turns that into a relative error of a weight.
        relative = formats.APPROXIMATE + 4 * formats.U32 * (sa.abs() + sb.abs()).double()[..., None]
        bound = formats.stored(exact, torch.bfloat16, (left.abs() + right.abs()) * relative)
        bound_s = formats.stored(
            exact_s, torch.float32, exact_s.abs() * 4 * formats.U32 + formats.APPROXIMATE
        )

        def run(
            outputs: Outputs, va: Any = va, vb: Any = vb, sa: Any = sa, sb: Any = sb
        ) -> Mapping[str, Any]:
            v = outputs.new(*va.shape, dtype=va.dtype, name="v")
            s = outputs.new(*sa.shape, dtype=torch.float32, name="s")
            context.call(name, v_a=va, s_a=sa, v_b=vb, s_b=sb, v_merged=v, s_merged=s)
            return {"v": v, "s": s}

        def judge(
            found: Mapping[str, Any],
            exact: Any = exact,
            bound: Any = bound,
            s: Any = exact_s,
            bound_s: Any = bound_s,
        ) -> Iterator[Judgement]:
            yield within("v", found["v"], exact, bound)
            yield within("s", found["s"], s, bound_s)

        yield Trial(f"{tokens}x{heads}x{size}", run, judge)


@backend("attention", "merge_state")
def merge_state(context: Context) -> Iterator[Trial]:
    return _merge(context, "merge_state", 2.0)


@backend("attention", "merge_state_v2")
def merge_state_v2(context: Context) -> Iterator[Trial]:
    return _merge(context, "merge_state_v2", math.e)


@backend("attention", "apply_rope_pos_ids_cos_sin_cache")
def rope(context: Context) -> Iterator[Trial]:
    """Rotary embedding in place, halves or neighbours; the angles come as a float32 table."""
    positions = 4096
    for tokens, heads, kv_heads, size in ((1, 8, 1, 64), (77, 32, 8, 128), (1024, 16, 4, 128)):
        for interleave in (False, True):
            q, k = (context.normal(tokens, count, size, dtype=torch.bfloat16) for count in (heads, kv_heads))
            where = context.integers(tokens, low=0, high=positions, dtype=torch.int64)
            frequency = 10000.0 ** (
                -torch.arange(0, size, 2, device=context.device, dtype=torch.float64) / size
            )
            angle = torch.arange(positions, device=context.device, dtype=torch.float64)[:, None] * frequency
            table = torch.cat((angle.cos(), angle.sin()), -1).float()

            def run(
                outputs: Outputs,
                q: Any = q,
                k: Any = k,
                where: Any = where,
                table: Any = table,
                interleave: bool = interleave,
            ) -> Mapping[str, Any]:
                new_q, new_k = outputs.copy(q, "q"), outputs.copy(k, "k")
                context.call(
                    "apply_rope_pos_ids_cos_sin_cache",
                    q=new_q,
                    k=new_k,
                    q_rope=new_q,
                    k_rope=new_k,
                    cos_sin_cache=table,
                    pos_ids=where,
                    interleave=interleave,
                    enable_pdl=False,
                    v=None,
                    k_buffer=None,
                    v_buffer=None,
                    kv_cache_loc=None,
                )
                return {"q": new_q, "k": new_k}

            def judge(
                found: Mapping[str, Any],
                q: Any = q,
                k: Any = k,
                where: Any = where,
                table: Any = table,
                interleave: bool = interleave,
            ) -> Iterator[Judgement]:
                cos, sin = table.double()[where].chunk(2, -1)
                for name, x in (("q", q.double()), ("k", k.double())):
                    exact, spread = _rotated(x, cos[:, None], sin[:, None], interleave)
                    bound = formats.stored(exact, torch.bfloat16, spread * 4 * formats.U32)
                    yield within(name, found[name], exact, bound)

            yield Trial(
                f"{tokens}x({heads}+{kv_heads})x{size} {'neighbours' if interleave else 'halves'}", run, judge
            )


def _rotated(x: Any, cos: Any, sin: Any, interleave: bool) -> tuple[Any, Any]:
    """The rotated values, and the sum of magnitudes that each came from."""
    one, two = (x[..., ::2], x[..., 1::2]) if interleave else x.chunk(2, -1)
    halves = [one * cos - two * sin, two * cos + one * sin]
    sizes = [(one * cos).abs() + (two * sin).abs(), (two * cos).abs() + (one * sin).abs()]
    if interleave:
        return torch.stack(halves, -1).flatten(-2), torch.stack(sizes, -1).flatten(-2)
    return torch.cat(halves, -1), torch.cat(sizes, -1)
