"""Use a wheel where neither the source tree nor this host can help it: fresh environment, empty directory, no
driver.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from sglwheel import files, process
from sglwheel.errors import SmokeError
from sglwheel.files import Layout
from sglwheel.inspect import Expectation, Inspection, inspect, sonames, symbols
from sglwheel.recipe import Recipe
from sglwheel.smoke import plans
from sglwheel.toolchain import packages, uvtool
from sglwheel.toolchain.torchpin import InstalledTorch

Status = Literal["passed", "failed", "skipped"]

_INSTALL_SECONDS = 1800.0
_CHILD_SECONDS = 600.0


class Environment(Protocol):
    """What the smoke test takes from the build environment: a Python, which torch, and a driver stub."""

    @property
    def python(self) -> Path: ...
    @property
    def torch(self) -> InstalledTorch: ...
    @property
    def stub(self) -> Path | None: ...
    @property
    def lock(self) -> packages.Lock: ...


@dataclass(frozen=True)
class Check:
    """One thing that was tried. `skipped` says why it proves nothing; it is not `passed`."""

    name: str
    status: Status
    detail: str


@dataclass(frozen=True)
class SmokeReport:
    """What came of smoke-testing one wheel with one torch."""

    wheel_sha256: str
    torch: str
    checks: tuple[Check, ...]
    seconds: float
    log: Path

    @property
    def ok(self) -> bool:
        """Nothing failed, and something passed."""
        statuses = {check.status for check in self.checks}
        return "failed" not in statuses and "passed" in statuses

    @property
    def gpu_checked(self) -> bool:
        """A GPU took part and agreed."""
        return any(check.name == "gpu" and check.status == "passed" for check in self.checks)

    @classmethod
    def from_json(cls, data: Mapping[str, Any], *, log: Path) -> SmokeReport:
        """Read back what `to_json` wrote. Raises KeyError or TypeError for another form."""
        checks = tuple(Check(**check) for check in data["checks"])
        return cls(data["wheel_sha256"], data["torch"], checks, data["seconds"], log)

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": 1,
            "wheel_sha256": self.wheel_sha256,
            "torch": self.torch,
            "ok": self.ok,
            "gpu_checked": self.gpu_checked,
            "seconds": round(self.seconds, 1),
            "checks": [
                {"name": check.name, "status": check.status, "detail": check.detail} for check in self.checks
            ],
        }


def version() -> str:
    """Identity of the tests themselves: a report of other tests says nothing about these."""
    here = Path(__file__)
    parts = (here, here.with_name("plans.py"), here.with_name("smoke_child.py"))
    return hashlib.sha256(b"".join(part.read_bytes() for part in parts)).hexdigest()


def run(wheel: Path, recipe: Recipe, env: Environment, layout: Layout) -> SmokeReport:
    """Install a wheel with exactly its torch and nothing else, and see whether it works.

    What the wheel does wrong is a failed check. Raises SmokeError when the test itself cannot be made.
    """
    started = time.monotonic()
    log = layout.work / recipe.id / "smoke.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.unlink(missing_ok=True)
    with _scratch(log.parent) as scratch:
        python, problem = _install(wheel, recipe, env, scratch, log)
        if problem is not None:
            checks = [Check("install", "failed", problem)]
            return SmokeReport(
                files.sha256(wheel), env.torch.full_version, tuple(checks), time.monotonic() - started, log
            )
        site = next((scratch / "venv").glob("lib/python3*/site-packages"))
        torch = symbols.installed(site / "torch")
        facts = inspect(wheel, expect=Expectation.of(recipe), torch=torch)
        checks = [Check("install", "passed", f"beside torch {torch.label}")]
        if facts.libraries:
            checks.append(_torch_symbols(facts))
        events = _child(python, {"checks": plans.steps(facts, recipe)}, env, scratch, log)
        checks += _judge(events, facts, recipe, site)
    return SmokeReport(facts.wheel_sha256, torch.label, tuple(checks), time.monotonic() - started, log)


@contextmanager
def _scratch(parent: Path) -> Iterator[Path]:
    """A directory that is gone afterwards: a venv with torch has five gigabytes of hard links."""
    directory = Path(tempfile.mkdtemp(prefix="smoke-", dir=parent))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _install(
    wheel: Path, recipe: Recipe, env: Environment, scratch: Path, log: Path
) -> tuple[Path, str | None]:
    """Make the environment; returns its Python, and what uv had against the wheel."""
    venv = scratch / "venv"
    process.run(
        [uvtool.uv_binary(), "venv", "--no-config", "--no-project", "--python", env.python, venv],
        failure=SmokeError,
        env=uvtool.environment(),
        what="making the smoke test's environment",
    )
    python = venv / "bin" / "python"
    # The versions that the build environment has, so that a new release of a dependency is not what is
    # tested.
    pinned = scratch / "constraints.txt"
    files.write_atomic(
        pinned,
        "".join(
            f"{package.name}=={package.version}" + (f" ; {package.marker}" if package.marker else "") + "\n"
            for package in env.lock.pins.packages
        ),
    )
    argv: list[str | Path] = [
        uvtool.uv_binary(),
        "pip",
        "install",
        "--python",
        python,
        "--no-python-downloads",
        "--only-binary",
        ":all:",
    ]
    argv += ["--constraint", pinned]
    argv += ["--index", recipe.torch.index_url] if recipe.torch.index_url else []
    for wanted in plans.installs(recipe, f"torch=={env.torch.version}", wheel):
        done = process.stream([*argv, *wanted], failure=SmokeError, log=log, env=uvtool.environment())
        if done.returncode:
            return python, f"uv refuses it: {done.stdout.strip()[-1500:]}"
    return python, None


def _torch_symbols(facts: Inspection) -> Check:
    """The torch that is installed, against what the wheel asks of it."""
    if facts.causes:
        text = "; ".join(cause.text for cause in facts.causes)
        return Check("torch symbols", "failed", f"not exported by torch {facts.torch}: {text}")
    return Check("torch symbols", "passed", f"all exported by torch {facts.torch}")


def _child(
    python: Path, plan: Mapping[str, Any], env: Environment, scratch: Path, log: Path
) -> list[dict[str, Any]]:
    """Run the child in an empty directory, with an environment that names nothing of this host."""
    empty, control = scratch / "empty", scratch / "control"
    empty.mkdir()
    control.mkdir()
    program = control / "smoke_child.py"
    # A copy: beside the original, sglwheel's own modules would shadow the standard library's.
    shutil.copyfile(Path(__file__).with_name("smoke_child.py"), program)
    files.write_atomic(control / "plan.json", json.dumps(plan))
    events = control / "events.jsonl"
    variables = {
        "PATH": f"{python.parent}:/usr/bin:/bin",
        "HOME": str(scratch),
        "TMPDIR": str(scratch),
        "LANG": "C.UTF-8",
        # Compiled kernels, if the package makes any, are not to outlive the test.
        "XDG_CACHE_HOME": str(scratch / "cache"),
        **{key: os.environ[key] for key in ("CUDA_VISIBLE_DEVICES",) if key in os.environ},
    }
    if env.stub is not None and not _has_driver():
        stub = env.stub / "libcuda.so.1" if env.stub.is_dir() else env.stub
        variables |= {"LD_PRELOAD": str(stub), "SGLWHEEL_DRIVER_STUB": "1"}
    try:
        ended = process.run(
            [python, "-I", program, control / "plan.json", events],
            failure=SmokeError,
            cwd=empty,
            env=variables,
            timeout=_CHILD_SECONDS,
            accept=range(-64, 256),
            what="the smoke test's child",
        )
        how = process.describe_status(ended.returncode) if ended.returncode else ""
        output = ended.stdout + ended.stderr
    except SmokeError as error:
        how, output = error.what, ""
    with log.open("a", encoding="utf-8", errors="replace") as sink:
        sink.write(output)
    lines = events.read_text(encoding="utf-8").splitlines() if events.is_file() else []
    found = [json.loads(line) for line in lines]
    if how or not found or "start" in found[-1]:
        found.append({"ended": how or "without a result", "says": output.strip()[-1000:]})
    return found


def _has_driver() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def _judge(events: list[dict[str, Any]], facts: Inspection, recipe: Recipe, site: Path) -> list[Check]:
    checks: list[Check] = []
    running: str | None = None
    for event in events:
        if "start" in event:
            running = event["start"]
        elif "ended" in event:
            says = f": {event['says']}" if event["says"] else ""
            checks.append(Check(running or "start", "failed", f"the process ended ({event['ended']}){says}"))
        else:
            checks.append(_interpret(event, facts, recipe, site))
            running = None
    return checks


def _interpret(event: Mapping[str, Any], facts: Inspection, recipe: Recipe, site: Path) -> Check:
    name, status, detail, data = event["name"], event["status"], event["detail"], event["data"]
    if name == "libraries" and data:
        lines = []
        for soname, error in sorted(data.items()):
            users = ", ".join(library.path for library in facts.libraries if soname in library.needed)
            package = sonames.package_for(soname)
            remedy = f"install {package}" if package else error
            lines.append(f"{soname} is missing, needed by {users}: {remedy}")
        return Check(name, status, "; ".join(lines))
    if name == "load" and data:
        return Check(
            name, status, "; ".join(f"{library}: {error}" for library, error in sorted(data.items()))
        )
    if name == "operators" and status == "passed":
        return _operators(data, detail, facts, recipe, site)
    return Check(name, status, detail)


def _operators(data: Mapping[str, Any], detail: str, facts: Inspection, recipe: Recipe, site: Path) -> Check:
    """Registered = what the recipe names and what was read from the libraries that are loaded."""
    registered = set(data["registered"])
    short = {name.split("::")[1].split(".")[0] for name in registered}
    mapped = {os.path.realpath(path) for path in data["mapped"]}
    problems = [f"{name} is not registered" for name in recipe.operators if name not in registered]
    problems += [
        f"{name} is registered, and should be absent"
        for name in recipe.absent_operators
        if name in registered
    ]
    static = 0
    for library in facts.libraries:
        if os.path.realpath(site / library.path) not in mapped:
            continue
        names = facts.operators_by_library.get(library.path, ())
        static += len(names)
        problems += [
            f"{library.path} has a schema of {name}, but does not register it"
            for name in names
            if name not in registered and not (name.startswith("?::") and name[3:].split(".")[0] in short)
        ]
    if problems:
        return Check("operators", "failed", "; ".join(problems[:20]))
    return Check("operators", "passed", f"{detail}, {static} of them read from the libraries before")
