"""Check on this GPU what an installed kernel wheel computes.

    python gpu-check.pyz --wheel sgl_kernel-….whl -o report.json

Run it with the Python of the environment that the wheel is installed in; it needs torch and the wheel, and
nothing else. Every family of operators is compared with float64 on fresh random inputs. The report names what
passed, what is unsafe and what this GPU cannot prove; `sglwheel wheelhouse promote` takes it. Exit status:
0 all that can be proven here is right, 8 something is wrong, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from sglwheel.gpucheck import identity, report
from sglwheel.gpucheck.worker import CONTEXT_LOST, fatal

_START = (
    "import sys; sys.path.insert(0, sys.argv[1]); from sglwheel.gpucheck.worker import main; "
    "sys.exit(main(*sys.argv[2:]))"
)
_MOST_RESTARTS = 40


def check(
    *,
    imports: list[str],
    namespace: str,
    wheel_sha256: str | None,
    capabilities: list[str],
    seed: int,
    only: list[str],
    timeout: float,
    device: str = "cuda",
    capability: tuple[int, int] = (0, 0),
    largest: int | None = None,
) -> dict[str, Any]:
    """Run all backends in processes of their own, and return the report."""
    started = time.monotonic()
    events: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as scratch:
        for attempt in range(_MOST_RESTARTS):
            left = timeout - (time.monotonic() - started)
            plan = {
                "imports": imports,
                "namespace": namespace,
                "seed": seed,
                "only": only,
                "device": device,
                "capability": list(capability),
                "largest": largest,
                "done": [event["end"] for event in events if "end" in event],
            }
            fresh, how = _work(Path(scratch), attempt, plan, max(left, 1.0))
            events += fresh
            if how is None:
                break
            running = next((event for event in reversed(fresh) if "start" in event), None)
            if running is None or running["start"] == "import":
                events.append({"broken": f"{running['start'] if running else 'start'}: {how}"})
                break
            if "end" not in fresh[-1]:
                status, detail = fatal(running["known"], how)
                said = {"status": status, "detail": detail, "trials": [], "seconds": 0.0}
                events.append({"end": running["start"], **said})
            if time.monotonic() - started > timeout:
                events.append({"broken": f"no end after {timeout:g} s"})
                break
    seconds = time.monotonic() - started
    return report.make(
        events, wheel_sha256=wheel_sha256, capabilities=capabilities, seed=seed, seconds=seconds
    )


def _work(
    scratch: Path, attempt: int, plan: dict[str, Any], timeout: float
) -> tuple[list[dict[str, Any]], str | None]:
    """One worker: its events, and how it ended where that was not well."""
    control, events = scratch / f"plan-{attempt}.json", scratch / f"events-{attempt}.jsonl"
    control.write_text(json.dumps(plan))
    empty = scratch / "empty"
    empty.mkdir(exist_ok=True)
    command = [sys.executable, "-B", "-c", _START, _home(), str(control), str(events)]
    try:
        done = subprocess.run(
            command, cwd=empty, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=timeout, check=False
        )
        output, status = done.stdout.decode("utf-8", "replace"), done.returncode
    except subprocess.TimeoutExpired as error:
        output, status = (error.stdout or b"").decode("utf-8", "replace"), None
    lines = events.read_text(encoding="utf-8").splitlines() if events.is_file() else []
    found = [json.loads(line) for line in lines if line.endswith("}")]
    if status == 0 or (status == CONTEXT_LOST and found and "end" in found[-1]):
        return found, None if status == 0 else "the GPU's context is lost"
    if status is None:
        how = f"no end after {timeout:.0f} s"
    elif status < 0:
        how = f"the process was killed by {signal.Signals(-status).name}"
    else:
        how = f"the process ended with {status}"
    last = output.strip().splitlines()[-1:]
    return found, f"{how}: {last[0][:400]}" if last else how


def _capability(text: str) -> tuple[int, int]:
    major, _, minor = text.partition(".")
    return int(major), int(minor or 0)


def _home() -> str:
    """What a worker needs on its path to find this program: a directory, or the archive."""
    return str(Path(__file__).resolve().parents[2])


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--wheel", type=Path, help="the wheel file: hashed, and compared with what is installed"
    )
    parser.add_argument("--wheel-sha256", help="its hash, where the file is not at hand")
    parser.add_argument(
        "--capabilities", nargs="*", help="what it was built for, such as 12.0 (its provenance)"
    )
    parser.add_argument("--imports", nargs="+", default=["sgl_kernel"])
    parser.add_argument("--namespace", default="sgl_kernel", help="of its operators in torch.ops")
    parser.add_argument("--only", nargs="*", default=[], metavar="FAMILY", help="only these families")
    parser.add_argument("--seed", type=int, help="repeat a report's random inputs")
    parser.add_argument("--timeout", type=float, default=1800.0, metavar="SECONDS")
    parser.add_argument("--largest", type=int, help="leave out shapes whose sizes multiply to more")
    parser.add_argument("--device", default="cuda", help="cpu: try this suite itself, on a stand-in package")
    parser.add_argument("--as-capability", default="0.0", help="with --device cpu: what the stand-in plays")
    parser.add_argument("-o", "--output", type=Path, help="where to write the report (JSON)")
    parser.add_argument("--json", action="store_true", help="the report instead of lines, on stdout")
    options = parser.parse_args(arguments)
    sha256, capabilities = options.wheel_sha256, options.capabilities
    if options.wheel is not None:
        try:
            wheel = identity.read(options.wheel)
        except identity.WheelError as error:
            print(f"error: {error}", file=sys.stderr)
            return 8
        sha256, capabilities = wheel.sha256, capabilities if capabilities is not None else wheel.capabilities
    made = check(
        imports=options.imports,
        namespace=options.namespace,
        wheel_sha256=sha256,
        capabilities=capabilities or [],
        seed=options.seed if options.seed is not None else secrets.randbelow(2**31),
        only=options.only,
        timeout=options.timeout,
        device=options.device,
        capability=_capability(options.as_capability),
        largest=options.largest,
    )
    text = json.dumps(made, indent=1)
    if options.output is not None:
        torn = options.output.with_name(f"{options.output.name}.tmp{os.getpid()}")
        torn.write_text(text + "\n")
        torn.replace(options.output)
    print(text if options.json else "\n".join(report.render(made)))
    return 0 if made["ok"] else 8


if __name__ == "__main__":
    sys.exit(main())
