"""Use a wheel where neither the source tree nor this host can help it: fresh environment, empty directory, no
driver.
"""

from __future__ import annotations

import hashlib
import time
from pathlib import Path

from sglwheel import files, programs
from sglwheel.files import Layout
from sglwheel.inspect import Expectation, inspect, symbols
from sglwheel.recipe import Recipe
from sglwheel.smoke import environment, gpu, judging, plans
from sglwheel.smoke.beside import Beside
from sglwheel.smoke.environment import Environment
from sglwheel.smoke.report import Check, SmokeReport, Status

__all__ = ["Beside", "Check", "Environment", "SmokeReport", "Status", "run", "version"]


def version() -> str:
    """Identity of the tests themselves: a report of other tests says nothing about these."""
    parts = [path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py"))]
    return hashlib.sha256(b"".join((*parts, programs.packed(programs.GPU_CHECK)))).hexdigest()


def run(
    wheel: Path, recipe: Recipe, env: Environment, layout: Layout, *, gpu_mode: gpu.Mode = "auto"
) -> SmokeReport:
    """Install a wheel with exactly its torch and nothing else, and see whether it works.

    Where there is a GPU its kernels are held against float64; `gpu_mode` "required" makes it a failure that
    there is none. What the wheel does wrong is a failed check. Raises SmokeError when the test itself cannot
    be made.
    """
    started = time.monotonic()
    log = layout.work / recipe.id / "smoke.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.unlink(missing_ok=True)
    with environment.scratch(log.parent) as directory:
        python, problem = environment.install(wheel, recipe, env, directory, log)
        if problem is not None:
            return SmokeReport(
                files.sha256(wheel),
                env.torch.full_version,
                (Check("install", "failed", problem),),
                time.monotonic() - started,
                log,
            )
        site = next((directory / "venv").glob("lib/python3*/site-packages"))
        beside = env if isinstance(env, Beside) else None
        torch = symbols.installed(beside.torch.path if beside else site / "torch")
        facts = inspect(wheel, expect=Expectation.of(recipe), torch=torch)
        checks = [Check("install", "passed", f"beside torch {torch.label}")]
        if beside:
            checks.append(beside.judge(facts))
        if facts.libraries:
            checks.append(judging.torch_symbols(facts))
        events = environment.child(python, {"checks": plans.steps(facts, recipe)}, env, directory, log)
        checks += judging.judge(events, facts, recipe, site)
        said, report = gpu.suite(python, facts, recipe, directory, log, gpu_mode)
        checks += said
    seconds = time.monotonic() - started
    return SmokeReport(facts.wheel_sha256, torch.label, tuple(checks), seconds, log, report)
