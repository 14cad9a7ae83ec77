"""A lent torch, and a finished wheel that comes from another host."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from packaging.version import Version

from handoverworld import provenance_of
from sglwheel import recipe, toolchain
from sglwheel.errors import ToolchainError, UsageError, WheelhouseError
from sglwheel.files import Layout
from sglwheel.release import handover
from sglwheel.toolchain import borrowed, torchpin

ROOT = Path(__file__).parents[2]


def lend(root: Path, **versions: str) -> Path:
    """A virtual environment with made-up distributions."""
    import venv

    venv.create(root, symlinks=True, with_pip=False)
    site = next(root.glob("lib/python3*/site-packages"))
    for name, version in versions.items():
        name = name.replace("_", "-")
        info = site / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        needs = "Requires-Dist: numpy\n" if name == "torch" else ""
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}")
        (info / "RECORD").write_text(f"../../../bin/{name},,\n{info.name}/METADATA,,\n")
        (root / "bin" / name).write_text("#!/bin/sh\n")
    if "torch" in versions:
        (site / "torch").mkdir()
        (site / "torch/version.py").write_text(f"__version__ = '{versions['torch']}'\ncuda = '13.0'\n")
    return root


def test_what_is_lent_is_read_from_its_files(tmp_path: Path) -> None:
    root = lend(tmp_path / "e", torch="2.11.0+cu130", numpy="2.0", cmake="4.1.2", ninja="1.13.0", other="1.0")
    found = borrowed.read(root)
    assert (str(found.torch.version), found.torch.full_version) == ("2.11.0", "2.11.0+cu130")
    assert found.torch.sha256 is None and len(found.torch.record or "") == 64
    assert found.missing() == ("scikit-build-core",)
    assert {one.name for one in found.packages} >= {"torch", "numpy", "cmake", "ninja"}
    assert "other" not in {one.name for one in found.packages}
    assert found.lock.version("torch") is None and found.lock.version("numpy") == Version("2.0")
    target = recipe.load(Layout(ROOT), "cu130")
    versions = toolchain.resolve(target, torchpin.pin(target), found)
    assert (str(versions.cmake), str(versions.scikit_build_core)) == ("4.1.2", "0.11.6")
    found.fill(tmp_path / "ours")
    assert (tmp_path / "ours/bin/ninja").resolve() == (root / "bin/ninja").resolve()


def test_another_torch_than_the_one_wanted_names_both(tmp_path: Path) -> None:
    found = borrowed.read(lend(tmp_path / "e", torch="2.11.0+cu130"))
    target = recipe.load(Layout(ROOT), "cu130").with_torch("2.12.0")
    with pytest.raises(ToolchainError, match=r"2\.11\.0.*2\.12\.0") as caught:
        torchpin.verify(found.torch, torchpin.pin(target))
    assert caught.value.next is not None and "--torch 2.11.0" in caught.value.next


def test_nothing_to_lend_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no virtual environment"):
        borrowed.read(tmp_path / "nowhere")
    with pytest.raises(ToolchainError, match="no torch") as caught:
        borrowed.read(lend(tmp_path / "e"))
    assert caught.value.next is not None and "--torch-from" in caught.value.next


def test_old_tools_are_not_used(tmp_path: Path) -> None:
    assert "cmake" in borrowed.read(lend(tmp_path / "e", torch="2.11.0", cmake="3.22")).missing()


def test_a_wheel_is_taken_over_only_as_what_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    target = recipe.load(Layout(ROOT), "cu130")
    local = "cu130.torch2.12.0.sm120a.1"
    found = SimpleNamespace(
        provenance=provenance_of(target),
        name="sgl-kernel",
        version=Version(f"0.3.21+{local}"),
        tag="cp310-abi3-manylinux_2_34_x86_64",
        requires_dist=("torch==2.12.0",),
    )
    monkeypatch.setattr(handover.WheelFile, "read", lambda path: found)
    finished = handover.read(tmp_path / "x.whl", target)
    assert finished.marked == ("overridden: x",) and finished.requires_torch == "torch==2.12.0"
    with pytest.raises(WheelhouseError) as caught:
        handover.read(tmp_path / "x.whl", target.with_torch("2.11.0"))
    assert set(caught.value.where) == {"torch", "requires", "version"} and caught.value.exit_code == 9
    found.provenance = {}
    with pytest.raises(WheelhouseError, match="not a wheel of ours"):
        handover.read(tmp_path / "x.whl", target)


def test_notes_are_believed_for_their_bytes_only(tmp_path: Path) -> None:
    wheel = tmp_path / "x.whl"
    wheel.write_bytes(b"one")
    handover.write(wheel, {"cpu_seconds": 1})
    assert handover.notes(wheel) == {"cpu_seconds": 1}
    wheel.write_bytes(b"two")
    assert handover.notes(wheel) == {"built": "elsewhere"}
