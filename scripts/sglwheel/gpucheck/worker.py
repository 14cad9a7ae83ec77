"""The process that touches the GPU: one backend after the other, one JSON line when each starts and ends.

    python worker.py plan.json events.jsonl

A kernel may take the process down, or leave the GPU's context unusable: then this process ends, and whoever
started it starts another one for the rest.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
import traceback
import zlib
from pathlib import Path
from typing import Any

CONTEXT_LOST = 3
"""Exit status after an error that the CUDA context does not survive."""
# What torch says where a library has no code for this GPU, and upstream where an operator refuses it.
_NO_CODE = ("no kernel image is available", "invalid device function")


class ContextLostError(Exception):
    """Every further CUDA call of this process fails."""


def main(plan_file: str, events_file: str) -> int:
    plan = json.loads(Path(plan_file).read_text())
    with Path(events_file).open("a", buffering=1, encoding="utf-8") as events:

        def say(**event: Any) -> None:
            events.write(json.dumps(event) + "\n")

        try:
            return _run(plan, say)
        except ContextLostError:
            return CONTEXT_LOST


def _run(plan: dict[str, Any], say: Any) -> int:
    import torch

    device = plan["device"]
    if device == "cuda" and not torch.cuda.is_available():
        say(no_gpu="torch sees no GPU here")
        return 0
    from sglwheel.gpucheck import families
    from sglwheel.gpucheck.harness import Context

    say(environment=_environment(device))
    say(start="import")
    for module in plan["imports"]:
        importlib.import_module(module)
    say(end="import", status="passed", library=_libraries(plan["imports"][0]))
    capability = torch.cuda.get_device_capability() if device == "cuda" else tuple(plan["capability"])
    context = Context(device, plan["seed"], plan["namespace"], capability, plan["largest"])
    for backend in families.load():
        if backend.name in plan["done"] or (plan["only"] and backend.family not in plan["only"]):
            continue
        say(start=backend.name, family=backend.family, known=backend.runs_on(capability))
        started = time.monotonic()
        try:
            result = _judge(backend, context)
        except ContextLostError as error:
            status, detail = fatal(backend.runs_on(capability), str(error))
            say(end=backend.name, status=status, detail=detail, trials=[], seconds=0.0)
            raise
        say(end=backend.name, seconds=round(time.monotonic() - started, 2), **result)
    return 0


def fatal(known: bool, how: str) -> tuple[str, str]:
    """Status and detail of a backend that took its process or the GPU's context with it."""
    if known:
        return "failed", how
    return "unsafe", f"upstream has no code for this GPU, and does not refuse the call: {how}"


def _environment(device: str) -> dict[str, Any]:
    import torch

    found: dict[str, Any] = {"torch": torch.__version__, "cuda": torch.version.cuda, "gpu": None}
    if device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        found["gpu"] = {
            "name": properties.name,
            "capability": f"{properties.major}.{properties.minor}",
            "memory_bytes": properties.total_memory,
            "processors": properties.multi_processor_count,
        }
    return found


def _libraries(package: str) -> list[str]:
    """Libraries of the wheel's package that are mapped into this process."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    paths = {line.split(None, 5)[5].strip() for line in lines if f"/{package}/" in line and ".so" in line}
    return sorted(path[path.index(f"/{package}/") + 1 :] for path in paths)


def _judge(backend: Any, context: Any) -> dict[str, Any]:
    """Run all trials of a backend; the first that fails or is refused ends it."""
    from sglwheel.gpucheck.harness import SignatureError, perform

    missing = [name for name in backend.operators if not context.has(name)]
    if missing:
        return _result("not proven", f"the wheel does not register {', '.join(missing)}", [])
    known = backend.runs_on(context.capability)
    here = ".".join(map(str, context.capability))
    trials: list[dict[str, Any]] = []
    context.reseed(zlib.crc32(backend.name.encode()))
    try:
        for trial in backend.trials(context):
            label = trial.label.replace("torch.", "")
            judgement = perform(trial, context.device)
            trials.append({"shape": label, "error": _number(judgement.ratio), "detail": judgement.detail})
            if judgement.ratio > 1.0:
                return _wrong(backend, context, f"{label}: {judgement.detail}", trials)
    except SignatureError as error:
        return _result("not proven", str(error), trials)
    except Exception as error:
        traceback.print_exc()
        said = f"{type(error).__name__}: {error}".strip().splitlines()[0][:500]
        _demand_context(context.device, said)
        if any(text in str(error) for text in _NO_CODE):
            return _result("not proven", f"no code for compute capability {here} in this wheel", trials)
        if not known:
            return _result("not proven", f"refuses compute capability {here}: {said}", trials)
        return _wrong(backend, context, said, trials)
    if not trials:
        return _result("not proven", "no shape of it is as small as --largest asks for", trials)
    worst = max(trial["error"] for trial in trials)
    return _result("passed", f"{len(trials)} shapes, at most {worst:.2f} of the bound", trials)


def _wrong(backend: Any, context: Any, detail: str, trials: list[dict[str, Any]]) -> dict[str, Any]:
    known_fault = backend.unsafe_on(context.capability)
    if known_fault:
        return _result("unsafe", f"{known_fault} ({detail})", trials)
    return _result("failed", detail, trials)


def _demand_context(device: str, said: str) -> None:
    """Raise ContextLostError when CUDA cannot go on after an error."""
    import torch

    if device != "cuda":
        return
    try:
        torch.cuda.synchronize()
        torch.zeros(1, device=device).item()
    except RuntimeError:
        raise ContextLostError(f"{said}: the GPU's context is lost") from None


def _number(ratio: float) -> float:
    """JSON has no infinity."""
    return round(min(ratio, 1e9), 4)


def _result(status: str, detail: str, trials: list[dict[str, Any]]) -> dict[str, Any]:
    return {"status": status, "detail": detail, "trials": trials}


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1], sys.argv[2]))
