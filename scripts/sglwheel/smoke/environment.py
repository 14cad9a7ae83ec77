"""A fresh environment that holds one wheel, its torch and nothing else, and what runs in it."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from sglwheel import files, process
from sglwheel.errors import SmokeError
from sglwheel.recipe import Recipe
from sglwheel.smoke import plans
from sglwheel.smoke.beside import Beside
from sglwheel.toolchain import packages, uvtool
from sglwheel.toolchain.torchpin import InstalledTorch

CHILD_SECONDS = 600.0


class Environment(Protocol):
    """What the smoke test takes from the build environment: a Python, a torch, where uv finds it, a stub."""

    @property
    def python(self) -> Path: ...
    @property
    def torch(self) -> InstalledTorch: ...
    @property
    def stub(self) -> Path | None: ...
    @property
    def lock(self) -> packages.Lock: ...
    @property
    def sources(self) -> tuple[str, ...]: ...


@contextmanager
def scratch(parent: Path) -> Iterator[Path]:
    """A directory that is gone afterwards: a venv with torch has five gigabytes of hard links."""
    directory = Path(tempfile.mkdtemp(prefix="smoke-", dir=parent))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def install(
    wheel: Path, recipe: Recipe, env: Environment, directory: Path, log: Path
) -> tuple[Path, str | None]:
    """Make the environment; returns its Python, and what uv had against the wheel."""
    venv = directory / "venv"
    if isinstance(env, Beside):
        return venv / "bin" / "python", env.install(wheel, venv, log)
    process.run(
        [uvtool.uv_binary(), "venv", "--no-config", "--no-project", "--python", env.python, venv],
        failure=SmokeError,
        env=uvtool.environment(),
        what="making the smoke test's environment",
    )
    python = venv / "bin" / "python"
    # The versions that the build environment has, so that a new release of a dependency is not what is
    # tested.
    pinned = directory / "constraints.txt"
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
    argv += env.sources
    for wanted in plans.installs(recipe, f"torch=={env.torch.version}", wheel):
        done = process.stream([*argv, *wanted], failure=SmokeError, log=log, env=uvtool.environment())
        if done.returncode:
            return python, f"uv refuses it: {done.stdout.strip()[-1500:]}"
    return python, None


def variables(python: Path, directory: Path) -> dict[str, str]:
    """An environment that names nothing of this host."""
    return {
        "PATH": f"{python.parent}:/usr/bin:/bin",
        "HOME": str(directory),
        "TMPDIR": str(directory),
        "LANG": "C.UTF-8",
        # Compiled kernels, if the package makes any, are not to outlive the test.
        "XDG_CACHE_HOME": str(directory / "cache"),
        **{key: os.environ[key] for key in ("CUDA_VISIBLE_DEVICES",) if key in os.environ},
    }


def child(
    python: Path, plan: Mapping[str, Any], env: Environment, directory: Path, log: Path
) -> list[dict[str, Any]]:
    """Run the child in an empty directory; its events, and how it ended where that was not well.

    A check that ends the process costs itself only: the others are tried again without it.
    """
    empty, control = directory / "empty", directory / "control"
    empty.mkdir()
    control.mkdir()
    program = control / "smoke_child.py"
    # Copies: beside the originals, sglwheel's own modules would shadow the standard library's.
    for name in (program.name, "smoke_operators.py"):
        shutil.copyfile(Path(__file__).with_name(name), control / name)
    given = variables(python, directory)
    if env.stub is not None and not has_driver():
        stub = env.stub / "libcuda.so.1" if env.stub.is_dir() else env.stub
        given |= {"LD_PRELOAD": str(stub), "SGLWHEEL_DRIVER_STUB": "1"}
    checks, ended = list(plan["checks"]), list[dict[str, Any]]()
    while True:
        files.write_atomic(control / "plan.json", json.dumps({**plan, "checks": checks}))
        found = _attempt([python, "-I", "-B", program, control / "plan.json"], control, empty, given, log)
        last = next((event["start"] for event in reversed(found[:-1]) if "start" in event), None)
        rest = [check for check in checks if check[0] != last]
        if "ended" not in found[-1] or len(rest) == len(checks):
            return ended + found
        ended += [{"start": last}, found[-1]]
        checks = rest


def _attempt(
    argv: list[process.Argument], control: Path, empty: Path, given: Mapping[str, str], log: Path
) -> list[dict[str, Any]]:
    """One run of the child: its events, the last one `ended` where it did not come to its end."""
    events = control / "events.jsonl"
    events.unlink(missing_ok=True)
    try:
        done = process.run(
            [*argv, events],
            failure=SmokeError,
            cwd=empty,
            env=given,
            timeout=CHILD_SECONDS,
            accept=range(-64, 256),
            what="the smoke test's child",
        )
        how = process.describe_status(done.returncode) if done.returncode else ""
        output = done.stdout + done.stderr
    except SmokeError as error:
        how, output = error.what, ""
    with log.open("a", encoding="utf-8", errors="replace") as sink:
        sink.write(output)
    lines = events.read_text(encoding="utf-8").splitlines() if events.is_file() else []
    found = [json.loads(line) for line in lines]
    if how or not found or "start" in found[-1]:
        found.append({"ended": how or "without a result", "says": output.strip()[-1000:]})
    return found


def has_driver() -> bool:
    """Whether the NVIDIA driver's library is on this host."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True
