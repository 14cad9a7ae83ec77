"""The GPU suite without a GPU: on kernels that run on the CPU, right ones and ones with a fault each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from conftest import ROOT
from sglwheel import programs
from sglwheel.files import Layout
from sglwheel.gpucheck import report

pytestmark = pytest.mark.integration
STANDIN = ROOT / "tests/gpu_standin"
# (fault, backend, what the suite says): every way in which a kernel may be wrong is seen, and only then.
FAULTS = [
    ("", "rmsnorm", "passed", ""),
    ("nan", "rmsnorm", "failed", "out[0, 0] is nan"),
    ("unwritten", "rmsnorm", "failed", "out[0, 127] is nan"),
    ("overrun", "rmsnorm", "failed", "wrote outside of the tensor"),
    ("imprecise", "rmsnorm", "failed", "of 128 wrong"),
    ("", "scaled_fp4_quant", "passed", ""),
    ("layout", "scaled_fp4_quant", "failed", "block scale"),
    ("nibbles", "scaled_fp4_quant", "failed", "FP4 value"),
    ("refuse", "scaled_fp4_quant", "failed", "only supported on sm100+"),
    ("", "cutlass_scaled_fp4_mm", "passed", ""),
    ("alpha", "cutlass_scaled_fp4_mm", "failed", "out["),
    ("flicker", "cutlass_scaled_fp4_mm", "failed", "differ between two runs"),
    ("", "quantise, then multiply", "passed", ""),
    ("", "scaled_fp4_experts_quant", "passed", ""),
    ("expert", "scaled_fp4_experts_quant", "failed", "block scale"),
    ("", "masked quantise", "passed", ""),
    ("", "silu_and_mul_scaled_fp4_experts_quant", "passed", ""),
    ("", "cutlass_fp4_group_mm bfloat16", "passed", ""),
    ("", "cutlass_fp4_group_mm float16", "passed", ""),
    ("no float16", "cutlass_fp4_group_mm float16", "unsafe", "leaves the result unwritten"),
    ("", "fp8_scaled_mm", "passed", ""),
    ("scale", "fp8_scaled_mm", "failed", "out["),
    ("", "int8_scaled_mm", "passed", ""),
    ("bias", "int8_scaled_mm", "failed", "out["),
    ("", "fp8_blockwise_scaled_grouped_mm", "passed", ""),
    ("expert", "fp8_blockwise_scaled_grouped_mm", "failed", "out["),
    ("", "es_fp8_blockwise_scaled_grouped_mm", "passed", ""),
    ("", "cutlass_w4a8_moe_mm", "passed", ""),
    ("nibbles", "cutlass_w4a8_moe_mm", "failed", "out["),
    ("", "dsv3_router_gemm", "passed", ""),
    ("rounded", "dsv3_router_gemm", "failed", "out["),
    ("", "dsv3_fused_a_gemm", "passed", ""),
    ("", "awq_dequantize", "passed", ""),
    ("order", "awq_dequantize", "failed", "out["),
    ("", "top_k_renorm_probs", "passed", ""),
    ("one more", "top_k_renorm_probs", "failed", "probabilities["),
    ("", "top_p_renorm_probs", "passed", ""),
    ("one more", "top_p_renorm_probs", "failed", "probabilities["),
    ("", "top_k_mask_logits", "passed", ""),
    ("zero", "top_k_mask_logits", "failed", "bytes differ"),
    ("", "apply_token_bitmask_inplace_cuda", "passed", ""),
    ("backwards", "apply_token_bitmask_inplace_cuda", "failed", "bytes differ"),
]


@pytest.fixture(scope="module")
def torch_python() -> Path:
    """A Python with the real torch: that of a build environment."""
    found = sorted((Layout.find(ROOT).cache / "envs").glob("*/lib/python3*/site-packages/torch/version.py"))
    if not found:
        pytest.skip("no build environment with torch in the cache (sglwheel build sample makes one)")
    return found[0].parents[4] / "bin" / "python"


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    paths = [str(STANDIN), str(ROOT / "scripts")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "OMP_NUM_THREADS": "1",
        "PYTHONWARNINGS": "ignore",
    }


def test_every_fault_is_seen_and_nothing_else(
    torch_python: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    plan = tmp_path / "faults.json"
    plan.write_text(json.dumps([(fault, name) for fault, name, _, _ in FAULTS]))
    done = subprocess.run(
        [torch_python, STANDIN / "try_faults.py", plan, "20261201"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(one["fault"], one["backend"], one["status"]) for one in found] == [each[:3] for each in FAULTS]
    for one, (_, _, _, says) in zip(found, FAULTS, strict=True):
        assert says in one["detail"]
        assert all(trial["error"] <= 1 for trial in one["trials"]) == (
            one["status"] == "passed" or not one["trials"]
        )


def run(
    python: Path, environment: dict[str, str], directory: Path, *words: str, fault: str = ""
) -> tuple[int, dict]:
    archive, output = directory / programs.GPU_CHECK, directory / "report.json"
    archive.write_bytes(programs.packed(programs.GPU_CHECK))
    argv = [python, archive, "--device", "cpu", "--as-capability", "12.0", "--capabilities", "12.0"]
    only = ["--only", "RMSNorm", "--largest", "4000", "--seed", "7", "-o", output]
    done = subprocess.run(
        [*argv, *only, *words], env={**environment, "STANDIN_FAULT": fault}, capture_output=True
    )
    return done.returncode, json.loads(output.read_text())


def test_a_kernel_that_kills_the_process_costs_its_own_backend_only(
    torch_python: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    code, found = run(torch_python, environment, tmp_path, "--only", "RMSNorm", "FP4 matmul", fault="abort")
    assert code == 8
    assert found["ok"] is False
    rmsnorm = found["families"]["RMSNorm"]["backends"]["rmsnorm"]
    assert rmsnorm["status"] == "failed"
    assert "killed by SIGABRT" in rmsnorm["detail"]
    assert found["families"]["FP4 matmul"]["backends"]["cutlass_scaled_fp4_mm"]["status"] == "passed"
    assert found["fp4"]["safe"] == ["cutlass_scaled_fp4_mm"]


def test_a_kernel_that_hangs_is_ended(
    torch_python: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    code, found = run(torch_python, environment, tmp_path, "--timeout", "60", fault="hang")
    assert code == 8
    assert "no end after" in found["families"]["RMSNorm"]["backends"]["rmsnorm"]["detail"]


def test_an_operator_without_a_kernel_is_told(
    torch_python: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    """Of the smoke test, with the real dispatcher: a schema that nobody implements."""
    (tmp_path / "broken_kernel.py").write_text(
        "import sgl_kernel\nsgl_kernel.library.define('forgotten(Tensor x) -> Tensor')\n"
    )
    (tmp_path / "shapes.py").write_text(
        "import torch, sgl_kernel\n"
        "sgl_kernel.library.define('doubled(Tensor x) -> Tensor')\n"
        "sgl_kernel.library.impl('doubled', lambda x: torch.empty_like(x), 'Meta')\n"
        "sgl_kernel.library.define('pair(Tensor x, int n, Tensor[] more, Tensor? y) -> Tensor')\n"
        "sgl_kernel.library.impl('pair', lambda x, n, more, y: x.view(2, 1), 'Meta')\n"
    )
    plan, events = tmp_path / "plan.json", tmp_path / "events.jsonl"
    steps = [
        ["import sgl_kernel", "import_module", "sgl_kernel"],
        ["right", "kernels", ["sgl_kernel"]],
        ["meta", "meta", ["sgl_kernel"]],
        ["import shapes", "import_module", "shapes"],
        ["meta kernel", "meta", ["sgl_kernel"]],
        ["import broken_kernel", "import_module", "broken_kernel"],
        ["wrong", "kernels", ["sgl_kernel"]],
    ]
    plan.write_text(json.dumps({"checks": steps}))
    given = {**environment, "PYTHONPATH": f"{STANDIN}{os.pathsep}{tmp_path}"}
    child = tmp_path / "smoke_child.py"
    for name in (child.name, "smoke_operators.py"):
        (tmp_path / name).write_text((ROOT / "scripts/sglwheel/smoke" / name).read_text())
    subprocess.run([torch_python, child, plan, events], env=given, check=True, capture_output=True)
    found = {one["name"]: one for one in map(json.loads, events.read_text().splitlines()) if "name" in one}
    assert (found["right"]["status"], found["right"]["detail"]) == ("passed", "18 for CPU")
    assert (found["meta"]["status"], found["meta"]["detail"]) == ("passed", "18 refused by the dispatcher")
    assert (found["meta kernel"]["status"], found["meta kernel"]["detail"]) == (
        "passed",
        "18 refused by the dispatcher, 1 computed, 1 answered with what they want",
    )
    assert found["wrong"]["status"] == "failed"
    assert "sgl_kernel::forgotten" in found["wrong"]["detail"]


def test_without_a_gpu_nothing_is_proven(
    torch_python: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    code, found = run(torch_python, {**environment, "CUDA_VISIBLE_DEVICES": ""}, tmp_path, "--device", "cuda")
    assert code == 8
    assert (found["ok"], found["gpu_checked"]) == (False, False)
    assert report.verdict(found) == "not proven: torch sees no GPU here"


def test_a_report_names_what_this_gpu_cannot_prove() -> None:
    """What the wheel holds on another GPU is judged, and is no proof for the one that it is for."""
    events = [
        {"environment": {"torch": "2.12.0", "gpu": {"name": "H200", "capability": "9.0"}}},
        {"start": "rmsnorm", "family": "RMSNorm", "known": True},
        {"end": "rmsnorm", "status": "passed", "detail": "", "trials": [], "seconds": 1.0},
        {"start": "scaled_fp4_quant", "family": "FP4 quantise", "known": False},
        {"end": "scaled_fp4_quant", "status": "not proven", "detail": "", "trials": [], "seconds": 1.0},
    ]
    other = report.make(events, wheel_sha256="0" * 64, capabilities=["12.0"], seed=1, seconds=2.0)
    assert (other["ok"], other["gpu_checked"]) == (True, False)
    assert "not proven here: FP4 quantise" in report.verdict(other)
    assert "the wheel is built for 12.0" in report.verdict(other)
    own = report.make(events, wheel_sha256="0" * 64, capabilities=["9.0"], seed=1, seconds=2.0)
    assert own["gpu_checked"] is True
    assert {"name": "gpu FP4 quantise", "status": "skipped"} in own["checks"]


def test_the_program_is_the_same_bytes_every_time_and_complete(tmp_path: Path) -> None:
    first = programs.packed(programs.GPU_CHECK)
    programs.packed.cache_clear()
    assert programs.packed(programs.GPU_CHECK) == first
    archive = tmp_path / programs.GPU_CHECK
    archive.write_bytes(first)
    with zipfile.ZipFile(archive) as packed:
        assert "sglwheel/gpucheck/families/fp4_matmul.py" in packed.namelist()
    done = subprocess.run([sys.executable, archive, "--help"], capture_output=True, text=True, check=True)
    assert "--wheel" in done.stdout


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 torn", b"not a zip"])
def test_what_is_no_wheel_ends_with_a_sentence(tmp_path: Path, content: bytes) -> None:
    (tmp_path / programs.GPU_CHECK).write_bytes(programs.packed(programs.GPU_CHECK))
    wheel = tmp_path / "x.whl"
    wheel.write_bytes(content)
    done = subprocess.run(
        [sys.executable, tmp_path / programs.GPU_CHECK, "--wheel", wheel], capture_output=True, text=True
    )
    assert done.returncode == 8
    assert done.stderr.startswith("error: cannot read")
    assert "Traceback" not in done.stderr
