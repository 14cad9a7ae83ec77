"""The verbs, as a person types them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from sglwheel.cli.wheelhouse import wheelhouse
from sglwheel.errors import WheelhouseError
from sglwheel.files import Layout
from sglwheel.wheelhouse import Wheelhouse, publish
from wheelworld import make_kernel, reports

pytestmark = pytest.mark.integration


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("os.fsync", lambda _: None)
    for build in (1, 2, 3):
        wheel = make_kernel(tmp_path / "dist", f"0.3.21+cu130.torch2.12.0.sm120a.{build}")
        publish(*reports(wheel, gpu=build < 3), Layout(tmp_path))
    return tmp_path / "wheelhouse"


def run(root: Path, *words: str, code: int = 0) -> str:
    done = CliRunner().invoke(wheelhouse, ["--root", str(root), *words])
    if code:
        assert isinstance(done.exception, WheelhouseError)
        assert done.exception.exit_code == code
        return done.exception.what
    assert done.exit_code == 0, f"{done.output}\n{done.exception!r}"
    return done.stdout


def test_a_release_through_its_life(root: Path, tmp_path: Path) -> None:
    assert (
        run(root, "list")
        .splitlines()[0]
        .startswith("candidate  sgl-kernel==0.3.21+cu130.torch2.12.0.sm120a.3")
    )
    assert len(json.loads(run(root, "list", "--json"))["releases"]) == 3
    assert "uv pip install --no-index" in run(root, "lines", "sm120a.3")
    assert json.loads(run(root, "lines", "sm120a.3", "--at", "https://x", "--json"))["uv"]
    house = Wheelhouse(root)
    report = tmp_path / "gpu.json"
    report.write_text(
        json.dumps(
            {"wheel_sha256": house.find("sm120a.3").sha256, "ok": True, "gpu_checked": True, "checks": []}
        )
    )
    assert run(root, "promote", "sm120a.3", str(report)).startswith("release: ")
    assert "sm120a.2" in run(root, "rollback", "cu130")
    assert "cu130.candidates points to it" in run(root, "yank", "sm120a.3", "wrong", code=9)
    assert run(root, "yank", "sm120a.3", "wrong", "--force").startswith("yanked: ")
    assert run(root, "unyank", "sm120a.3").startswith("release: ")
    assert "sm120a.1" in run(root, "point", "cu130", "sm120a.1")
    assert "sm120a" in run(root, "promise", "cu130", "sm120a.1")
    assert "all as published" in run(root, "verify")
    assert "would be removed" in run(root, "gc", "--keep-days", "0", "--keep-generations", "0")
    assert "copied" in run(root, "mirror", str(tmp_path / "copy"))
    run(root, "node-kit", "sm120a.2", str(tmp_path / "kit"), "--recipe", "cu130")
    assert (tmp_path / "kit/launch.sh").stat().st_mode & 0o100
    allowed = tmp_path / "allowed"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "key"], check=True)
    allowed.write_text(f"sglwheel {(tmp_path / 'key.pub').read_text()}")
    signed = ("verify", "--allowed-signers", str(allowed))
    assert "not as they should be" in run(root, *signed, code=9)
    names = run(root, "sign", "--key", str(tmp_path / "key")).splitlines()
    assert len([name for name in names if name.endswith(".whl.sig")]) == 3
    assert [name for name in names if not name.startswith("builds/")] == [
        "lines/cu130/line.json.sig",
        "lines/cu130.candidates/line.json.sig",
        "releases.json.sig",
    ]
    assert "all as published" in run(root, *signed)
    (root / "index.html").write_text("")
    assert "not as it should be" in run(root, "verify", code=9)
    assert "all as published" in run(root, "verify", "--repair")
