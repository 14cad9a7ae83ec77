"""Sessions only. Each calls one command of the tool, whose exit code becomes nox's own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import nox

nox.needs_version = ">=2025.2.9"
nox.options.sessions = ["check"]

HERE = Path(__file__).parent
RECIPES = sorted(
    path.stem for path in (HERE / "recipes").glob("*.toml") if not path.name.startswith("pylock.")
)
VERBS = {
    "recipes": "List the recipes and what they build.",
    "patch": "Apply a recipe's series and say each patch's state: -- cu130 [--all]",
    "export": "Write a series that was edited back: -- cu130",
    "drift": "Say when and why patches changed state upstream: -- cu130 [--from A] [--to B]",
    "rebase": "Carry a series to another upstream commit: -- cu130 --to COMMIT",
    "inspect": "Explain any wheel: -- path/to.whl [--torch 2.12.0] [--recipe cu130]",
    "timeline": "Say where a build's time went: -- cu130 [-o timeline.html | -o trace.json]",
    "schema": "Print the JSON schema of recipes.",
    "smoke": "Import a wheel in a fresh environment: -- path/to.whl --recipe cu130 [--gpu]",
    "install-check": "Install a published wheel with its printed line: -- <wheel name>",
    "publish": "Check and publish a wheel that was built elsewhere: -- path/to.whl --recipe cu130",
    "wheelhouse": "List, promote, yank, verify, clean, copy, serve published wheels: -- list",
    "lock": "Write or check the locks: -- [cu130] [--check | --upgrade]",
    "vendor": "Bundle all that a recipe takes from elsewhere: -- cu130 -o bundle",
    "store": "Sizes of the stores, and cleaning up: -- size | gc [--dry-run] [--days 30]",
    "torch": "List torch builds: -- list [--recipe cu130 | --cuda cu130]",
    "pin": "Choose another torch: -- cu130 --torch nightly | nightly:2026-03-07 | 2.12.0",
    "doctor": "Say what a host lacks: -- [--recipe cu130] | --role node [--python VENV]",
}


def run(session: nox.Session, *command: str) -> None:
    """Run a command in the project's environment and end with its exit code, not with nox's 1."""
    uv = os.environ.get("UV", "uv")
    argv = [uv, "run", "--locked", "--quiet", "--project", str(HERE), *command, *session.posargs]
    try:
        child = subprocess.Popen(argv, cwd=HERE)
    except FileNotFoundError:
        session.error("uv is missing: https://docs.astral.sh/uv/ (pip install uv)")
    # Ctrl-C reaches the whole process group: the tool winds down by itself, nox only waits for it.
    ours = signal.signal(signal.SIGINT, signal.SIG_IGN)
    term = signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    try:
        code = child.wait()
    finally:
        signal.signal(signal.SIGINT, ours)
        signal.signal(signal.SIGTERM, term)
    if code:
        session.warn(f"{' '.join(command)} ended with {code}")
        sys.exit(code if code > 0 else 128 - code)


def add(name: str, doc: str, *command: str) -> None:
    """Register a session that passes its arguments on to a command."""

    @nox.session(name=name, venv_backend="none")
    def session(session: nox.Session) -> None:
        run(session, *command)

    session.func.__doc__ = doc


for _id in RECIPES:
    add(f"build-{_id}", f"Build, check and publish recipes/{_id}.toml.", "sglwheel", "build", _id)
for _verb, _doc in VERBS.items():
    add(_verb, _doc, "sglwheel", _verb)


@nox.session(venv_backend="none")
def check(session: nox.Session) -> None:
    """Lint all recipes and series."""
    run(session, "sglwheel", "check")


@nox.session(venv_backend="none")
def tests(session: nox.Session) -> None:
    """Run the test suite; arguments go to pytest."""
    run(session, "--group", "tests", "pytest")


@nox.session(name="bench-wheelhouse", venv_backend="none")
def bench_wheelhouse(session: nox.Session) -> None:
    """Measure the wheelhouse at size: -- [index publish verify serve clients publishers] [--house DIR]"""
    run(session, "--group", "tests", "python", "tests/bench/wheelhouse.py")


@nox.session(venv_backend="none")
def browser(session: nox.Session) -> None:
    """Test the wheelhouse's pages in Chromium, which must be on PATH."""
    run(
        session,
        "--group",
        "tests",
        "--group",
        "browser",
        "pytest",
        "tests/integration/test_wheelhouse_page.py",
    )


@nox.session(venv_backend="none")
def bench(session: nox.Session) -> None:
    """Measure what building is worth and costs: -- [scaled | sixteen | recorded | noop | warm | upstream]."""
    run(session, "--group", "tests", "sglwheel", "bench")


@nox.session(venv_backend="none")
def fuzz(session: nox.Session) -> None:
    """Fuzz what reads foreign wheels: -- elf | fatbin | record | wheel [-max_total_time=600]"""
    run(session, "--group", "tests", "--group", "fuzz", "python", "tests/fuzz/run.py")


@nox.session(name="bench-drift", venv_backend="none")
def bench_drift(session: nox.Session) -> None:
    """Measure drift beside plain git: ratios of one run. SGLWHEEL_UPSTREAM=1 for the real history, too."""
    run(session, "--group", "tests", "python", "tests/bench/bench_drift.py")


@nox.session(venv_backend="none")
def soak(session: nox.Session) -> None:
    """Kill everything at many moments of a build of the sample; an hour: -- [--kills 60]."""
    run(session, "--group", "tests", "python", "tests/soak/kill_loop.py")


@nox.session(venv_backend="none")
def lint(session: nox.Session) -> None:
    """Run ruff and strict mypy."""
    for command in (["ruff", "check"], ["ruff", "format", "--check"], ["mypy"]):
        run(session, "--group", "dev", *command)
