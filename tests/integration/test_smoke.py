"""The smoke test with real environments, a real uv and a torch that computes nothing."""

from __future__ import annotations

import subprocess
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from packaging.version import Version

from conftest import ROOT
from inspectworld import LIBRARY, Source, World, cc, compiled
from sglwheel import recipe, smoke
from sglwheel.files import Layout
from sglwheel.gpucheck import report as gpu_report
from sglwheel.smoke import gpu as smoke_gpu
from sglwheel.toolchain import borrowed
from sglwheel.toolchain.torchpin import InstalledTorch
from wheelworld import http_directory, make_wheel, python

pytestmark = pytest.mark.integration

TORCH = """
import ctypes, pathlib
__version__ = "2.12.0+cu130"
for library in sorted(pathlib.Path(__file__).parent.glob("lib/*.so*")):
    ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
class version: cuda = "13.0"
class cuda:
    @staticmethod
    def is_available(): return False
class _C:
    names = ["aten::add"]
    @classmethod
    def _dispatch_get_all_op_names(cls): return list(cls.names)
"""
KERNEL = """
import ctypes, pathlib, torch
__version__ = "0.3.21"
library = ctypes.CDLL(str(pathlib.Path(__file__).parent / "sm100/common_ops.abi3.so"))
torch._C.names.append("sample_kernel::rmsnorm")
def use(): return torch.ops.sample_kernel.rmsnorm
"""
FLASH = """
def flash_attn_func(q, k):
    raise ImportError("flash_attn_func needs FA3, which is not in this build (see SAMPLE_ENABLE_FA3)")
"""
EXPORTS = ("_ZN3c105ErrorC1Ev",)


@dataclass
class Bench:
    """An index with a torch, a driver stub, and what smoke.run takes."""

    directory: Path
    environment: Any = field(init=False)
    recipe: recipe.Recipe = field(init=False)

    def __post_init__(self) -> None:
        stub = self.directory / "stub"
        stub.mkdir()
        cc("int cuMemFree_v2(void) { return 34; }", stub / "libcuda.so.1", "-Wl,-soname,libcuda.so.1")
        torch = InstalledTorch(Version("2.12.0"), "2.12.0+cu130", "13.0", "0" * 40, Path("torch"), None, True)
        lock = SimpleNamespace(pins=SimpleNamespace(packages=[]))
        self.environment = SimpleNamespace(
            python=Path(python()), torch=torch, stub=stub, lock=lock, sources=()
        )
        sample = recipe.load(Layout(ROOT), "sample")
        wheel = sample.wheel.model_copy(update={"operators": ("sample_kernel::rmsnorm",)})
        self.recipe = sample.model_copy(update={"wheel": wheel})

    def run(self, world: World) -> smoke.SmokeReport:
        wheel = world.write(self.directory)
        return smoke.run(wheel, self.recipe, self.environment, Layout(self.directory / "checkout"))


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    index = tmp_path / "index" / "torch"
    contents: dict[str, str | bytes] = {
        "torch/__init__.py": TORCH,
        "torch/version.py": "__version__ = '2.12.0+cu130'\ncuda = '13.0'\n",
    }
    for soname, exported in (("libc10.so", EXPORTS), ("libtorch.so", ()), ("libcudart.so.13", ())):
        source = Source(undefined=(), needed=(), exported=exported, fatbin=b"", schemas=(), soname=soname)
        contents[f"torch/lib/{soname}"] = compiled(source)
    make_wheel(index, "torch", "2.12.0", contents=contents)
    with http_directory(tmp_path / "index") as (url, _):
        monkeypatch.setenv("UV_DEFAULT_INDEX", url)
        monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
        monkeypatch.delenv("UV_INDEX", raising=False)
        monkeypatch.delenv("UV_FIND_LINKS", raising=False)
        yield Bench(tmp_path)


def world(files: Mapping[str, str] | None = None, **changes: Any) -> World:
    texts = {
        "sample_kernel/__init__.py": KERNEL,
        "sample_kernel/flash_attn.py": FLASH,
        **(files or {}),
    }
    source = Source(**{"undefined": ("PyModule_Create2", *EXPORTS, "cuMemFree_v2"), **changes})
    return World(libraries={LIBRARY: source}, files={path: text.encode() for path, text in texts.items()})


def checks(report: smoke.SmokeReport) -> dict[str, tuple[str, str]]:
    return {check.name: (check.status, check.detail) for check in report.checks}


def test_a_good_wheel_passes_and_the_gpu_is_not_claimed(bench: Bench) -> None:
    report = bench.run(world())
    found = checks(report)
    assert {name: status for name, (status, _) in found.items()} == {
        "install": "passed",
        "torch symbols": "passed",
        "torch": "passed",
        "libraries": "passed",
        "load": "passed",
        "import sample_kernel": "passed",
        "import sample_kernel.flash_attn": "passed",
        "operators": "passed",
        "schemas": "skipped",
        "kernels": "skipped",
        "cpu": "skipped",
        "meta": "skipped",
        "fa3-less flash_attn": "passed",
        "gpu": "skipped",
    }
    assert "SAMPLE_ENABLE_FA3" in found["fa3-less flash_attn"][1]
    assert report.ok
    assert not report.gpu_checked
    assert report.to_json()["ok"] is True
    leftovers = [path.name for path in report.log.parent.iterdir()]
    assert leftovers == ["smoke.log"]


def test_a_gpu_that_is_demanded_and_not_there_is_a_failure(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The suite itself runs, in the fresh environment, and its torch sees no GPU."""
    monkeypatch.setattr("sglwheel.smoke.environment.has_driver", lambda: True)
    wheel = world().write(bench.directory)
    layout = Layout(bench.directory / "checkout")
    report = smoke.run(wheel, bench.recipe, bench.environment, layout, gpu_mode="required")
    assert checks(report)["gpu"] == ("failed", "torch sees no GPU here")
    assert not report.gpu_checked


@pytest.mark.parametrize(
    ("capability", "family", "status"),
    [("12.0", "passed", "passed"), ("12.0", "failed", "failed"), ("9.0", "passed", "skipped")],
)
def test_only_a_gpu_of_the_recipe_s_own_kind_proves_the_wheel(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capability: str, family: str, status: str
) -> None:
    events = [
        {"environment": {"torch": "2.12.0", "gpu": {"name": "some GPU", "capability": capability}}},
        {"start": "rmsnorm", "family": "RMSNorm", "known": True},
        {"end": "rmsnorm", "status": family, "detail": "", "trials": [], "seconds": 1.0},
    ]
    made = gpu_report.make(events, wheel_sha256="0" * 64, capabilities=["12.0"], seed=1, seconds=1.0)
    monkeypatch.setattr("sglwheel.smoke.environment.has_driver", lambda: True)
    monkeypatch.setattr("sglwheel.smoke.gpu._run", lambda *_: made)
    found, kept = smoke_gpu.suite(Path("python"), None, bench.recipe, Path(), Path(), "auto")  # type: ignore[arg-type]
    assert {check.name: check.status for check in found} == {"gpu RMSNorm": family, "gpu": status}
    assert kept == made


def test_a_missing_library_is_named_with_its_users(bench: Bench) -> None:
    report = bench.run(world(needed=("libtorch.so", "libc10.so", "libcuda.so.1", "libabsent.so.7")))
    status, detail = checks(report)["libraries"]
    assert status == "failed"
    assert "libabsent.so.7 is missing" in detail
    assert LIBRARY in detail


def test_a_missing_torch_symbol_is_named_and_nothing_dies(bench: Bench) -> None:
    report = bench.run(world(undefined=("_ZN3c104goneEi",)))
    found = checks(report)
    assert found["torch symbols"] == (
        "failed",
        "not exported by torch 2.12.0+cu130: `c10::gone` is no longer exported",
    )
    assert "_ZN3c104goneEi" in found["load"][1]
    assert not report.ok


def test_an_error_that_names_no_build_option_is_not_enough(bench: Bench) -> None:
    vague = FLASH.replace(" (see SAMPLE_ENABLE_FA3)", "")
    found = checks(bench.run(world({"sample_kernel/flash_attn.py": vague})))
    status, detail = found["fa3-less flash_attn"]
    assert status == "failed" and "without naming the build option SAMPLE_ENABLE_FA3" in detail


def test_one_failed_import_does_not_hide_the_rest(bench: Bench) -> None:
    found = checks(
        bench.run(world({"sample_kernel/flash_attn.py": "raise ImportError('Can not import FA3')"}))
    )
    assert found["import sample_kernel"][0] == "passed"
    assert found["import sample_kernel.flash_attn"] == ("failed", "ImportError: Can not import FA3")
    assert found["operators"][0] == "passed"


def test_a_wheel_that_kills_the_process_is_told(bench: Bench) -> None:
    found = checks(bench.run(world({"sample_kernel/__init__.py": "import os\nos.abort()\n"})))
    status, detail = found["import sample_kernel"]
    assert status == "failed"
    assert "SIGABRT" in detail


def test_what_kills_the_process_hides_nothing_else(bench: Bench) -> None:
    found = checks(bench.run(world({"sample_kernel/flash_attn.py": "import os\nos.abort()\n"})))
    assert "SIGABRT" in found["import sample_kernel.flash_attn"][1]
    assert "SIGABRT" in found["fa3-less flash_attn"][1]
    assert [found[name][0] for name in ("import sample_kernel", "operators")] == ["passed", "passed"]


def test_a_wheel_that_hangs_is_ended(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sglwheel.smoke.environment.CHILD_SECONDS", 5.0)
    found = checks(bench.run(world({"sample_kernel/__init__.py": "import time\ntime.sleep(600)\n"})))
    assert "no end after 5 s" in found["import sample_kernel"][1]


def test_a_wheel_for_another_torch_is_not_installed(bench: Bench) -> None:
    report = bench.run(world().changed(requires=("torch==2.11.0",)))
    (check,) = report.checks
    assert check.status == "failed"
    assert "2.11.0" in check.detail


def test_an_operator_that_is_not_registered_is_told(bench: Bench) -> None:
    schemas = ("rmsnorm(Tensor! out) -> ()", "forgotten(Tensor x) -> Tensor")
    status, detail = checks(bench.run(world(schemas=schemas)))["operators"]
    assert status == "failed"
    assert "sample_kernel::forgotten" in detail


def test_fa3_that_silently_does_nothing_is_a_failure(bench: Bench) -> None:
    text = "def flash_attn_func(q, k):\n    return None\n"
    status, detail = checks(bench.run(world({"sample_kernel/flash_attn.py": text})))["fa3-less flash_attn"]
    assert status == "failed"
    assert "does not fail" in detail


@pytest.fixture
def node(bench: Bench) -> Path:
    """A node's environment: it has torch, and no index is asked for anything."""
    venv = bench.directory / "node"
    subprocess.run([python(), "-m", "venv", "--without-pip", venv], check=True)
    (site,) = venv.glob("lib/python3*/site-packages")
    (wheel,) = (bench.directory / "index" / "torch").glob("torch-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    return venv


def beside(bench: Bench, node: Path, wheel: World) -> dict[str, tuple[str, str]]:
    environment = smoke.Beside(borrowed.read(node), bench.environment.stub)
    path = wheel.write(bench.directory)
    return checks(smoke.run(path, bench.recipe, environment, Layout(bench.directory / "checkout")))


def test_beside_an_installed_torch_nothing_is_fetched_or_changed(
    bench: Bench, node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/")
    before = {path: path.stat().st_mtime_ns for path in node.rglob("*")}
    found = beside(bench, node, world())
    assert found["requires"] == ("passed", "torch==2.12.0")
    assert {name for name, (status, _) in found.items() if status == "failed"} == set()
    assert found["import sample_kernel.flash_attn"][0] == "passed"
    assert {path: path.stat().st_mtime_ns for path in node.rglob("*")} == before


def test_beside_another_torch_than_it_requires_is_a_failure(bench: Bench, node: Path) -> None:
    status, detail = beside(bench, node, world().changed(requires=("torch==2.11.0",)))["requires"]
    assert status == "failed" and "requires torch==2.11.0, expected torch==2.12.0" in detail
