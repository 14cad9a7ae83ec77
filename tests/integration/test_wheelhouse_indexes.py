"""Every simple index of a wheelhouse, asked by uv and pip: as served, and copied to another place."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from sglwheel.files import Layout
from sglwheel.wheelhouse import Release, Wheelhouse, publish
from sglwheel.wheelhouse.life import yank
from sglwheel.wheelhouse.serving import Service
from wheelworld import UV, Environment, http_directory, make_kernel, make_torch, reports, running

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def releases(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Release]:
    """Builds 1 to 3 for torch 2.12.0, of which 3 is yanked, and one that is for another torch."""
    base = tmp_path_factory.mktemp("made here")
    made = {}
    for build, torch in ((1, "2.12.0"), (2, "2.12.0"), (3, "2.12.0"), (4, "2.13.0")):
        version = f"0.3.21+cu130.torch{torch}.sm120a.{build}"
        provenance = {"recipe": {"id": "other" if build == 4 else "cu130"}}
        wheel = make_kernel(base / "dist", version, torch=torch, provenance=provenance)
        made[build] = publish(*reports(wheel, gpu=True, requires=f"torch=={torch}"), Layout(base))
    yank(Wheelhouse(made[3].root), made[3].id, "wrong <numbers>", force=True)
    return made


@pytest.fixture(scope="module", params=["serve", "copied and static", "copied directory"])
def place(
    request: pytest.FixtureRequest, releases: dict[int, Release], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The wheelhouse's url."""
    copy = tmp_path_factory.mktemp("another place") / "c++ & more"
    shutil.copytree(releases[1].root, copy)
    with contextlib.ExitStack() as stack:
        if request.param == "serve":
            yield stack.enter_context(running(Service(releases[1].root)))
        elif request.param == "copied directory":
            yield copy.as_uri()
        else:
            yield stack.enter_context(http_directory(copy.parent))[0] + "/c++%20%26%20more"


@pytest.fixture(scope="module")
def pip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("pip")
    subprocess.run([UV, "pip", "install", "-q", "--target", directory, "pip==26.3"], check=True)
    return directory


@pytest.mark.parametrize("client", ["uv", "pip"])
def test_uv_and_pip_resolve_from_every_index(
    releases: dict[int, Release], place: str, client: str, pip: Path, tmp_path: Path
) -> None:
    torch = make_torch(tmp_path, "2.12.0")
    node = Environment(tmp_path / "venv", wheels=[torch], cache=tmp_path / "cache")
    if client == "pip":
        node.variables["PYTHONPATH"] = str(pip)
    command = "uv pip install --reinstall-package sgl-kernel" if client == "uv" else "python -m pip install"
    for index, wanted, build in (
        ("simple", "sgl-kernel", 2),
        ("simple", f"sgl-kernel=={releases[3].record.version}", 3),
        ("lines/cu130/simple", f"sgl-kernel=={releases[2].record.version}", 2),
        (f"builds/{releases[1].id}/simple", f"sgl-kernel=={releases[1].record.version}", 1),
    ):
        done = node.shell(f"{command} --index-url '{place}/{index}/' '{wanted}'")
        assert node.packages()["sgl-kernel"] == releases[build].record.version, index
        assert node.packages()["torch"] == "2.12.0"
        if build == 3:
            assert "wrong <numbers>" in done.stdout + done.stderr, "a yank is told to who pinned it"
    gone = node.shell(f"{command} --index-url '{place}/lines/cu130/simple/' sgl-kernel==9", ok=False)
    assert gone.returncode != 0
    assert "404" not in gone.stderr
