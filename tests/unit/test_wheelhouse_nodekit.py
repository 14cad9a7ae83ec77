"""The node kit: rendered text that shells and systemd accept, and refusals that refuse."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from sglwheel import recipe
from sglwheel.errors import UsageError, WheelhouseError
from sglwheel.files import Layout
from sglwheel.recipe import Recipe
from sglwheel.recipe.node import Node
from sglwheel.wheelhouse import Release, publish
from sglwheel.wheelhouse.nodekit import Kit
from wheelworld import make_kernel, reports

CHECKOUT = Layout(Path(__file__).parents[2])
# Stands for Python: the check passes, SGLang knows some flags, and starting it prints its arguments.
PYTHON = """#!/bin/sh
case "$*" in
*install-check*) echo "$*" > "$0.asked"; exit ${CHECK_STATUS:-0} ;;
*--help*)
    [ -z "$NO_SGLANG" ] || exit 1
    echo "--attention-backend --prefill-attention-backend --moe-runner-backend --fp4-gemm-backend"
    echo "--kv-cache-dtype --tp --disable-custom-all-reduce"
    ;;
*) echo "$NCCL_P2P_DISABLE $*" ;;
esac
"""
DEFAULTS = {
    "--attention-backend": "flashinfer",
    "--moe-runner-backend": "triton",
    "--fp4-gemm-backend": "flashinfer_cutlass",
    "--kv-cache-dtype": "bf16",
}


@pytest.fixture(scope="module")
def sm120() -> Recipe:
    return recipe.load(CHECKOUT, "cu130")


def published(tmp_path: Path, id: str, kind: str = "kernels") -> Release:
    wheel = make_kernel(tmp_path / "dist", provenance={"recipe": {"id": id, "kind": kind}})
    return publish(*reports(wheel), Layout(tmp_path))


@pytest.fixture
def release(tmp_path: Path) -> Release:
    return published(tmp_path, "cu130")


@pytest.fixture
def kit(release: Release, sm120: Recipe, tmp_path: Path) -> Path:
    return rendered(release, sm120, tmp_path)


def with_nodes() -> list[str]:
    return [path.stem for path in sorted(CHECKOUT.recipes.glob("*.toml")) if "\n[node]\n" in path.read_text()]


@pytest.fixture(params=with_nodes())
def any_kit(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Recipe]:
    """The kit of each recipe that has one."""
    its = recipe.load(CHECKOUT, request.param)
    return rendered(published(tmp_path, its.id), its, tmp_path), its


def rendered(release: Release, its: Recipe, tmp_path: Path) -> Path:
    directory = tmp_path / "it's a kit"
    directory.mkdir()
    for name, text in Kit.of(release, its).files(str(tmp_path / "wheel house's")).items():
        (directory / name).write_text(text)
    python = directory / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)
    return directory


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = tmp_path / "model"
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    return directory


def launch(kit: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.defpath, "PYTHON": str(kit / "python"), "MODEL": "/m", **env}
    argv = ["bash", str(kit / "launch.sh"), *words]
    return subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)


def test_it_starts_sglang_with_every_default(kit: Path, model: Path) -> None:
    done = launch(kit, "--tp", "2", MODEL=str(model))
    assert (done.returncode, done.stderr) == (0, "")
    said = " ".join(f"{name} {value}" for name, value in DEFAULTS.items())
    assert done.stdout.strip() == (
        f"1 -m sglang.launch_server --model-path {model} {said} --disable-custom-all-reduce --tp 2"
    )
    asked = (kit / "python.asked").read_text()
    assert "install-check.pyz start --wheelhouse" in asked and "it's a kit --release sgl_kernel" in asked


def test_what_the_operator_gives_wins(kit: Path) -> None:
    done = launch(kit, "--attention-backend=triton", "--kv-cache-dtype", "bfloat16", NCCL_P2P_DISABLE="0")
    words = done.stdout.split()
    assert words[0] == "0"
    assert "flashinfer" not in words and "bf16" not in words
    assert words[-3:] == ["--attention-backend=triton", "--kv-cache-dtype", "bfloat16"]
    assert "nothing is known of the model" in done.stderr, "/m is no directory here"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--attention-backend", "trtllm_mha"], "has no code for SM120"),
        (["--attention-backend=fa3"], "has no code for SM120"),
        (["--prefill-attention-backend", "trtllm_mla"], "has no code for SM120"),
        (["--moe-runner-backend", "flashinfer_trtllm_routed"], "has no code for SM120"),
        (["--fp4-gemm-backend", "flashinfer_trtllm"], "has no code for SM120"),
        (["--kv-cache-dtype", "fp8_e4m3"], "scales of 1.0"),
        (["--not-a-flag"], "does not know --not-a-flag"),
    ],
)
def test_what_is_known_to_fail_is_refused(kit: Path, words: list[str], reason: str) -> None:
    done = launch(kit, *words)
    assert done.returncode == 9
    assert reason in next(line for line in done.stderr.splitlines() if line.startswith("refused: "))
    assert launch(kit, *words, SGLWHEEL_ALLOW="1").returncode == 0


def test_what_gives_garbage_with_some_models_is_refused_for_those(kit: Path, model: Path) -> None:
    assert launch(kit, MODEL=str(model)).returncode == 0
    assert launch(kit, "--kv-cache-dtype", "auto", MODEL=str(model)).returncode == 0
    (model / "hf_quant_config.json").write_text(
        json.dumps({"quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}}, indent=2)
    )
    assert launch(kit, MODEL=str(model)).returncode == 0, "bf16 is given, so the declaration does not count"
    for words, reason in (
        (["--kv-cache-dtype", "auto"], "would take FP8"),
        (["--moe-runner-backend", "flashinfer_cutlass"], "invalid output with NVFP4 experts"),
    ):
        done = launch(kit, *words, MODEL=str(model))
        assert done.returncode == 9
        assert reason in done.stderr
    (model / "config.json").write_text(json.dumps({"kv_lora_rank": 512}))
    done = launch(kit, MODEL=str(model))
    assert done.returncode == 9
    assert "give --attention-backend triton" in done.stderr
    assert launch(kit, "--attention-backend", "triton", MODEL=str(model)).returncode == 0


def test_a_failed_check_or_a_missing_model_stops_it(kit: Path) -> None:
    assert launch(kit, CHECK_STATUS="9").returncode == 9
    assert "set MODEL" in launch(kit, MODEL="").stderr
    assert "is SGLang installed there?" in launch(kit, NO_SGLANG="1").stderr
    doctor = kit / "sglwheel"
    doctor.write_text('#!/bin/sh\necho "$*"\nexit 10\n')
    doctor.chmod(0o755)
    done = launch(kit, PATH=f"{kit}:{os.defpath}")
    assert (done.returncode, done.stdout) == (9, f"doctor --role node --python {kit / 'python'}\n")


def test_every_kernel_recipe_for_these_gpus_says_how_a_node_runs_it() -> None:
    assert {"cu130", "cu130-next", "cu130-sm121"} <= set(with_nodes())


def test_every_value_has_a_reason_and_a_source_in_every_file(any_kit: tuple[Path, Recipe]) -> None:
    kit, its = any_kit
    node = its.node
    assert node is not None
    script = (kit / "launch.sh").read_text()
    flat = " ".join(line.strip().removeprefix("#").strip() for line in script.splitlines())
    readme, unit = ((kit / name).read_text() for name in ("README.md", "sglang.service"))
    for item in (*node.arguments, *node.environment, *node.refusals):
        assert item.reason in flat and item.source in flat, item
        assert item.reason in readme and item.source in readme, item
    for item in node.arguments:
        assert item.words in unit
    for line in node.not_proven:
        assert f"- {line}" in readme
    assert "it is a candidate" in readme
    settings = [line for line in unit.partition("[Service]")[2].splitlines() if line and line[0] != "#"]
    assert len(settings) > 8
    assert unit.count("# Source: ") >= 6


def test_linters_accept_it(any_kit: tuple[Path, Recipe]) -> None:
    kit, _ = any_kit
    shellcheck = Path(sys.executable).with_name("shellcheck")
    done = subprocess.run([shellcheck, kit / "launch.sh"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_systemd_accepts_the_unit(any_kit: tuple[Path, Recipe]) -> None:
    kit, _ = any_kit
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("no systemd-analyze on this host")
    done = subprocess.run(
        [analyze, "verify", "--man=no", str(kit / "sglang.service")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert [line for line in done.stderr.splitlines() if "sglang" in line] == [], done.stderr


def test_a_recipe_that_says_nothing_of_nodes_is_named(release: Release) -> None:
    sample = recipe.load(CHECKOUT, "sample")
    with pytest.raises(WheelhouseError, match="was built by recipe cu130, not sample"):
        Kit.of(release, sample)
    own = Release(release.root, release.record.model_copy(update={"recipe": "sample"}))
    with pytest.raises(WheelhouseError, match="does not say how a node runs its wheel") as caught:
        Kit.of(own, sample)
    assert caught.value.exit_code == 9


def test_a_wheel_of_python_alone_sends_to_its_kernels(tmp_path: Path) -> None:
    with pytest.raises(WheelhouseError, match="kit is the one of the kernels") as caught:
        Kit.of(published(tmp_path, "cu130-sglang", "python"), recipe.load(CHECKOUT, "cu130-sglang"))
    assert "node-kit for the kernels" in str(caught.value.next)


def test_what_another_sglang_needs_is_not_the_same(tmp_path: Path, model: Path) -> None:
    """At 0.5.18 no single MoE backend is right, and the wheel has no NVFP4 kernels to be asked for."""
    kit = rendered(published(tmp_path, "cu130-next"), recipe.load(CHECKOUT, "cu130-next"), tmp_path)
    done = launch(kit, MODEL=str(model))
    assert done.returncode == 0, done.stderr
    assert "--moe-runner-backend auto" in done.stdout and "--attention-backend" not in done.stdout
    (model / "hf_quant_config.json").write_text('{"quantization": {"quant_algo": "NVFP4"}}')
    assert launch(kit, MODEL=str(model)).returncode == 0
    refused = launch(kit, "--moe-runner-backend", "triton", MODEL=str(model))
    assert refused.returncode == 9 and "cannot run NVFP4 experts" in refused.stderr
    (model / "config.json").write_text('{"architectures": ["GptOssForCausalLM"]}')
    refused = launch(kit, "--attention-backend", "flashinfer", MODEL=str(model))
    assert refused.returncode == 9 and "attention sinks" in refused.stderr


def test_advice_for_nodes_is_no_input_of_the_wheel(sm120: Recipe) -> None:
    assert sm120.model_copy(update={"node": None}).digest == sm120.digest


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[[arguments]]\nname = "--x; rm -rf"\nreason = "r"\nsource = "s"', "is not an argument"),
        ('[[arguments]]\nname = "--x"\nvalue = "$(id)"\nreason = "r"\nsource = "s"', "must be letters"),
        ('[[arguments]]\nname = "--x"\nreason = "a\\nid"\nsource = "s"', "one line of text"),
        ('[[arguments]]\nname = "--x"\nsource = "s"', "reason"),
        (
            '[[environment]]\nname = "LD_PRELOAD"\nvalue = "1"\nreason = "r"\nsource = "s"',
            "not a variable of",
        ),
        (
            '[[refusals]]\nargument = "--x"\nvalues = [") ;; *"]\nreason = "r"\nsource = "s"',
            "must be letters",
        ),
        (
            '[[refusals]]\nargument = "--x"\nvalues = ["a"]\nfile = "../x"\nmatches = "a"\n'
            'reason = "r"\nsource = "s"',
            "not the name of a model's file",
        ),
        (
            '[[refusals]]\nargument = "--x"\nvalues = ["a"]\nfile = "x"\nreason = "r"\nsource = "s"',
            "come together",
        ),
        (
            '[[arguments]]\nname = "--x"\nreason = "r"\nsource = "s"\n' * 2,
            "stands twice: --x",
        ),
    ],
)
def test_nothing_breaks_out_of_the_rendered_script(text: str, message: str) -> None:
    good = (CHECKOUT.recipes / "cu130.toml").read_text().partition("\n[node]\n")[0]
    bad = f"{good}\n[node]\nnot-proven = ['all']\n{text.replace('[[', '[[node.')}\n"
    with pytest.raises(UsageError) as caught:
        recipe.parse(bad.encode(), name="x", path="recipes/x.toml")
    assert message in str(caught.value.where), caught.value.where
    assert Node.model_validate({"not-proven": ["all"]}).arguments == ()
    assert tomllib.loads(bad)
