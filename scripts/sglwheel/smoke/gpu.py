"""The GPU suite, run in the smoke test's own environment."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from sglwheel import process, programs
from sglwheel.errors import SmokeError
from sglwheel.gpucheck.report import verdict
from sglwheel.inspect import Inspection
from sglwheel.recipe import KernelRecipe, Recipe
from sglwheel.smoke import environment
from sglwheel.smoke.report import Check, Status

Mode = Literal["auto", "required"]
_SECONDS = 1800.0
_WORDS: Mapping[str, Status] = {"passed": "passed", "failed": "failed"}


def suite(
    python: Path, facts: Inspection, recipe: Recipe, directory: Path, log: Path, mode: Mode
) -> tuple[list[Check], dict[str, Any] | None]:
    """Checks of every family and one named `gpu`, and the suite's own report where it ran.

    `gpu` passes when the GPU is one that the recipe builds for and nothing failed on it.
    """
    if not isinstance(recipe, KernelRecipe):
        return [], None
    if not environment.has_driver():
        return [_verdict("skipped", "no GPU on this host", mode)], None
    report = _run(python, facts, recipe, directory, log)
    if report.get("gpu") is None:
        return [_verdict("skipped", "; ".join(report["problems"]) or "no GPU on this host", mode)], report
    families = [
        Check(f"gpu {name}", _WORDS.get(family["status"], "skipped"), _detail(family))
        for name, family in report["families"].items()
    ]
    (overall,) = (each["status"] for each in report["checks"] if each["name"] == "gpu")
    return [*families, _verdict(overall, verdict(report), mode)], report


def _verdict(status: Status, detail: str, mode: Mode) -> Check:
    return Check("gpu", "failed" if mode == "required" and status == "skipped" else status, detail)


def _detail(family: Mapping[str, Any]) -> str:
    return "; ".join(
        name if result["status"] == "passed" else f"{name} {result['status']}: {result['detail']}"
        for name, result in family["backends"].items()
    )


def _run(python: Path, facts: Inspection, recipe: KernelRecipe, directory: Path, log: Path) -> dict[str, Any]:
    program, output = directory / programs.GPU_CHECK, directory / "gpu.json"
    program.write_bytes(programs.packed(programs.GPU_CHECK))
    spaces = {name.split("::")[0] for name in (*recipe.operators, *facts.operators)} - {"?"}
    package = recipe.smoke.imports[0].split(".")[0]
    capabilities = [".".join(map(str, arch.capability)) for arch in recipe.build.architectures]
    done = process.run(
        [
            *(python, "-I", "-B", program),
            *("--wheel-sha256", facts.wheel_sha256),
            *("--imports", package),
            *("--namespace", package if package in spaces else min(spaces, default=package)),
            *("--capabilities", *capabilities),
            *("--timeout", f"{_SECONDS:g}"),
            *("-o", output),
        ],
        failure=SmokeError,
        cwd=directory / "empty",
        env=environment.variables(python, directory),
        timeout=_SECONDS + 60,
        accept=range(-64, 256),
        what="the GPU suite",
    )
    with log.open("a", encoding="utf-8", errors="replace") as sink:
        sink.write(done.stdout + done.stderr)
    try:
        return dict(json.loads(output.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise SmokeError(
            "the GPU suite wrote no report", log=log, where={"says": done.stderr[-500:]}
        ) from error
