"""The node kit: rendered text that shells and systemd accept, and refusals that refuse."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from sglwheel.files import Layout
from sglwheel.wheelhouse import publish
from sglwheel.wheelhouse.nodekit import ARGUMENTS, ENVIRONMENT, Kit
from wheelworld import make_kernel, reports

# Stands for Python: the check passes, SGLang knows some flags, and starting it prints its arguments.
PYTHON = """#!/bin/sh
case "$*" in
*install-check*) exit ${CHECK_STATUS:-0} ;;
*--help*)
    echo "--attention-backend --moe-runner-backend --fp4-gemm-backend --kv-cache-dtype --tp"
    echo "--disable-custom-all-reduce"
    ;;
*) echo "$NCCL_P2P_LEVEL $*" ;;
esac
"""


@pytest.fixture
def kit(tmp_path: Path) -> Path:
    release = publish(*reports(make_kernel(tmp_path / "dist")), Layout(tmp_path))
    directory = tmp_path / "it's a kit"
    directory.mkdir()
    for name, text in Kit.of(release).files(str(tmp_path / "wheel house")).items():
        (directory / name).write_text(text)
    python = directory / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)
    return directory


def launch(kit: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "PYTHON": str(kit / "python"), "MODEL": "/m", **env}
    argv = ["bash", str(kit / "launch.sh"), *words]
    return subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)


def test_it_starts_sglang_with_every_default(kit: Path) -> None:
    done = launch(kit, "--tp", "2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == (
        "SYS -m sglang.launch_server --model-path /m --attention-backend flashinfer "
        "--moe-runner-backend triton "
        "--fp4-gemm-backend cutlass --kv-cache-dtype bf16 --disable-custom-all-reduce --tp 2"
    )


@pytest.mark.parametrize(
    "words",
    [
        ["--attention-backend", "trtllm_mha"],
        ["--attention-backend=fa3"],
        ["--moe-runner-backend", "flashinfer_trtllm"],
        ["--kv-cache-dtype", "fp8_e4m3"],
        ["--not-a-flag"],
    ],
)
def test_what_is_known_to_fail_is_refused(kit: Path, words: list[str]) -> None:
    done = launch(kit, *words)
    assert done.returncode == 9
    assert done.stderr.startswith("refused: ")
    assert launch(kit, *words, SGLWHEEL_ALLOW="1").returncode == 0


def test_a_failed_check_or_a_missing_model_stops_it(kit: Path) -> None:
    assert launch(kit, CHECK_STATUS="9").returncode == 9
    assert "set MODEL" in launch(kit, MODEL="").stderr


def test_a_recipe_changes_adds_and_drops(tmp_path: Path) -> None:
    release = publish(*reports(make_kernel(tmp_path / "dist")), Layout(tmp_path))
    kit = Kit.of(
        release,
        arguments={"--attention-backend": "triton", "--disable-custom-all-reduce": False, "--tp": 4},
        environment={"NCCL_IB_DISABLE": ""},
    )
    text = kit.files("/w")["launch.sh"]
    assert "arguments+=(--attention-backend triton)" in text
    assert "arguments+=(--tp 4)" in text
    assert "arguments+=(--disable-custom-all-reduce)" not in text
    assert "NCCL_IB_DISABLE" not in text


def test_every_value_has_a_reason_and_a_source(kit: Path) -> None:
    for setting in (*ARGUMENTS, *ENVIRONMENT):
        assert setting.reason
        assert setting.source
        assert setting.reason in (kit / "README.md").read_text()
    assert "Not proven" in (kit / "README.md").read_text()


def test_linters_accept_it(kit: Path) -> None:
    subprocess.run(["bash", "-n", str(kit / "launch.sh")], check=True)
    if shellcheck := shutil.which("shellcheck"):
        subprocess.run([shellcheck, str(kit / "launch.sh")], check=True)
    if analyze := shutil.which("systemd-analyze"):
        done = subprocess.run(
            [analyze, "verify", str(kit / "sglang.service")], capture_output=True, text=True, check=False
        )
        ours = [line for line in done.stderr.splitlines() if "sglang.service" in line and "man " not in line]
        assert ours == [], done.stderr
