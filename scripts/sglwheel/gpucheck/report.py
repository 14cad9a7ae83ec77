"""What a GPU said about a wheel: one value for scripts, lines for people."""

from __future__ import annotations

from typing import Any

STATUSES = ("failed", "unsafe", "passed", "not proven")


def make(
    events: list[dict[str, Any]],
    *,
    wheel_sha256: str | None,
    capabilities: list[str],
    seed: int,
    seconds: float,
) -> dict[str, Any]:
    """Put the events of one or several workers together.

    `ok`: nothing failed and something passed. `gpu_checked`: besides, the GPU is one that the wheel was built
    for; `sglwheel wheelhouse promote` asks for both.
    """
    environment: dict[str, Any] = next(
        (event["environment"] for event in events if "environment" in event), {}
    )
    library: list[str] = next((event["library"] for event in events if event.get("library")), [])
    families: dict[str, dict[str, Any]] = {}
    running: dict[str, str] = {}
    for event in events:
        if "start" in event:
            running[event["start"]] = event.get("family", "start")
        elif "end" in event and event["end"] != "import":
            family = families.setdefault(running[event["end"]], {})
            family[event["end"]] = {key: event[key] for key in ("status", "detail", "trials", "seconds")}
    summary = {
        name: {"status": _worst(each["status"] for each in backends.values()), "backends": backends}
        for name, backends in families.items()
    }
    statuses = [family["status"] for family in summary.values()]
    gpu = environment.get("gpu")
    said = [event["no_gpu"] for event in events if "no_gpu" in event]
    broken = [event["broken"] for event in events if "broken" in event]
    ok = not broken and "failed" not in statuses and "passed" in statuses
    own = gpu is not None and gpu["capability"] in capabilities
    # A wheel for another GPU need not even import here: that proves nothing about it.
    foreign = gpu is not None and not own and not families and bool(broken)
    overall = "passed" if ok and own else "failed" if not ok and not foreign and gpu else "skipped"
    return {
        "schema": 1,
        "wheel_sha256": wheel_sha256,
        "ok": ok,
        "gpu_checked": ok and own,
        "gpu": gpu,
        "built_for": capabilities,
        "torch": environment.get("torch"),
        "library": library,
        "seed": seed,
        "seconds": round(seconds, 1),
        "problems": [*said, *broken],
        "fp4": _fp4(summary),
        "families": summary,
        # What a wheelhouse lists of every report.
        "checks": [
            {
                "name": f"gpu {name}",
                "status": "skipped" if family["status"] == "not proven" else family["status"],
            }
            for name, family in summary.items()
        ]
        + [{"name": "gpu", "status": overall}],
    }


def _worst(statuses: Any) -> str:
    """Of a family: a failure counts, then an unsafe backend; `passed` where at least one passed."""
    present = set(statuses)
    return next((status for status in STATUSES if status in present), "not proven")


def _fp4(families: dict[str, dict[str, Any]]) -> dict[str, list[str]]:
    """Which FP4 path may be used on this GPU."""
    paths: dict[str, list[str]] = {"safe": [], "unsafe": [], "not proven": []}
    for name, family in families.items():
        if name.startswith("FP4"):
            for backend, result in family["backends"].items():
                word = {"passed": "safe", "not proven": "not proven"}.get(result["status"], "unsafe")
                paths[word].append(backend)
    return paths


def render(report: dict[str, Any]) -> list[str]:
    """For people: every backend, then the verdict."""
    gpu = report["gpu"]
    lines = [
        f"{gpu['name']}, compute capability {gpu['capability']}" if gpu else "no GPU",
        f"torch {report['torch']}, seed {report['seed']}, {', '.join(report['library']) or 'no library'}",
    ]
    for name, family in report["families"].items():
        lines.append("")
        lines.append(name)
        for backend, result in family["backends"].items():
            lines.append(f"  {result['status']:<10}  {backend}: {result['detail']}")
    lines.append("")
    for word, backends in report["fp4"].items():
        if backends:
            lines.append(f"FP4 {word}: {', '.join(backends)}")
    lines += [f"problem: {text}" for text in report["problems"]]
    lines.append(verdict(report))
    return lines


def verdict(report: dict[str, Any]) -> str:
    """One sentence."""
    gpu, families = report["gpu"], report["families"]
    count = {status: [n for n, f in families.items() if f["status"] == status] for status in STATUSES}
    if gpu is None:
        return "not proven: " + ("; ".join(report["problems"]) or "no GPU")
    if not families and gpu["capability"] not in report["built_for"]:
        built = ", ".join(report["built_for"]) or "no GPU that it names"
        return f"not proven: {gpu['name']} is {gpu['capability']}, the wheel is built for {built}"
    if not report["ok"]:
        what = ", ".join(count["failed"]) or "; ".join(report["problems"]) or "nothing ran"
        return f"failed on {gpu['name']}: {what}"
    text = f"passed on {gpu['name']}: {', '.join(count['passed'])}"
    if count["unsafe"]:
        text += f"; unsafe here: {', '.join(count['unsafe'])}"
    if count["not proven"]:
        text += f"; not proven here: {', '.join(count['not proven'])}"
    if not report["gpu_checked"]:
        built = ", ".join(report["built_for"]) or "no GPU that it names"
        text += f" (the wheel is built for {built}: this proves nothing about that)"
    return text
