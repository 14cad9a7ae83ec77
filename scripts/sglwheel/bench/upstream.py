"""What our flags save against upstream's own: CPU of named units under both. Opt-in: it takes hours."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from sglwheel import build, console, patching, source, toolchain
from sglwheel.bench import Ratio, Setting
from sglwheel.bench.together import Compile, metered
from sglwheel.build.costs import Costs
from sglwheel.errors import BuildError, UsageError
from sglwheel.pipeline import Context
from sglwheel.recipe import KernelRecipe
from sglwheel.toolchain import torchpin

VARIABLE = "SGLWHEEL_UPSTREAM"
RECIPE = "cu130"
LARGEST = (
    "fp8_gemm_kernel",
    "fp8_blockwise_moe_kernel",
    "nvfp4_scaled_mm_kernels",
    "w4a8_grouped_mm_c3x",
    "fp8_blockwise_gemm_kernel",
    "es_fp8_blockwise",
    "nvfp4_blockwise_moe",
    "cutlass_mla_kernel",
    "int8_gemm_kernel",
    "es_sm100_mxfp8_blockscaled",
)
OTHERS = (
    "gguf_kernel",
    "moe_topk_softmax_kernels",
    "moe_align_kernel",
    "per_token_group_quant_8bit_v2",
    "awq_kernel",
    "rope",
    "activation",
    "mscclpp_allreduce",
    "nvfp4_quant_kernels",
    "cascade",
)
# FA3 and FlashMLA, which only upstream's defaults have, and how many units are taken of each.
_EXTRAS = ("flash_ops", "flashmla")
_SAMPLES = 3
# What upstream leaves as it is but for one compiler thread, which costs memory and no CPU, and for mscclpp's
# extras, which would have to be fetched and are no kernels of the wheel.
_DEFAULTS = ("SGL_KERNEL_COMPILE_THREADS", "MSCCLPP_BUILD_PYTHON_BINDINGS", "MSCCLPP_BUILD_APPS_NCCL")


def flags(setting: Setting) -> Iterator[Ratio]:
    """CPU of the named units with our flags, over upstream's own: all gencodes, both library variants.

    Then of the whole wheel: what both have by that ratio, FA3 and FlashMLA by samples of their units. All are
    compiled in one go, several at once.
    """
    if not os.environ.get(VARIABLE):
        raise UsageError(f"this part compiles the real upstream for hours: set {VARIABLE}=1")
    context = Context.load(setting.layout, RECIPE, setting.options)
    ours, theirs = _compiles(context, own=True), _compiles(context, own=False)
    console.say(f"ours: {len(ours)} units; upstream's defaults: {len(theirs)} ({_targets(theirs)})")
    budget = setting.options.allowance.budget()
    room = budget.room()
    named, skipped = [], []
    for stem in setting.units or (*LARGEST, *OTHERS):
        if not _of(ours, stem) or not _of(theirs, stem):
            both = sorted({item.stem for item in ours if item.cuda} & {item.stem for item in theirs})
            raise UsageError(
                f"no unit {stem} in both builds",
                where={"in both": ", ".join(both)},
                next="sglwheel bench upstream --unit <one of them>",
            )
        need = max(item.cost.peak for item in _of(theirs, stem))
        if need > room:
            free = console.format_bytes(room)
            console.warn(f"{stem} is left out: it needs {console.format_bytes(need)}, {free} are free")
            skipped.append(stem)
        else:
            named.append(stem)
    if not named:
        raise BuildError(
            "no unit could be compiled here",
            where={"left out": ", ".join(skipped)},
            next="end other work, or name smaller ones with --unit",
        )
    extra = {name: _samples(theirs, name) for name in _EXTRAS}
    pairs = [item for stem in named for item in (*_of(ours, stem), *_of(theirs, stem))]
    spent = metered([*pairs, *(item for items in extra.values() for item in items)], setting.scratch, budget)
    one, other = (
        {stem: sum(spent[item] for item in _of(compiles, stem)) for stem in named}
        for compiles in (ours, theirs)
    )
    note = ", ".join(f"{stem} 1/{other[stem] / one[stem]:.2f}" for stem in named)
    complete = not setting.units and not skipped
    share = sum(one.values()) / sum(other.values())
    yield Ratio(
        f"CPU, our flags / upstream's, {len(named)} units",
        [share],
        1 / 6.5 if complete else None,
        note=note + (f"; left out for want of memory: {', '.join(skipped)}" if skipped else ""),
    )
    # How fast this host is, by what is known of the units that were compiled.
    here = sum(one.values()) / sum(item.cost.seconds for stem in named for item in _of(ours, stem))
    mine = here * sum(item.cost.seconds for item in ours)
    total, words = mine / share, []
    for name, samples in extra.items():
        if not samples:
            continue
        count, mean = len(_of_target(theirs, name)), sum(spent[item] for item in samples) / len(samples)
        total += mean * count
        words.append(f"{name}: {count} units of {mean:.0f} s (mean of {len(samples)})")
    said = f"estimated: {mine / 3600:.2f} / {total / 3600:.2f} CPU-h here; {'; '.join(words)}"
    yield Ratio("CPU, our whole wheel / upstream's", [mine / total], 1 / 14 if complete else None, note=said)


def _compiles(context: Context, *, own: bool) -> list[Compile]:
    """What a build would run: ours, or that of the upstream as it is."""
    recipe = context.recipe
    assert isinstance(recipe, KernelRecipe)
    chosen = context.series
    if not own:
        options = {key: value for key, value in recipe.build.cmake.items() if key in _DEFAULTS}
        recipe = recipe.model_copy(update={"build": recipe.build.model_copy(update={"cmake": options})})
        chosen = replace(chosen, patches=())
    env = toolchain.prepare(recipe, torchpin.pin(recipe), context.layout, context.mirrors, context.lent)
    patched = patching.apply(context.checkout, chosen, context.facts, context.layout, recipe)
    # Upstream's own way fetches more than the recipe's, whose lock must not learn of it.
    fetched = source.dependencies(
        patched,
        recipe,
        context.layout,
        context.mirrors,
        context.options.overrides,
        refit=True,
        keep=False,
    )
    date = context.checkout.date
    listed = build.configure(recipe, patched, fetched, env, context.layout, date=date)
    return [_compile(entry) for entry in json.loads(listed.read_text("utf-8"))]


def _compile(entry: dict[str, str]) -> Compile:
    words = tuple(shlex.split(entry["command"]))
    target = re.search(r"CMakeFiles/([^/]+)\.dir/", words[words.index("-o") + 1])
    cost = Costs().expect(words[words.index("-o") + 1])
    # The table's units are compiled for one architecture; nvcc takes several one after the other.
    gencodes = sum("arch=compute_" in word for word in words)
    cost = replace(cost, seconds=cost.seconds * max(1, gencodes))
    stem = Path(entry["file"]).name.split(".")[0]
    return Compile(target[1] if target else "", stem, words, Path(entry["directory"]), cost)


def _of(compiles: Sequence[Compile], stem: str) -> list[Compile]:
    return [item for item in compiles if item.stem == stem and item.cuda]


def _of_target(compiles: Sequence[Compile], name: str) -> list[Compile]:
    return [item for item in compiles if name in item.target and item.cuda]


def _samples(compiles: Sequence[Compile], name: str) -> list[Compile]:
    """Some units of a target, spread over its list."""
    units = _of_target(compiles, name)
    return units[:: max(1, len(units) // _SAMPLES)][:_SAMPLES]


def _targets(compiles: Sequence[Compile]) -> str:
    counts = Counter(item.target for item in compiles)
    return ", ".join(f"{name} {count}" for name, count in counts.most_common())
