"""A nightly pinned, forgotten by its index, and built against all the same, as users run it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import indexworld
from indexworld import NIGHTLY, Index
from sglwheel.files import Layout

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the stand-in torch is for CPython 3.11"),
]

ROOT = Path(__file__).parents[2]
TOOL = Path(sys.executable).with_name("sglwheel")
NIGHT = "2.14.0.dev20261101"
LOGIN = "me:s3cret"


def run(root: Path, index: Index, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """One command in a checkout whose PyTorch index is on loopback, and whose uv has seen nothing yet."""
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith(("UV_", "SGLWHEEL_"))
    }
    environment |= {
        "SGLWHEEL_ROOT": str(root),
        "SGLWHEEL_MIRRORS": f"https://download.pytorch.org/whl={index.url.replace('//', f'//{LOGIN}@')}/whl",
        "UV_CACHE_DIR": str(root / "uv"),
    }
    return subprocess.run(
        [TOOL, *words], cwd=root, env=environment, capture_output=True, text=True, check=False
    )


def test_a_dropped_nightly_is_built_again_from_the_store(tmp_path: Path) -> None:
    for part in ("recipes", "patches"):
        shutil.copytree(ROOT / part, tmp_path / part)
    layout = Layout(tmp_path)
    with Index(login=LOGIN) as index:
        for day in ("20261101", "20261103"):
            index.add(NIGHTLY, "torch", indexworld.torch(f"2.14.0.dev{day}+cu130"))
        pinned = run(tmp_path, index, "pin", "sample-serving", "--torch", "nightly:2026-11-01")
        assert pinned.returncode == 0, pinned.stderr
        assert f'version = "{NIGHT}"' in (layout.recipes / "sample-serving.toml").read_text()
        locks = {path.name: path.read_bytes() for path in layout.recipes.iterdir() if path.is_file()}

        index.remove(NIGHTLY, "torch", "20261101")
        # Nothing but the store and the locks outlives the index.
        for left in (tmp_path / "uv", layout.cache / "envs", layout.work, layout.wheelhouse):
            shutil.rmtree(left, ignore_errors=True)
        built = run(tmp_path, index, "build", "sample-serving", "--json")
        assert built.returncode == 0, built.stderr[-3000:]
        facts: dict[str, Any] = json.loads(built.stdout)
        (wheel,) = layout.wheelhouse.glob("sample_serving-*.whl")
        assert f"+cu130.torch{NIGHT}." in wheel.name
        assert facts["fingerprint"]
        held = json.loads(run(tmp_path, index, "store", "list", "sample-serving", "--json").stdout)
        assert {"torch", "setuptools"} <= {one["name"] for one in held if one["stored"]}
        assert all(one["stored"] for one in held), "PyPI's wheels, too"
        again = {path.name: path.read_bytes() for path in layout.recipes.iterdir() if path.is_file()}
        assert again == locks, "a build uses the locks and writes none"
        asked = run(tmp_path, index, "pin", "sample-serving", "--torch", "nightly:2026-11-01")
        assert asked.returncode == 5
        assert "2.14.0.dev20261103+cu130 of 2026-11-03" in asked.stderr
    said = "".join(done.stdout + done.stderr for done in (pinned, built, asked))
    # uv's cache is uv's own: it keeps what it was asked by.
    written = [path for path in tmp_path.rglob("*") if path.is_file() and tmp_path / "uv" not in path.parents]
    assert not [path for path in written if b"s3cret" in path.read_bytes()], "locks, logs, wheels, provenance"
    assert "s3cret" not in said
    assert {".log", ".lock", ".whl", ".json", ".toml"} <= {path.suffix for path in written}
