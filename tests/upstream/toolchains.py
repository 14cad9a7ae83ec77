"""Which toolchains the real series works with: docs/data/toolchains.json, and the table of it.

Opt-in and long: `python tests/upstream/toolchains.py [--compile] [--only TEXT] [--render]`, with mirrors and
SGLWHEEL_OVERRIDES as test_real.py has them, and CUDA_HOME for `system`. What is in the results is not done
again; they are written after each combination. Every axis meets one value of the others, the newest torch
every CUDA.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import partial
import tomlkit

from sglwheel import console, files, pipeline
from sglwheel.errors import SglwheelError
from sglwheel.files import Layout
from sglwheel.recipe import KernelRecipe
from sglwheel.toolchain import BuildEnv

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs/data/toolchains.json"
PAGE = ROOT / "docs/toolchains.md"
NEWEST = ("2.15.0", "cu132")
TORCHES = (("2.11.0", "cu130"), ("2.12.0", "cu130"), ("2.13.0", "cu130"), ("2.14.1", "cu130"), NEWEST)
CUDAS = ("13.0", "13.1", "13.2", "13.3", "13.4", "13.5")
CMAKES = ("3.28.4", "3.29.6", "3.30.9", "3.31.10", "4.0.3", "4.1.3", "4.2.3", "4.3.4", "4.4.5")
# Two large sources of the wheel, and one for the host compiler that includes CCCL through cutlass.
UNITS = ("fp8_gemm_kernel.cu.o", "nvfp4_scaled_mm_kernels.cu.o", "python_api.cpp.o")
ORDER = ("refused", "failed", "configured", "compiled")


@dataclass(frozen=True)
class Combination:
    """One toolchain: CUDA's release (`system`: the host's own), CMake, torch and its CUDA line."""

    cuda: str
    cmake: str = "3.31.10"
    torch: str = "2.12.0"
    line: str = "cu130"

    @property
    def name(self) -> str:
        return f"cuda-{self.cuda} cmake-{self.cmake} torch-{self.torch}-{self.line}"


def combinations() -> Iterator[Combination]:
    for cmake in CMAKES:
        yield Combination("13.0", cmake)
    for torch, line in TORCHES:
        yield Combination("13.0", torch=torch, line=line)
    yield Combination("system")
    for cuda in (*CUDAS, "system"):
        yield Combination(cuda, torch=NEWEST[0], line=NEWEST[1])
    # Those that cannot work: refused before anything is fetched for them.
    yield Combination("12.9")
    yield Combination("13.0", torch="2.10.0")
    yield Combination("13.0", torch=NEWEST[0])


def checkout(scratch: Path, one: Combination) -> Layout:
    """A checkout of our own whose cu130 has this toolchain."""
    root = scratch / one.name.replace(" ", "_")
    shutil.rmtree(root, ignore_errors=True)
    (root / "recipes").mkdir(parents=True)
    (root / "patches").symlink_to(ROOT / "patches")
    shutil.copyfile(ROOT / "recipes/cu130.lock", root / "recipes/cu130.lock")
    document: Any = tomlkit.parse((ROOT / "recipes/cu130.toml").read_text("utf-8"))
    document["torch"]["version"], document["torch"]["cuda"] = one.torch, one.line
    document["build"]["cmake-version"] = one.cmake
    if one.cuda == "system":
        document["build"]["provider"] = "system"
    else:
        document["build"]["cuda-toolkit"] = one.cuda
    (root / "recipes/cu130.toml").write_text(tomlkit.dumps(document), "utf-8")
    lock: Any = tomlkit.parse((root / "recipes/cu130.lock").read_text("utf-8"))
    lock.pop("lock", None)
    (root / "recipes/cu130.lock").write_text(tomlkit.dumps(lock), "utf-8")
    return Layout(root)


def examine(
    layout: Layout, one: Combination, overrides: Mapping[str, str], *, compiles: bool
) -> dict[str, Any]:
    """How far one toolchain comes; `result` is one of ORDER."""
    row: dict[str, Any] = {**vars(one), "result": "refused"}
    started = time.monotonic()
    try:
        context = pipeline.Context.load(layout, "cu130", pipeline.Options(overrides=overrides))
        recipe = context.recipe
        assert isinstance(recipe, KernelRecipe)
        env = context.kind.prepare()
        assert isinstance(env, BuildEnv)
        row |= {"result": "failed", "nvcc": str(env.nvcc_version), "host": env.cxx}
        patched = context.patch()
        row["patches"] = [state.name for state in patched.patches if state.state.startswith("applied")]
        invocation = partial.configured(context, env, patched, overrides)
        row |= {"result": "configured", "seconds": round(time.monotonic() - started)}
        if compiles:
            row["result"] = "failed"
            row["units"] = {unit: vars(partial.compile_unit(invocation, unit, layout)) for unit in UNITS}
            row["result"] = "compiled"
    except SglwheelError as error:
        row["why"] = f"{error.what}" + "".join(f"; {key}: {text}" for key, text in error.where.items())[:400]
    return row


def spent(row: Mapping[str, Any]) -> str:
    """What compiling the three sources took."""
    units = row.get("units", {}).values()
    if not units:
        return ""
    return "cached" if all(one["cached"] for one in units) else f"{sum(one['seconds'] for one in units):.0f}"


def render(rows: Sequence[Mapping[str, Any]]) -> str:
    """The page: a table, and the reasons of those that do not work."""
    lines = [
        "# Toolchains that cu130's series works with",
        "",
        "Generated by `python tests/upstream/toolchains.py`: do not edit. Every axis meets one value of the",
        "others, the newest torch every CUDA. *configured*: resolved, patched and configured; no source was",
        "compiled in that run. *compiled* adds `fp8_gemm_kernel.cu`, `nvfp4_scaled_mm_kernels.cu` and",
        "DeepGEMM's `python_api.cpp`, a host source that needs CCCL. Seconds are of those three, one after",
        "the other on a busy host; *cached*: the compiler cache had all three, which it has for the same",
        "command, the same bytes of every file that is read, and the same compilers alone. *system*: a",
        'toolkit that CUDA_HOME names, with `provider = "system"`.',
        "",
        "| CUDA | nvcc | CMake | torch | result | s | patches that were needed |",
        "|---|---|---|---|---|---:|---|",
    ]
    notes: list[str] = []
    for row in rows:
        cells = [
            row["cuda"],
            row.get("nvcc", ""),
            row["cmake"],
            f"{row['torch']} {row['line']}",
            row["result"],
            spent(row),
        ]
        lines.append("| " + " | ".join((*cells, ", ".join(row.get("patches", [])))) + " |")
        if "why" in row:
            notes.append(f"- CUDA {row['cuda']}, CMake {row['cmake']}, torch {row['torch']}: {row['why']}")
    hosts = sorted({row["host"] for row in rows if "host" in row})
    lines += ["", f"Host compiler: {', '.join(hosts)}."]
    if notes:
        lines += ["", "## Not", "", *notes]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--compile", action="store_true", help="three sources each: 16 GB and minutes")
    parser.add_argument("--only", default="", help="combinations whose name holds this text")
    parser.add_argument("--scratch", type=Path, default=ROOT / ".work/toolchains")
    parser.add_argument("--render", action="store_true", help="write the page from the results, run nothing")
    options = parser.parse_args()
    rows: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    overrides = dict(text.split("=", 1) for text in os.environ.get("SGLWHEEL_OVERRIDES", "").split())
    for one in dict.fromkeys(combinations()):
        known = rows.get(one.name, {}).get("result")
        done = ("refused", "compiled") if options.compile else ORDER[:1] + ORDER[2:]
        if options.render or options.only not in one.name or known in done:
            continue
        layout = checkout(options.scratch, one)
        with console.step(one.name):
            rows[one.name] = examine(layout, one, overrides, compiles=options.compile)
            console.detail(f"{rows[one.name]['result']} {rows[one.name].get('why', '')}")
        files.write_atomic(RESULTS, json.dumps(rows, indent=1) + "\n")
        shutil.rmtree(layout.root, ignore_errors=True)
    every = dict.fromkeys(combinations())
    listed = [rows.get(one.name, {**vars(one), "result": "not run"}) for one in every]
    files.write_atomic(PAGE, render(listed))


if __name__ == "__main__":
    sys.exit(main())
