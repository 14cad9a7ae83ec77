"""What our flags save against upstream's own: CPU of named units under both. Opt-in: it takes hours."""

from __future__ import annotations

import json
import os
import re
import resource
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sglwheel import build, console, patching, process, source, toolchain
from sglwheel.bench import Ratio, Setting
from sglwheel.build.costs import Costs
from sglwheel.build.limits import Host
from sglwheel.errors import BuildError, UsageError
from sglwheel.pipeline import Context, Options
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
_SAMPLES = 3  # units of FA3 and of FlashMLA each
# What upstream leaves as it is but for one compiler thread, which costs memory and no CPU, and for mscclpp's
# extras, which would have to be fetched and are no kernels of the wheel.
_DEFAULTS = ("SGL_KERNEL_COMPILE_THREADS", "MSCCLPP_BUILD_PYTHON_BINDINGS", "MSCCLPP_BUILD_APPS_NCCL")


@dataclass(frozen=True)
class Command:
    """One entry of compile_commands.json."""

    target: str
    stem: str
    words: tuple[str, ...]
    directory: Path


def flags(setting: Setting) -> Iterator[Ratio]:
    """CPU of the named units with our flags, over upstream's own: all gencodes, both library variants."""
    if not os.environ.get(VARIABLE):
        raise UsageError(f"this part compiles the real upstream for hours: set {VARIABLE}=1")
    context = Context.load(setting.layout, RECIPE, Options(overrides=setting.overrides))
    ours, theirs = _commands(context, own=True), _commands(context, own=False)
    console.say(f"ours: {len(ours)} units; upstream's defaults: {len(theirs)} ({_targets(theirs)})")
    named = setting.units or (*LARGEST, *OTHERS)
    skipped: list[str] = []
    spent: list[tuple[str, float, float]] = []
    for stem in named:
        mine, others = _of(ours, stem), _of(theirs, stem)
        if not mine or not others:
            raise UsageError(f"no unit {stem} in both builds", where={"ours": str(len(mine))})
        if (why := _too_large(stem)) is not None:
            console.warn(f"{stem} is left out: {why}")
            skipped.append(stem)
            continue
        one, other = _cpu(mine, setting.scratch), _cpu(others, setting.scratch)
        spent.append((stem, one, other))
        console.detail(f"{stem}: {one:.1f} s, upstream's {other:.1f} s in {len(others)} compiles")
    if not spent:
        raise BuildError("no unit could be compiled here", where={"left out": ", ".join(skipped)})
    one, other = sum(item[1] for item in spent), sum(item[2] for item in spent)
    each = ", ".join(f"{stem} 1/{b / a:.2f}" for stem, a, b in spent)
    note = each + (f"; left out for want of memory: {', '.join(skipped)}" if skipped else "")
    complete = not setting.units and not skipped
    yield Ratio(
        f"CPU, our flags / upstream's, {len(spent)} units",
        [one / other],
        1 / 6.5 if complete else None,
        note=note,
    )
    yield _whole(setting, ours, theirs, spent)


def _whole(
    setting: Setting,
    ours: Sequence[Command],
    theirs: Sequence[Command],
    spent: Sequence[tuple[str, float, float]],
) -> Ratio:
    """The whole wheel: what both have by the ratio above, FA3 and FlashMLA by samples of their units."""
    known = Costs()
    here = sum(a for _, a, _ in spent) / sum(known.expect(f"{stem}.cu.o").seconds for stem, _, _ in spent)
    mine = here * sum(known.expect(f"{item.stem}.cu.o").seconds for item in ours)
    total = mine * sum(b for _, _, b in spent) / sum(a for _, a, _ in spent)
    notes = []
    for pattern in ("flash_ops", "flashmla"):
        units = [item for item in theirs if pattern in item.target and _is_cuda(item)]
        samples = units[:: max(1, len(units) // _SAMPLES)][:_SAMPLES]
        if not samples:
            continue
        mean = _cpu(samples, setting.scratch) / len(samples)
        total += mean * len(units)
        notes.append(f"{pattern}: {len(units)} units of {mean:.0f} s (mean of {len(samples)})")
    words = f"estimated: {mine / 3600:.2f} / {total / 3600:.2f} CPU-h here; {'; '.join(notes)}"
    return Ratio("CPU, our whole wheel / upstream's", [mine / total], 1 / 14, note=words)


def _commands(context: Context, *, own: bool) -> list[Command]:
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
    fetched = source.dependencies(patched, recipe, context.layout, context.mirrors, context.options.overrides)
    date = context.checkout.date
    listed = build.configure(recipe, patched, fetched, env, context.layout, date=date)
    return [_command(entry) for entry in json.loads(listed.read_text("utf-8"))]


def _command(entry: dict[str, str]) -> Command:
    words = tuple(shlex.split(entry["command"]))
    target = re.search(r"CMakeFiles/([^/]+)\.dir/", words[words.index("-o") + 1])
    stem = Path(entry["file"]).name.split(".")[0]
    return Command(target[1] if target else "", stem, words, Path(entry["directory"]))


def _is_cuda(item: Command) -> bool:
    return Path(item.words[0]).name == "nvcc"


def _of(commands: Sequence[Command], stem: str) -> list[Command]:
    return [item for item in commands if item.stem == stem and _is_cuda(item)]


def _targets(commands: Sequence[Command]) -> str:
    counts: dict[str, int] = {}
    for item in commands:
        counts[item.target] = counts.get(item.target, 0) + 1
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items(), key=lambda pair: -pair[1]))


def _too_large(stem: str) -> str | None:
    need, free = Costs().expect(f"{stem}.cu.o").peak, Host().memory_available() - Host().reserve()
    if need <= free:
        return None
    return f"it needs {console.format_bytes(need)}, {console.format_bytes(free)} are free"


def _cpu(commands: Sequence[Command], scratch: Path) -> float:
    """CPU seconds of all commands, one after the other."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    for item in commands:
        words = list(item.words)
        words[words.index("-o") + 1] = str(scratch / "unit.o")
        process.run(
            words, failure=BuildError, cwd=item.directory, what=f"compiling {item.stem} of {item.target}"
        )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
