"""The sample vendored, and built where there is no network: nothing but a loopback that is down."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sglwheel import recipe, vendoring
from sglwheel.files import Layout
from sglwheel.locks import torchchoice
from sglwheel.toolchain import packages, wheels
from sglwheel.toolchain.pylocks import Pylocks

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
# Everything is unpacked a second time.
NEEDED = 12_000_000_000


def namespace() -> list[str] | None:
    """How a process without network is started here; None where namespaces are not permitted."""
    for argv in (["unshare", "-n"], ["unshare", "-Urn"]):
        try:
            done = subprocess.run([*argv, "true"], capture_output=True, check=False)
        except FileNotFoundError:
            return None
        if done.returncode == 0:
            return argv
    return None


def missing(layout: Layout) -> list[str]:
    """Wheels of the sample that the store lacks: gigabytes that a test does not download."""
    python = torchchoice.python_of(recipe.load(layout, "sample"))
    locks = [lock for path in Pylocks.files_of("sample", layout) if (lock := packages.read(path))]
    every = (item for lock in locks for item in wheels.of(lock, python))
    return [item.filename for item in every if not wheels.path_of(item, layout).is_file()]


def test_vendor_and_build_without_network(tmp_path: Path) -> None:
    unshared = namespace()
    if unshared is None:
        pytest.skip("network namespaces are not permitted here")
    if (free := shutil.disk_usage(tmp_path).free) < NEEDED:
        pytest.skip(f"it takes {NEEDED / 1e9:.0f} GB of disk, {free / 1e9:.0f} are free")
    layout = Layout(ROOT)
    if absent := missing(layout):
        pytest.skip(f"the store lacks {len(absent)} wheels: sglwheel vendor sample -o .work/bundle-sample")
    into = tmp_path / "bundle"
    vendoring.vendor(layout, "sample", into)
    there = tmp_path / "there"
    for part in ("recipes", "patches"):
        shutil.copytree(ROOT / part, there / part)
    tool = Path(sys.executable).with_name("sglwheel")
    command = [tool, "build", "sample", "--offline", "--from", into, "--json"]
    done = subprocess.run(
        [*unshared, *command],
        # Nothing of this host's caches, configuration or mirrors.
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(there / "home"),
            "LANG": "C.UTF-8",
            "SGLWHEEL_ROOT": str(there),
            "UV_CACHE_DIR": str(there / "uv"),
        },
        cwd=there,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout)["fingerprint"]
    (wheel,) = (there / "wheelhouse").glob("sample_kernel-*.whl")
    assert wheel.stat().st_size > 10_000
