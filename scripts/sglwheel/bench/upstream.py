"""What our flags save against upstream's own: CPU of named units under both. Opt-in: it takes hours."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sglwheel import console
from sglwheel.bench import Ratio, Setting, trees
from sglwheel.bench.comparisons import Comparison, Kept, measure
from sglwheel.bench.together import Compile
from sglwheel.build.costs import Costs
from sglwheel.errors import BuildError, UsageError
from sglwheel.pipeline import Context
from sglwheel.recipe import KernelRecipe

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
_REFERENCE = "gguf_kernel"  # what they are compiled beside: neither the longest nor too short to be measured
# What upstream leaves as it is but for one compiler thread, which costs memory and no CPU, and for mscclpp's
# extras, which would have to be fetched and are no kernels of the wheel.
_DEFAULTS = ("SGL_KERNEL_COMPILE_THREADS", "MSCCLPP_BUILD_PYTHON_BINDINGS", "MSCCLPP_BUILD_APPS_NCCL")


@dataclass(frozen=True)
class _Side:
    """One of the two builds: what it compiles, and digests of what its commands depend on beside paths."""

    compiles: Sequence[Compile]
    versions: str

    def of(self, stem: str) -> list[Compile]:
        return [item for item in self.compiles if item.stem == stem and item.cuda]

    def of_target(self, name: str) -> list[Compile]:
        return [item for item in self.compiles if name in item.target and item.cuda]

    def samples(self, name: str) -> list[Compile]:
        """Some units of a target, spread over its list."""
        units = self.of_target(name)
        return units[:: max(1, len(units) // _SAMPLES)][:_SAMPLES]


def flags(setting: Setting) -> Iterator[Ratio]:
    """CPU of the named units with our flags, over upstream's own: all gencodes, both library variants.

    Then of the whole wheel: what both have by that ratio, FA3 and FlashMLA by samples of their units, each
    compiled beside a unit of ours whose time is known. Units are weighted by what they take on a quiet host,
    so that what `setting.keep` has of other runs and hosts counts, too.
    """
    if not os.environ.get(VARIABLE):
        raise UsageError(f"this part compiles the real upstream for hours: set {VARIABLE}=1")
    kept = Kept(setting.keep)
    context = Context.load(setting.layout, RECIPE, setting.options)
    ours, theirs = _side(context, own=True), _side(context, own=False)
    console.say(f"ours: {len(ours.compiles)} units; upstream's defaults: {_targets(theirs.compiles)}")
    budget = setting.options.allowance.budget()
    named, skipped = _named(setting.units, ours, theirs, budget.room(), kept)
    extra = [
        Comparison(name, ours.of(_REFERENCE), samples, theirs.versions)
        for name in _EXTRAS
        if (samples := theirs.samples(name))
    ]
    measured = measure([*named, *extra], kept, setting.scratch, budget)
    factors = {item.name: measured[item.name].factor for item in (*named, *extra)}
    one = sum(item.expected for item in named)
    share = one / sum(item.expected * factors[item.name] for item in named)
    complete = not setting.units and not skipped
    note = ", ".join(f"{item.name} 1/{factors[item.name]:.2f}" for item in named)
    runs = len({found.began for found in measured.values()})
    note += f"; from {runs} runs" if runs > 1 else ""
    note += f"; left out for want of memory: {', '.join(skipped)}" if skipped else ""
    bar = 1 / 6.5 if complete else None
    yield Ratio(f"CPU, our flags / upstream's, {len(named)} units", [share], bar, note=note)
    mine = sum(item.cost.seconds for item in ours.compiles)
    total, words = mine / share, []
    for item in extra:
        count, mean = len(theirs.of_target(item.name)), factors[item.name] * item.expected / len(item.theirs)
        total += mean * count
        words.append(f"{item.name}: {count} units of {mean:.0f} s (mean of {len(item.theirs)})")
    said = f"estimated: {mine / 3600:.2f} / {total / 3600:.2f} CPU-h on a quiet host; {'; '.join(words)}"
    bar = 1 / 14 if complete else None
    yield Ratio("CPU, our whole wheel / upstream's", [mine / total], bar, note=said)


def _named(
    stems: Sequence[str], ours: _Side, theirs: _Side, room: int, kept: Kept
) -> tuple[list[Comparison], list[str]]:
    """The comparisons to make, the longest first, and what is too large for this host."""
    named, skipped = [], []
    for stem in stems or (*LARGEST, *OTHERS):
        one = Comparison(stem, ours.of(stem), theirs.of(stem), theirs.versions)
        if not one.ours or not one.theirs:
            both = {item.stem for item in ours.compiles if item.cuda} & {
                item.stem for item in theirs.compiles
            }
            raise UsageError(
                f"no unit {stem} in both builds",
                where={"in both": ", ".join(sorted(both))},
                next="sglwheel bench upstream --unit <one of them>",
            )
        need = max(item.cost.peak for item in one.theirs)
        if need > room and kept.find(stem, one.commands) is None:
            free = console.format_bytes(room)
            console.warn(f"{stem} is left out: it needs {console.format_bytes(need)}, {free} are free")
            skipped.append(stem)
        else:
            named.append(one)
    if not named:
        raise BuildError(
            "no unit could be compiled here",
            where={"left out": ", ".join(skipped)},
            next="end other work, or name smaller ones with --unit",
        )
    return sorted(named, key=lambda item: -item.expected), skipped


def _side(context: Context, *, own: bool) -> _Side:
    """What a build would run: ours, or that of the upstream as it is."""
    recipe = context.recipe
    assert isinstance(recipe, KernelRecipe)
    chosen = context.series
    if not own:
        options = {key: value for key, value in recipe.build.cmake.items() if key in _DEFAULTS}
        recipe = recipe.model_copy(update={"build": recipe.build.model_copy(update={"cmake": options})})
        chosen = replace(chosen, patches=())
    found = trees.configured(context, recipe, chosen)
    compiles = [_compile(entry) for entry in json.loads(found.commands.read_text("utf-8"))]
    return _Side(
        compiles,
        f"{context.checkout.commit} nvcc {found.env.nvcc_version} torch {found.env.torch.full_version}",
    )


def _compile(entry: dict[str, str]) -> Compile:
    words = tuple(shlex.split(entry["command"]))
    target = re.search(r"CMakeFiles/([^/]+)\.dir/", words[words.index("-o") + 1])
    cost = Costs().expect(words[words.index("-o") + 1])
    # The table's units are compiled for one architecture; nvcc takes several one after the other.
    gencodes = sum("arch=compute_" in word for word in words)
    cost = replace(cost, seconds=cost.seconds * max(1, gencodes))
    stem = Path(entry["file"]).name.split(".")[0]
    return Compile(target[1] if target else "", stem, words, Path(entry["directory"]), cost)


def _targets(compiles: Sequence[Compile]) -> str:
    counts = Counter(item.target for item in compiles)
    return ", ".join(f"{name} {count}" for name, count in counts.most_common())
