"""What the tool takes when there is nothing to do."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from sglwheel import console, process
from sglwheel.bench import Ratio, Setting
from sglwheel.errors import SglwheelError


def noop(setting: Setting) -> Iterator[Ratio]:
    """A second build of the sample, and of what else is built here, by the tool and by its nox session."""
    tool = [str(Path(sys.executable).with_name("sglwheel"))]
    names = ["sample", *(["cu130"] if (setting.layout.work / "cu130").is_dir() else [])]
    nox = shutil.which("nox")
    for name in names:
        if name == "sample":
            console.detail("building the sample, so that there is nothing to do")
            _timed(setting, [*tool, "build", name])
        yield Ratio(f"no-op of {name}, tool", _several(setting, [*tool, "build", name]), 1.0, " s")
        if nox is not None:
            argv = [nox, "-s", f"build-{name}"]
            yield Ratio(f"no-op of {name}, nox session", _several(setting, argv), 3.0, " s")


def _several(setting: Setting, argv: Sequence[str]) -> list[float]:
    return [_timed(setting, argv) for _ in range(setting.repeat)]


def _timed(setting: Setting, argv: Sequence[str]) -> float:
    started = time.monotonic()
    process.run(argv, failure=SglwheelError, cwd=Path(setting.layout.root))
    return time.monotonic() - started
