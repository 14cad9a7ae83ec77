"""What the compiler cache is worth: a build in new checkouts, with nothing in the cache and with all."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sglwheel import console, process
from sglwheel.bench import Ratio, Setting
from sglwheel.errors import SglwheelError

_STORE = "compiler-cache"


def warm(setting: Setting) -> Iterator[Ratio]:
    """Compile, link and pack the sample in two new checkouts, of which the second finds all in the cache."""
    seconds: list[float] = []
    cpu: list[float] = []
    for number in range(setting.repeat):
        here = setting.scratch / f"warm-{number}"
        caches = _caches(setting, here / "cache")
        console.detail(f"building the sample twice ({number + 1} of {setting.repeat})")
        cold = _build(setting, here / "cold", caches)
        again = _build(setting, here / "elsewhere" / "warm", caches)
        if again["compiler_cache"]["misses"] or not again["compiler_cache"]["hits"]:
            raise SglwheelError(
                "the second build of the sample did not find all in the cache",
                where=dict(again["compiler_cache"]["why"]),
            )
        seconds.append(again["build"]["seconds"] / cold["build"]["seconds"])
        cpu.append(again["build"]["cpu_seconds"] / cold["build"]["cpu_seconds"])
        note = f"{cold['build']['seconds']:.1f} s cold, {again['build']['seconds']:.1f} s warm"
        shutil.rmtree(here)
    yield Ratio("warm cache in a new checkout / cold, wall", seconds, 0.10, note=note)
    yield Ratio("warm cache in a new checkout / cold, CPU", cpu, 0.10)


def _caches(setting: Setting, into: Path) -> Path:
    """All caches of this host but the compilers': torch and toolkit need not be fetched again."""
    into.mkdir(parents=True)
    for path in setting.layout.cache.iterdir():
        if path.name != _STORE:
            (into / path.name).symlink_to(path)
    return into


def _build(setting: Setting, root: Path, caches: Path) -> dict[str, Any]:
    for part in ("recipes", "patches"):
        shutil.copytree(getattr(setting.layout, part), root / part)
    tool = Path(sys.executable).with_name("sglwheel")
    places = {"SGLWHEEL_ROOT": str(root), "SGLWHEEL_CACHE": str(caches), "SGLWHEEL_COMPILER_CACHE": "local"}
    done = process.run(
        [tool, "build", "sample", "--until", "finish", "--json"],
        failure=SglwheelError,
        env={**os.environ, **places},
        what="building the sample",
    )
    facts: dict[str, Any] = json.loads(done.stdout)
    return facts
