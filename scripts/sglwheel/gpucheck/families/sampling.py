"""What a sampler does with probabilities and logits before it draws."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch

from sglwheel.gpucheck import formats
from sglwheel.gpucheck.families import backend
from sglwheel.gpucheck.harness import Context, Judgement, Outputs, Trial, exactly, within

_SHAPES = ((1, 111), (7, 32000), (64, 128256))


def _logits(context: Context, rows: int, vocabulary: int) -> Any:
    """Distinct in every row, so that the k largest are a matter of course."""
    steps = torch.linspace(-8, 8, vocabulary, device=context.device)
    return torch.stack([steps[context.permutation(vocabulary)] for _ in range(rows)])


def _result(found: Mapping[str, Any], exact: Any, bound: Any) -> Iterator[Judgement]:
    yield within("probabilities", found["out"], exact, bound)


def _renormalised(
    context: Context, name: str, probabilities: Any, kept: Any, doubtful: Any, limit: str, value: float
) -> Trial:
    """`kept` are divided by their sum, the rest becomes 0; what is `doubtful` may be either.

    A sum of n positive float32 is off by n u of itself at most, in any order; then one quotient.
    """
    wide = probabilities.double()
    total = (wide * kept).sum(-1, keepdim=True)
    exact = wide * kept / total
    count = (kept | doubtful).sum(-1, keepdim=True)
    slack = (wide * doubtful).sum(-1, keepdim=True) / total
    relative = count * formats.U32 + formats.APPROXIMATE + slack
    bound = formats.stored(exact, torch.float32, exact * relative + wide * doubtful / total)

    def run(outputs: Outputs) -> Mapping[str, Any]:
        out = outputs.new(*probabilities.shape, dtype=torch.float32)
        context.call(
            name, probs=probabilities, renorm_probs=out, **{f"maybe_{limit}_arr": None, f"{limit}_val": value}
        )
        return {"out": out}

    rows, vocabulary = probabilities.shape
    return Trial(f"{rows}x{vocabulary}, {limit} {value}", run, partial(_result, exact=exact, bound=bound))


@backend("sampling", "top_k_renorm_probs")
def top_k_renorm_probs(context: Context) -> Iterator[Trial]:
    for rows, vocabulary in context.sized(_SHAPES):
        for k in (1, 10, 100):
            given = torch.softmax(_logits(context, rows, vocabulary), -1)
            kept = given >= given.topk(k, -1).values[:, -1:]
            none = torch.zeros_like(kept)
            yield _renormalised(context, "top_k_renorm_probs", given, kept, none, "top_k", k)


@backend("sampling", "top_p_renorm_probs")
def top_p_renorm_probs(context: Context) -> Iterator[Trial]:
    """The fewest largest whose sum reaches p; where a float32 sum may not tell, both are right."""
    for rows, vocabulary in context.sized(_SHAPES):
        for p in (0.1, 0.5, 0.9):
            given = torch.softmax(_logits(context, rows, vocabulary), -1)
            order = given.double().sort(-1, descending=True)
            before = order.values.cumsum(-1) - order.values
            slack = vocabulary * formats.U32
            kept, sure = (
                torch.zeros_like(given, dtype=torch.bool).scatter(-1, order.indices, before < p + side)
                for side in (0, -slack)
            )
            most = torch.zeros_like(kept).scatter(-1, order.indices, before < p + slack)
            yield _renormalised(context, "top_p_renorm_probs", given, kept, most & ~sure, "top_p", p)


@backend("sampling", "top_k_mask_logits")
def top_k_mask_logits(context: Context) -> Iterator[Trial]:
    for rows, vocabulary in context.sized(_SHAPES):
        for k in (1, 10, 100):
            logits = _logits(context, rows, vocabulary)
            kept = logits >= logits.topk(k, -1).values[:, -1:]
            wanted = torch.where(kept, logits, float("-inf"))

            def run(outputs: Outputs, logits: Any = logits, k: int = k) -> Mapping[str, Any]:
                out = outputs.new(*logits.shape, dtype=torch.float32)
                context.call(
                    "top_k_mask_logits", logits=logits, mask_logits=out, maybe_top_k_arr=None, top_k_val=k
                )
                return {"out": out}

            def judge(found: Mapping[str, Any], wanted: Any = wanted) -> Iterator[Judgement]:
                yield exactly("logits", found["out"], wanted)

            yield Trial(f"{rows}x{vocabulary}, k {k}", run, judge)


@backend("sampling", "apply_token_bitmask_inplace_cuda")
def apply_token_bitmask(context: Context) -> Iterator[Trial]:
    """Logits of tokens that a grammar forbids become minus infinity, the others stay."""
    for rows, vocabulary in context.sized(_SHAPES):
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            logits = context.normal(rows, vocabulary, dtype=dtype)
            words = -(-vocabulary // 32)
            mask = context.integers(rows, words, low=-(2**31), high=2**31 - 1, dtype=torch.int32)
            bits = (mask[..., None] >> torch.arange(32, device=mask.device, dtype=torch.int32)) & 1
            allowed = bits.flatten(-2)[:, :vocabulary].bool()
            wanted = torch.where(allowed, logits, float("-inf"))

            def run(outputs: Outputs, logits: Any = logits, mask: Any = mask) -> Mapping[str, Any]:
                out = outputs.copy(logits)
                context.call("apply_token_bitmask_inplace_cuda", logits=out, bitmask=mask)
                return {"out": out}

            def judge(found: Mapping[str, Any], wanted: Any = wanted) -> Iterator[Judgement]:
                yield exactly("logits", found["out"], wanted)

            yield Trial(f"{rows}x{vocabulary} {dtype}", run, judge)
