"""Kill everything at many moments of a real build, and show that the next run ends in the same wheel.

`python tests/soak/kill_loop.py [--kills 60] [--recipe sample] [--seed 1]`, or `nox -s soak`: up to an hour.

A round starts in an empty checkout and is killed once or more in every stage, in their order, each time at
a random moment of it: SIGKILL for the tool and all that it started, as a power loss would, or SIGTERM or
SIGINT for the tool alone. What is started next has to go on. A round ends undisturbed, and its wheel is
compared with one that was never disturbed. Prints a table of stages and kills.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections import Counter
from pathlib import Path

import psutil

REPOSITORY = Path(__file__).parents[2]
# The stages as the tool narrates them, with how many kills each gets in a round.
STAGES = {
    "series": 1,
    "source": 1,
    "patch": 1,
    "toolchain": 1,
    "dependencies": 1,
    "build": 5,
    "finish": 1,
    "inspect": 1,
    "smoke": 2,
    "publish": 1,
    "install check": 1,
}
WAYS = (signal.SIGKILL, signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)


class Run:
    """One run of the tool, followed by its narration."""

    def __init__(self, root: Path, recipe: str) -> None:
        environment = {**os.environ, "SGLWHEEL_ROOT": str(root), "PYTHONUNBUFFERED": "1"}
        # A cache would leave little to be killed.
        environment["SGLWHEEL_COMPILER_CACHE"] = "off"
        program = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        program += "from sglwheel.cli import main; main()"
        argv = [sys.executable, "-c", program, "build", recipe, "--json"]
        self.process = subprocess.Popen(
            argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
        self.stage, self.said = "start", bytearray()
        self.out = bytearray()
        self._threads = [threading.Thread(target=self._follow), threading.Thread(target=self._collect)]
        for thread in self._threads:
            thread.start()

    def _follow(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said += line
            text = line.decode("utf-8", "replace").strip()
            if text.startswith("▸ "):
                self.stage = next((name for name in STAGES if text[2:].startswith(name)), self.stage)

    def _collect(self) -> None:
        assert self.process.stdout is not None
        self.out += self.process.stdout.read()

    def reaches(self, stage: str) -> bool:
        """Wait until a stage begins; False when the run ends before."""
        while self.stage != stage:
            if self.process.poll() is not None:
                return False
            time.sleep(0.005)
        return True

    def end(self, number: signal.Signals) -> None:
        """End the tool, with SIGKILL all that it started as well."""
        victims = [self.process.pid]
        if number is signal.SIGKILL:
            with contextlib.suppress(psutil.Error):
                victims += [child.pid for child in psutil.Process(self.process.pid).children(recursive=True)]
        for process in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, number)
        self.wait()

    def wait(self) -> int:
        code = self.process.wait()
        for thread in self._threads:
            thread.join(60)
        return code


def checkout(parent: Path, name: str) -> Path:
    """An empty checkout: what people write, and nothing that the tool made."""
    root = parent / name
    for part in ("recipes", "patches"):
        shutil.copytree(REPOSITORY / part, root / part)
    (root / "wheelhouse").mkdir()
    return root


def finish(root: Path, recipe: str) -> Path:
    """Run to the end; the published wheel."""
    run = Run(root, recipe)
    code = run.wait()
    if code:
        sys.stderr.write(run.said.decode("utf-8", "replace"))
        raise SystemExit(f"a run that nobody disturbed ended with {code}")
    return Path(json.loads(run.out)["path"])


def difference(one: Path, other: Path) -> str:
    """Empty for the same bytes, else which members differ."""
    if hashlib.sha256(one.read_bytes()).digest() == hashlib.sha256(other.read_bytes()).digest():
        return ""
    with zipfile.ZipFile(one) as first, zipfile.ZipFile(other) as second:
        names = sorted({*first.namelist(), *second.namelist()})
        contents = [{name: z.read(name) for name in z.namelist()} for z in (first, second)]
    differ = [name for name in names if contents[0].get(name) != contents[1].get(name)]
    return ", ".join(differ) or "only the archive itself"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--recipe", default="sample")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    chance = random.Random(options.seed)
    kills: Counter[str] = Counter()
    ways: Counter[str] = Counter()
    wrong: list[str] = []
    missed = rounds = 0
    with tempfile.TemporaryDirectory(prefix="sglwheel-soak-") as name:
        parent = Path(name)
        os.environ.setdefault("SGLWHEEL_CACHE", str(parent / "cache"))
        started = time.monotonic()
        reference = finish(checkout(parent, "undisturbed"), options.recipe)
        usual = (time.monotonic() - started) / 8
        while sum(kills.values()) < options.kills and missed < 5 * options.kills:
            rounds += 1
            root = checkout(parent, f"round-{rounds}")
            for stage, times in STAGES.items():
                for _ in range(times):
                    run, number = Run(root, options.recipe), chance.choice(WAYS)
                    there = run.reaches(stage)
                    # Most stages last a moment, building lasts.
                    time.sleep(chance.random() ** 2 * (usual if stage in ("build", "smoke") else 0.5))
                    if not there or run.process.poll() is not None:
                        missed += 1
                        run.wait()
                        continue
                    at = run.stage
                    run.end(number)
                    kills[at] += 1
                    ways[number.name] += 1
                    print(f"{sum(kills.values()):>4}  {number.name:<8} in {at}", flush=True)
            differs = difference(reference, finish(root, options.recipe))
            if differs:
                wrong.append(f"round {rounds}: {differs}")
            print(f"      round {rounds}: {differs or 'the same wheel'}", flush=True)
            shutil.rmtree(root)
    print(f"\n{'stage':<16} kills")
    for stage in STAGES:
        print(f"{stage:<16} {kills[stage]:>5}")
    print(f"{sum(kills.values())} kills ({dict(ways)}), {rounds} rounds, {len(wrong)} ended in another wheel")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
