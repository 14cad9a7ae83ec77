"""Sorting tokens by expert, moving their rows, and summing what experts return."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch

from sglwheel.gpucheck import formats
from sglwheel.gpucheck.families import backend
from sglwheel.gpucheck.harness import Context, Judgement, Outputs, Trial, exactly, holds, within


def _experts(context: Context, tokens: int, experts: int, k: int) -> Any:
    """k distinct experts for each token."""
    return context.uniform(tokens, experts).topk(k, -1).indices.int()


@backend("MoE align", "moe_align_block_size")
def moe_align_block_size(context: Context) -> Iterator[Trial]:
    """Token slots grouped by expert, each group padded to whole blocks; order within a group is free."""
    for tokens, experts, k, block in ((1, 8, 2, 16), (300, 64, 4, 16), (77, 60, 6, 64), (4096, 256, 8, 128)):
        ids = _experts(context, tokens, experts, k)
        room = tokens * k + (experts + 1) * (block - 1)

        def run(
            outputs: Outputs, ids: Any = ids, experts: int = experts, block: int = block, room: int = room
        ) -> Mapping[str, Any]:
            # The kernel fills four at a time, so upstream's callers round up.
            slots = outputs.new(-(-room // 4) * 4, dtype=torch.int32, name="sorted ids")
            owners = outputs.new(-(-room // block), dtype=torch.int32, name="experts")
            total = outputs.new(1, dtype=torch.int32, name="total")
            sums = outputs.new(experts + 2, dtype=torch.int32, name="sums", fill=0)
            context.call(
                "moe_align_block_size",
                topk_ids=ids,
                num_experts=experts + 1,
                block_size=block,
                sorted_token_ids=slots,
                experts_ids=owners,
                num_tokens_post_pad=total,
                cumsum_buffer=sums,
                pad_sorted_token_ids=True,
            )
            return {"slots": slots, "owners": owners, "total": total}

        def judge(
            found: Mapping[str, Any], ids: Any = ids, experts: int = experts, block: int = block
        ) -> Iterator[Judgement]:
            counts = torch.bincount(ids.flatten().long(), minlength=experts)
            blocks = (counts + block - 1) // block
            total = int(blocks.sum()) * block
            given = int(found["total"])
            yield holds("total", given == total, f"{given}, expected {total}")
            if given != total:
                return
            owners = torch.repeat_interleave(torch.arange(experts, device=ids.device), blocks)
            yield exactly("experts", found["owners"][: len(owners)], owners.int())
            slots = found["slots"][:total].long()
            real = slots[slots < ids.numel()]
            everyone = torch.arange(ids.numel(), device=ids.device)
            yield exactly("each slot once", real.sort().values, everyone)
            padding = slots[slots >= ids.numel()]
            yield exactly("padding", padding, torch.full_like(padding, ids.numel()))
            owner = owners.repeat_interleave(block)[slots < ids.numel()]
            yield exactly("slots of their expert", ids.flatten()[real].long(), owner)

        yield Trial(f"{tokens} tokens, {k} of {experts}, blocks of {block}", run, judge, repeatable=False)


@backend("MoE align", "prepare_moe_input")
def prepare_moe_input(context: Context) -> Iterator[Trial]:
    """Sizes, offsets and permutations for grouped products; rows of one expert are in any order."""
    n, k_size = 512, 1024
    for tokens, experts, k in ((1, 8, 2), (77, 60, 6), (1024, 128, 8)):
        ids = _experts(context, tokens, experts, k)

        def run(outputs: Outputs, ids: Any = ids, experts: int = experts) -> Mapping[str, Any]:
            def new(*shape: int, name: str) -> Any:
                return outputs.new(*shape, dtype=torch.int32, name=name)

            found = {
                "offsets": new(experts + 1, name="offsets"),
                "scale offsets": new(experts + 1, name="scale offsets"),
                "sizes 1": new(experts, 3, name="sizes 1"),
                "sizes 2": new(experts, 3, name="sizes 2"),
                "input": new(ids.numel(), name="input"),
                "output": new(ids.numel(), name="output"),
            }
            context.call(
                "prepare_moe_input",
                topk_ids=ids,
                expert_offsets=found["offsets"],
                blockscale_offsets=found["scale offsets"],
                problem_sizes1=found["sizes 1"],
                problem_sizes2=found["sizes 2"],
                input_permutation=found["input"],
                output_permutation=found["output"],
                num_experts=experts,
                n=n,
                k=k_size,
            )
            return found

        def judge(found: Mapping[str, Any], ids: Any = ids, experts: int = experts) -> Iterator[Judgement]:
            counts = torch.bincount(ids.flatten().long(), minlength=experts)
            zero = counts.new_zeros(1)
            yield exactly("offsets", found["offsets"], torch.cat((zero, counts.cumsum(0))).int())
            rounded = (counts + 127) // 128 * 128
            yield exactly("scale offsets", found["scale offsets"], torch.cat((zero, rounded.cumsum(0))).int())
            for name, width, depth in (("sizes 1", 2 * n, k_size), ("sizes 2", k_size, n)):
                wide = torch.stack(
                    (counts, torch.full_like(counts, width), torch.full_like(counts, depth)), -1
                )
                yield exactly(name, found[name], wide.int())
            place = found["output"].long()
            yield exactly("output once", place.sort().values, torch.arange(ids.numel(), device=ids.device))
            token = torch.arange(ids.numel(), device=ids.device) // ids.shape[1]
            yield exactly("input at its place", found["input"].long()[place], token)
            bounds = torch.cat((zero, counts.cumsum(0)))
            own = ids.flatten().long()
            good = bool(((place >= bounds[own]) & (place < bounds[own + 1])).all())
            yield holds("rows of their expert", good, "a row lies in another expert's range")

        yield Trial(f"{tokens} tokens, {k} of {experts}", run, judge, repeatable=False)


def _moved(found: Mapping[str, Any], x: Any, source: Any) -> Iterator[Judgement]:
    # Indexing by bytes: torch cannot index FP8.
    yield exactly("out", found["out"], x.view(torch.uint8)[source.long()].view(x.dtype))


@backend("MoE move", "shuffle_rows")
def shuffle_rows(context: Context) -> Iterator[Trial]:
    for rows, columns in ((1, 128), (77, 1024), (2048, 7168)):
        for dtype in (torch.bfloat16, torch.float8_e4m3fn):
            x = context.normal(rows, columns).to(dtype)
            source = context.integers(2 * rows, low=0, high=rows)

            def run(outputs: Outputs, x: Any = x, source: Any = source) -> Mapping[str, Any]:
                out = outputs.new(len(source), x.shape[1], dtype=x.dtype)
                context.call("shuffle_rows", input=x, dst2src_map=source, output=out)
                return {"out": out}

            yield Trial(
                f"{rows}x{columns} {dtype}",
                run,
                partial(_moved, x=x, source=source),
            )


def _sum_bound(terms: Any, dtype: Any) -> Any:
    """Products and sums of k terms in float32, one rounding: (k + 1) u |terms|, then u of the format.

    Where the input is 16 bits wide, some of upstream's paths add in that format: k more roundings to it.
    """
    spread = terms.abs().sum(1)
    exact = terms.sum(1)
    return formats.stored(exact, dtype, spread * terms.shape[1] * formats.UNIT[dtype])


def _summed(found: Mapping[str, Any], terms: Any, dtype: Any) -> Iterator[Judgement]:
    yield within("out", found["out"], terms.sum(1), _sum_bound(terms, dtype))


@backend("MoE move", "moe_sum")
def moe_sum(context: Context) -> Iterator[Trial]:
    for tokens, k, hidden in ((1, 2, 128), (77, 4, 1000), (512, 3, 4096), (64, 8, 2048)):
        for dtype in (torch.bfloat16, torch.float32):
            x = context.normal(tokens, k, hidden, dtype=dtype)

            def run(outputs: Outputs, x: Any = x) -> Mapping[str, Any]:
                out = outputs.new(x.shape[0], x.shape[2], dtype=x.dtype)
                context.call("moe_sum", input=x, output=out)
                return {"out": out}

            yield Trial(
                f"{tokens}x{k}x{hidden} {dtype}",
                run,
                partial(_summed, terms=x.double(), dtype=dtype),
            )


@backend("MoE move", "moe_sum_reduce")
def moe_sum_reduce(context: Context) -> Iterator[Trial]:
    factor = 2.5
    for tokens, k, hidden in ((1, 2, 128), (77, 4, 1000), (512, 9, 7168), (64, 8, 2048)):
        for dtype in (torch.bfloat16, torch.float32):
            x = context.normal(tokens, k, hidden, dtype=dtype)

            def run(outputs: Outputs, x: Any = x) -> Mapping[str, Any]:
                out = outputs.new(x.shape[0], x.shape[2], dtype=x.dtype)
                context.call("moe_sum_reduce", input=x, output=out, routed_scaling_factor=factor)
                return {"out": out}

            yield Trial(
                f"{tokens}x{k}x{hidden} {dtype}",
                run,
                partial(_summed, terms=x.double() * factor, dtype=dtype),
            )


@backend("MoE move", "apply_shuffle_mul_sum")
def apply_shuffle_mul_sum(context: Context) -> Iterator[Trial]:
    """Rows of experts back in the order of tokens, weighted and summed."""
    for tokens, k, hidden in ((1, 2, 128), (77, 6, 1000), (512, 8, 7168)):
        x = context.normal(tokens * k, hidden, dtype=torch.bfloat16)
        weights = context.uniform(tokens * k, dtype=torch.bfloat16)
        place = context.permutation(tokens * k).int()

        def run(
            outputs: Outputs, x: Any = x, weights: Any = weights, place: Any = place, k: int = k
        ) -> Mapping[str, Any]:
            out = outputs.new(len(x) // k, x.shape[1], dtype=x.dtype)
            context.call("apply_shuffle_mul_sum", input=x, output=out, permutation=place, factors=weights)
            return {"out": out}

        def judge(
            found: Mapping[str, Any], x: Any = x, weights: Any = weights, place: Any = place, k: int = k
        ) -> Iterator[Judgement]:
            terms = (x.double()[place.long()] * weights.double()[:, None]).unflatten(0, (-1, k))
            yield from _summed(found, terms, x.dtype)

        yield Trial(f"{tokens}x{k}x{hidden}", run, judge)
