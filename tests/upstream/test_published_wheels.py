"""Upstream's published wheels, judged from their files and then really loaded: no verdict may be wrong.

    SGLWHEEL_PUBLISHED=<directory of wheels> SGLWHEEL_TORCHES=<venv>:<venv> \\
    SGLWHEEL_DRIVER_STUB=<libcuda.so.1> pytest -m upstream tests/upstream/test_published_wheels.py

`pip download --no-deps sgl-kernel==…` fills the directory; a venv has one torch. A fixed seed chooses pairs,
SGLWHEEL_PAIRS says how many.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import zipfile
from pathlib import Path

import pytest

from sglwheel.inspect import inspect, symbols

pytestmark = pytest.mark.upstream

WHEELS = sorted(Path(os.environ.get("SGLWHEEL_PUBLISHED", "/nonexistent")).glob("*.whl"))
TORCHES = [Path(text) for text in os.environ.get("SGLWHEEL_TORCHES", "").split(":") if text]
STUB = os.environ.get("SGLWHEEL_DRIVER_STUB", "")
PAIRS = [(wheel, torch) for wheel in WHEELS for torch in TORCHES]
random.Random(20261201).shuffle(PAIRS)
PAIRS = PAIRS[: int(os.environ.get("SGLWHEEL_PAIRS", "24"))]

LOAD = """
import ctypes, json, os, pathlib, sys
import torch
site, failures = pathlib.Path(sys.argv[1]), {}
for library in json.loads(sys.argv[2]):
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            ctypes.CDLL(str(site / library), mode=os.RTLD_NOW)
        except OSError as error:
            os.write(writer, str(error).encode()[:4000])
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        message = stream.read().decode("utf-8", "replace")
    _, status = os.waitpid(child, 0)
    if message or status:
        failures[library] = message or f"status {status}"
print(json.dumps(failures))
"""


@pytest.mark.skipif(not PAIRS, reason="SGLWHEEL_PUBLISHED and SGLWHEEL_TORCHES name no pair")
@pytest.mark.parametrize(
    ("wheel", "venv"), PAIRS, ids=[f"{wheel.name[:32]} {venv.name}" for wheel, venv in PAIRS]
)
def test_verdicts_are_right(wheel: Path, venv: Path, tmp_path: Path) -> None:
    found = inspect(wheel, torch=symbols.installed(venv))
    # What lies in lib/ has no RPATH to what it needs; SGLang loads none of it.
    loaded = [
        library.path for library in found.libraries if library.path.startswith(("sgl_kernel/", "deep_gemm/"))
    ]
    with zipfile.ZipFile(wheel) as archive:
        for path in loaded:
            archive.extract(path, tmp_path)
    done = subprocess.run(
        [venv / "bin" / "python", "-I", "-c", LOAD, tmp_path, json.dumps(loaded)],
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), **({"LD_PRELOAD": STUB} if STUB else {})},
        check=True,
        capture_output=True,
        text=True,
    )
    failures = json.loads(done.stdout.splitlines()[-1])
    blocked = {path: reasons for path, reasons in found.blocked.items() if path in loaded}
    assert bool(failures) == bool(blocked)
    for path, reasons in blocked.items():
        assert any(reason in failures[path] for reason in reasons), failures[path]
    # A small library can find every symbol in a torch of another minor release and abort all the same, for
    # classes are laid out differently there (2.8 and 2.9): the wheel is blocked by its other libraries then.
