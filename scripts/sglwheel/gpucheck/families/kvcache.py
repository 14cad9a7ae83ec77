"""Copying keys and values: into the cache, and between pools. Every byte is compared, moved or not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch

from sglwheel.gpucheck.families import backend
from sglwheel.gpucheck.harness import Context, Judgement, Outputs, Trial, exactly

_DTYPE = torch.bfloat16


@backend("KV cache", "store_kv_cache")
def store_kv_cache(context: Context) -> Iterator[Trial]:
    for tokens, heads, size in ((1, 1, 64), (5, 8, 128), (77, 3, 64), (1024, 8, 128)):
        for index in (torch.int32, torch.int64):
            slots = 2 * tokens + 3
            k, v = (context.normal(tokens, heads, size, dtype=_DTYPE) for _ in range(2))
            before = [context.normal(slots, heads, size, dtype=_DTYPE) for _ in range(2)]
            place = context.permutation(slots)[:tokens].to(index)

            def run(
                outputs: Outputs, k: Any = k, v: Any = v, before: Any = before, place: Any = place
            ) -> Mapping[str, Any]:
                caches = [outputs.copy(each, name) for each, name in zip(before, "kv", strict=True)]
                context.call("store_kv_cache", k_cache=caches[0], v_cache=caches[1], out_loc=place, k=k, v=v)
                return dict(zip("kv", caches, strict=True))

            def judge(
                found: Mapping[str, Any], k: Any = k, v: Any = v, before: Any = before, place: Any = place
            ) -> Iterator[Judgement]:
                for name, old, new in (("k", before[0], k), ("v", before[1], v)):
                    wanted = old.clone()
                    wanted[place.long()] = new
                    yield exactly(name, found[name], wanted)

            yield Trial(f"{tokens} tokens of {heads}x{size} {index}", run, judge)


def _pools(context: Context, layers: int, items: int, width: int) -> tuple[Any, Any]:
    return (
        context.normal(layers, items, width, dtype=_DTYPE),
        context.normal(layers, items, width, dtype=_DTYPE),
    )


def _pointers(pool: Any) -> Any:
    """Addresses of a pool's layers, as a tensor on its device."""
    addresses = [layer.data_ptr() for layer in pool]
    return torch.tensor(addresses, dtype=torch.int64).view(torch.uint64).to(pool.device)


def _transfer(context: Context, name: str, *, kv: bool, all_layers: bool) -> Iterator[Trial]:
    """Items of some indices from one pool to others in another, for one layer or all."""
    for moved, items, width in ((1, 16, 64), (33, 200, 256), (1024, 4096, 512)):
        layers = 3 if all_layers else 1
        sources = [_pools(context, layers, items, width) for _ in range(2 if kv else 1)]
        where = context.permutation(items)[:moved], context.permutation(items)[:moved]

        def run(
            outputs: Outputs, sources: Any = sources, where: Any = where, width: int = width
        ) -> Mapping[str, Any]:
            targets = [outputs.copy(old, f"pool {i}") for i, (_, old) in enumerate(sources)]
            values: dict[str, Any] = {
                "src_indices": where[0],
                "dst_indices": where[1],
                "item_size": width * 2,
                "block_quota": 2,
                "num_warps_per_block": 32,
            }
            kept = []
            for part, (new, _), target in zip(("_k", "_v") if kv else ("",), sources, targets, strict=True):
                if all_layers:
                    values[f"src{part}_layers"] = _pointers(new)
                    values[f"dst{part}_layers"] = _pointers(target)
                    kept += [new, target]
                else:
                    values[f"src{part}"], values[f"dst{part}"] = new[0], target[0]
            if all_layers:
                values["num_layers"] = len(sources[0][0])
            context.call(name, **values)
            return {f"pool {i}": target for i, target in enumerate(targets)}

        def judge(
            found: Mapping[str, Any], sources: Any = sources, where: Any = where
        ) -> Iterator[Judgement]:
            for i, (new, old) in enumerate(sources):
                wanted = old.clone()
                wanted[:, where[1]] = new[:, where[0]]
                yield exactly(f"pool {i}", found[f"pool {i}"], wanted)

        yield Trial(f"{moved} of {items} items of {width}", run, judge)


@backend("KV cache", "transfer_kv_per_layer")
def transfer_kv_per_layer(context: Context) -> Iterator[Trial]:
    return _transfer(context, "transfer_kv_per_layer", kv=True, all_layers=False)


@backend("KV cache", "transfer_kv_per_layer_mla")
def transfer_kv_per_layer_mla(context: Context) -> Iterator[Trial]:
    return _transfer(context, "transfer_kv_per_layer_mla", kv=False, all_layers=False)


@backend("KV cache", "transfer_kv_all_layer")
def transfer_kv_all_layer(context: Context) -> Iterator[Trial]:
    return _transfer(context, "transfer_kv_all_layer", kv=True, all_layers=True)


@backend("KV cache", "transfer_kv_all_layer_mla")
def transfer_kv_all_layer_mla(context: Context) -> Iterator[Trial]:
    return _transfer(context, "transfer_kv_all_layer_mla", kv=False, all_layers=True)


def _same(found: Mapping[str, Any], name: str, wanted: Any) -> Iterator[Judgement]:
    yield exactly(name, found[name], wanted)


@backend("KV cache", "concat_mla_k")
def concat_mla_k(context: Context) -> Iterator[Trial]:
    """128 heads of 128 + 64: one rotary part for all heads."""
    for tokens in (1, 7, 513):
        nope = context.normal(tokens, 128, 128, dtype=_DTYPE)
        rope = context.normal(tokens, 1, 64, dtype=_DTYPE)

        def run(outputs: Outputs, nope: Any = nope, rope: Any = rope) -> Mapping[str, Any]:
            k = outputs.new(len(nope), 128, 192, dtype=_DTYPE, name="k")
            context.call("concat_mla_k", k=k, k_nope=nope, k_rope=rope)
            return {"k": k}

        yield Trial(
            f"{tokens} tokens",
            run,
            partial(_same, name="k", wanted=torch.cat((nope, rope.expand(-1, 128, -1)), -1)),
        )


@backend("KV cache", "concat_mla_absorb_q")
def concat_mla_absorb_q(context: Context) -> Iterator[Trial]:
    for tokens, heads in ((1, 16), (7, 128), (513, 16)):
        a = context.normal(tokens, heads, 512, dtype=_DTYPE)
        b = context.normal(tokens, heads, 64, dtype=_DTYPE)

        def run(outputs: Outputs, a: Any = a, b: Any = b) -> Mapping[str, Any]:
            out = outputs.new(*a.shape[:2], 576, dtype=_DTYPE)
            context.call("concat_mla_absorb_q", a=a, b=b, out=out)
            return {"out": out}

        yield Trial(
            f"{tokens}x{heads}",
            run,
            partial(_same, name="out", wanted=torch.cat((a, b), -1)),
        )
