"""Choosing experts and tokens: scores, the k best of them, and their weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch

from sglwheel.gpucheck import formats
from sglwheel.gpucheck.families import at_least, backend
from sglwheel.gpucheck.harness import Context, Judgement, Outputs, Trial, exactly, holds, within

# Scores are float32; two that are nearer than this may change places.
_NEAR = 2.0**-20


def _chosen(name: str, indices: Any, scores: Any, k: int, *, near: float = _NEAR) -> Iterator[Judgement]:
    """Distinct indices in range whose scores are the k largest; near-equal ones may change places."""
    count = scores.shape[-1]
    inside = bool(((indices >= 0) & (indices < count)).all())
    yield holds(name, inside, f"indices from {int(indices.min())} to {int(indices.max())}, of {count}")
    if not inside:
        return
    ordered = indices.long().sort(-1).values
    yield holds(name, not bool((ordered[:, 1:] == ordered[:, :-1]).any()), "an index stands twice in a row")
    taken = scores.gather(-1, indices.long()).sort(-1, descending=True).values
    best = scores.topk(k, -1).values
    wrong = ((best - taken) > near * (1 + best.abs())).any(-1)
    rows = int(wrong.sum())
    yield holds(name, not rows, f"{rows} of {len(wrong)} rows miss a larger score")


def _trials(context: Context, name: str, function: Callable[[Any], Any], **more: Any) -> Iterator[Trial]:
    for rows, experts, k in ((1, 8, 2), (7, 64, 6), (777, 128, 8), (1024, 256, 8), (3, 60, 4)):
        for renormalize in (False, True):
            gating = context.normal(rows, experts)
            scores = function(gating.double())

            def run(
                outputs: Outputs, gating: Any = gating, k: int = k, renormalize: bool = renormalize
            ) -> Mapping[str, Any]:
                weights = outputs.new(gating.shape[0], k, dtype=torch.float32, name="weights")
                indices = outputs.new(gating.shape[0], k, dtype=torch.int32, name="indices")
                context.call(
                    name,
                    topk_weights=weights,
                    topk_indices=indices,
                    gating_output=gating,
                    renormalize=renormalize,
                    correction_bias=None,
                    **more,
                )
                return {"weights": weights, "indices": indices}

            def judge(
                found: Mapping[str, Any], scores: Any = scores, k: int = k, renormalize: bool = renormalize
            ) -> Iterator[Judgement]:
                for judgement in _chosen("indices", found["indices"], scores, k):
                    yield judgement
                    if judgement.ratio > 1:
                        return
                exact = scores.gather(-1, found["indices"].long())
                if renormalize:
                    exact = exact / exact.sum(-1, keepdim=True)
                before = exact * (formats.APPROXIMATE + scores.shape[-1] * formats.U32)
                yield within("weights", found["weights"], exact, formats.stored(exact, torch.float32, before))

            yield Trial(
                f"{rows} tokens, {k} of {experts}{' renormalised' if renormalize else ''}", run, judge
            )


@backend("top-k", "topk_softmax")
def topk_softmax(context: Context) -> Iterator[Trial]:
    return _trials(context, "topk_softmax", lambda x: torch.softmax(x, -1), moe_softcapping=0.0)


@backend("top-k", "topk_sigmoid")
def topk_sigmoid(context: Context) -> Iterator[Trial]:
    return _trials(context, "topk_sigmoid", torch.sigmoid)


def _gate(found: Mapping[str, Any], scores: Any, choice: Any, k: int, factor: float) -> Iterator[Judgement]:
    """Experts by biased score, weights by unbiased score and divided by their sum."""
    for judgement in _chosen("indices", found["indices"], choice, k):
        yield judgement
        if judgement.ratio > 1:
            return
    exact = scores.gather(-1, found["indices"].long())
    exact = exact / exact.sum(-1, keepdim=True) * factor
    yield within(
        "weights",
        found["weights"],
        exact,
        formats.stored(exact, torch.float32, exact * 2 * formats.APPROXIMATE),
    )


@backend("top-k", "moe_fused_gate")
def moe_fused_gate(context: Context) -> Iterator[Trial]:
    """The best groups by the sum of their two best experts, then the best experts in those."""
    for rows, experts, groups, kept, k in ((1, 128, 4, 2, 4), (77, 256, 8, 4, 8), (1025, 256, 8, 4, 8)):
        x, bias = context.normal(rows, experts), context.uniform(experts)
        scores = torch.sigmoid(x.double())
        choice = scores + bias.double()
        by_group = choice.unflatten(-1, (groups, -1))
        group_score = by_group.topk(2, -1).values.sum(-1)
        ranked = group_score.sort(-1, descending=True).values
        # Rows where two groups are all but equal could rightly go either way; random ones have none, mostly.
        clear = ranked[:, kept - 1] - ranked[:, kept] > 1e-5
        keep = group_score >= ranked[:, kept - 1 : kept]
        choice = by_group.masked_fill(~keep[..., None], float("-inf")).flatten(-2)

        def run(
            outputs: Outputs, x: Any = x, bias: Any = bias, groups: int = groups, kept: int = kept, k: int = k
        ) -> Mapping[str, Any]:
            outputs.dirty(x.shape[0] * k * 4)
            weights, indices = context.call(
                "moe_fused_gate",
                input=x,
                bias=bias,
                num_expert_group=groups,
                topk_group=kept,
                topk=k,
                num_fused_shared_experts=0,
                routed_scaling_factor=1.0,
                apply_routed_scaling_factor_on_output=False,
            )
            return {"weights": weights, "indices": indices}

        def judge(
            found: Mapping[str, Any],
            scores: Any = scores,
            choice: Any = choice,
            clear: Any = clear,
            k: int = k,
        ) -> Iterator[Judgement]:
            rows = {name: value[clear] for name, value in found.items()}
            yield from _gate(rows, scores[clear], choice[clear], k, 1.0)

        yield Trial(f"{rows} tokens, {k} of {experts} in {kept} of {groups} groups", run, judge)


@backend("top-k", "kimi_k2_moe_fused_gate")
def kimi_k2_moe_fused_gate(context: Context) -> Iterator[Trial]:
    """384 experts, one group; weights are scaled after they were divided by their sum."""
    for rows in (1, 100, 513, 2048):
        x, bias = context.normal(rows, 384), context.uniform(384)
        scores = torch.sigmoid(x.double())

        def run(outputs: Outputs, x: Any = x, bias: Any = bias) -> Mapping[str, Any]:
            outputs.dirty(x.shape[0] * 6 * 4)
            weights, indices = context.call(
                "kimi_k2_moe_fused_gate",
                input=x,
                bias=bias,
                topk=6,
                renormalize=True,
                routed_scaling_factor=2.872,
                apply_routed_scaling_factor_on_output=True,
            )
            return {"weights": weights, "indices": indices}

        yield Trial(
            f"{rows} tokens, 6 of 384",
            run,
            partial(_gate, scores=scores, choice=scores + bias.double(), k=6, factor=2.872),
        )


@backend("top-k", "fast_topk", runs_on=at_least(9))
def fast_topk(context: Context) -> Iterator[Trial]:
    """2048 of a row's first `length` scores in any order; all of them, then -1, where there are fewer."""
    k = 2048
    for rows, columns in ((1, 2049), (5, 10_000), (64, 32_768)):
        scores = context.normal(rows, columns)
        lengths = context.integers(rows, low=k + 1, high=columns + 1)
        lengths[-1] = 100 if rows > 1 else columns

        def run(outputs: Outputs, scores: Any = scores, lengths: Any = lengths) -> Mapping[str, Any]:
            indices = outputs.new(len(scores), k, dtype=torch.int32, name="indices")
            context.call("fast_topk", score=scores, indices=indices, lengths=lengths, row_starts=None)
            return {"indices": indices.sort(-1).values}

        def judge(
            found: Mapping[str, Any], scores: Any = scores, lengths: Any = lengths
        ) -> Iterator[Judgement]:
            for row, length in enumerate(lengths.tolist()):
                taken = found["indices"][row]
                if length <= k:
                    wanted = torch.cat((torch.full((k - length,), -1), torch.arange(length)))
                    yield exactly(f"indices of row {row}", taken, wanted.to(taken))
                else:
                    yield from _chosen("indices", taken[None], scores[row : row + 1, :length].double(), k)

        yield Trial(f"{rows} rows of {columns}", run, judge)
