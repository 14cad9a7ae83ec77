"""`doctor --role node` on made-up nodes: real environments, real ELF files, a made-up nvidia-smi."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from inspectworld import KERNEL, MACHINE, Source, World, compiled, container, entry
from sglwheel import cli
from wheelworld import UV, make_wheel, python

pytestmark = pytest.mark.integration

FP4 = (
    "cutlass_scaled_fp4_mm(Tensor! out, Tensor a) -> ()",
    "scaled_fp4_quant(Tensor! output, Tensor! input) -> ()",
)
Doctor = Callable[..., tuple[int, dict[str, list[str]]]]
ENGINE = """
from sglang.srt.utils import assert_pkg_version
def launch():
    if True:
        assert_pkg_version("flashinfer_python", "0.6.4", "reinstall")
        assert_pkg_version("sgl-kernel", "0.3.21", "reinstall")
"""


@dataclass
class Node:
    """A virtual environment that tests fill, and what nvidia-smi would say."""

    root: Path
    venv: Path = field(init=False)
    tools: Path = field(init=False)

    def __post_init__(self) -> None:
        self.venv, self.tools = self.root / "venv", self.root / "tools"
        self.tools.mkdir()
        subprocess.run([UV, "venv", "-q", "--python", python(), self.venv], check=True)

    def install(self, *wheels: Path) -> None:
        argv = [UV, "pip", "install", "-q", "--no-deps", "--no-index", "--python", self.venv / "bin/python"]
        subprocess.run([*argv, *wheels], check=True)

    def gpu(self, capability: str = "12.0", driver: str = "580.95.05", name: str = "RTX PRO 6000") -> None:
        script = self.tools / "nvidia-smi"
        script.write_text(f"#!/bin/sh\necho '{name}, {capability}, {driver}'\n")
        script.chmod(0o755)

    def tool(self, *names: str) -> None:
        for name in names:
            (self.tools / name).write_text("#!/bin/sh\n")
            (self.tools / name).chmod(0o755)

    def torch(
        self, version: str = "2.12.0+cu130", cuda: str = "13.0", exports: tuple[str, ...] = (KERNEL,)
    ) -> None:
        library = Source(undefined=(), needed=(), exported=exports, fatbin=b"", schemas=())
        contents = {
            "torch/__init__.py": "",
            "torch/version.py": f"__version__ = {version!r}\ncuda = {cuda!r}\n",
            "torch/lib/libtorch.so": compiled(library),
        }
        self.install(make_wheel(self.root / "wheels", "torch", version, contents=contents))

    def package(self, name: str, version: str, contents: dict[str, str] | None = None) -> None:
        self.install(make_wheel(self.root / "wheels", name, version, contents=contents))


def kernels(directory: Path, *, name: str = "sgl-kernel", version: str = "0.3.21", **changes: object) -> Path:
    source = Source(**{"schemas": FP4, "needed": ("libtorch.so", "libc10.so", "libc.so.6"), **changes})  # type: ignore[arg-type]
    world = World(
        distribution=name,
        version=f"{version}+cu130.torch2.12.0.sm120a.1",
        tag=f"cp310-abi3-linux_{MACHINE}",
        libraries={"sgl_kernel/sm100/common_ops.abi3.so": source},
        files={"sgl_kernel/__init__.py": b"import torch\nf = torch.ops.sgl_kernel.scaled_fp4_quant\n"},
        without=("sample_kernel/__init__.py",),
    )
    directory.mkdir(exist_ok=True)
    return world.write(directory)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    made = Node(tmp_path)
    monkeypatch.delenv("FLASHINFER_DISABLE_VERSION_CHECK", raising=False)
    return made


@pytest.fixture
def doctor(node: Node, capsys: pytest.CaptureFixture[str]) -> Doctor:
    def run(*more: str) -> tuple[int, dict[str, list[str]]]:
        capsys.readouterr()
        # This host's own compilers are none of the node's.
        with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as ended:
            patch.setenv("PATH", str(node.tools))
            patch.delenv("CUDA_HOME", raising=False)
            patch.delenv("CUDA_PATH", raising=False)
            patch.setattr("sglwheel.nodedoctor.kernels._CUDA_HOME", str(node.tools / "none"))
            cli.main(["doctor", "--role", "node", "--python", str(node.venv), "--json", *more])
        found: dict[str, list[str]] = {}
        for finding in json.loads(capsys.readouterr().out)["findings"]:
            text = f"{finding['status']}: {finding['detail']} → {finding['remedy']}"
            found.setdefault(finding["check"], []).append(text)
        assert isinstance(ended.value.code, int)
        return ended.value.code, found

    return run


def failures(found: dict[str, list[str]]) -> dict[str, list[str]]:
    failed = {check: [text for text in texts if text.startswith("failed")] for check, texts in found.items()}
    return {check: texts for check, texts in failed.items() if texts}


def test_a_good_node_has_nothing_to_say(node: Node, doctor: Doctor, tmp_path: Path) -> None:
    node.gpu()
    node.torch()
    node.install(kernels(tmp_path / "built"))
    node.package("flashinfer-python", "0.6.4")
    node.package("sglang", "0.5.9", {"sglang/srt/entrypoints/engine.py": ENGINE})
    code, found = doctor()
    assert failures(found) == {}
    assert code == 0
    assert "runs sm_120a of sgl_kernel/sm100/common_ops.abi3.so" in found["architectures"][0]
    assert "sgl-kernel 0.3.21+cu130.torch2.12.0.sm120a.1 is not older than 0.3.21" in found["sglang"][1]


def test_everything_is_said_at_once(node: Node, doctor: Doctor, tmp_path: Path) -> None:
    node.gpu("8.9", "550.54", "L40S")
    node.torch("2.13.0+cu130", exports=("_ZN3c105otherEv",))
    needed = ("libtorch.so", "libabsent.so.7", "libcudart.so.12")
    node.install(kernels(tmp_path / "old", name="sglang-kernel", version="0.3.20", needed=needed))
    # The second takes the first one's files over: the state that this check is for.
    node.install(kernels(tmp_path / "new", version="0.3.20", needed=needed))
    node.package("flashinfer-python", "0.6.3")
    node.package("flashinfer-cubin", "0.6.2")
    node.package("sglang", "0.5.9", {"sglang/srt/entrypoints/engine.py": ENGINE})
    checkpoint = tmp_path / "model"
    checkpoint.mkdir()
    (checkpoint / "hf_quant_config.json").write_text('{"quantization": {"kv_cache_quant_algo": "FP8"}}')
    code, found = doctor("--checkpoint", str(checkpoint))
    failed = failures(found)
    assert code == 10
    assert "550.54 is too old: CUDA 13.0 needs 580" in failed["driver"][0]
    assert "L40S is 8.9" in failed["architectures"][0]
    assert "has sm_120a" in failed["architectures"][0]
    assert "torch 2.13.0+cu130 lacks 1" in failed["torch symbols"][0]
    assert "sgl-kernel and sglang-kernel are both installed" in failed["distributions"][0]
    assert {"libabsent.so.7", "libcudart.so.12"} <= {
        text.split()[1].rstrip(":") for text in failed["libraries"]
    }
    assert "demands flashinfer_python 0.6.4 or newer; here is 0.6.3" in failed["sglang"][0]
    assert "demands sgl-kernel 0.3.21 or newer; here is 0.3.20" in failed["sglang"][1]
    assert "flashinfer-cubin 0.6.2 beside flashinfer-python 0.6.3" in failed["flashinfer"][0]
    assert "--kv-cache-dtype bf16" in failed["kv cache"][0]


def test_kernels_without_nvfp4_need_compilers(node: Node, doctor: Doctor, tmp_path: Path) -> None:
    node.gpu()
    node.torch()
    node.install(kernels(tmp_path / "built", schemas=("rmsnorm(Tensor! out) -> ()",)))
    assert "missing nvcc" in failures(doctor()[1])["compilers"][0]
    node.tool("nvcc", "ninja", "g++")
    assert failures(doctor()[1]) == {}


def test_a_driver_that_tells_no_capability_is_no_traceback(
    node: Node, doctor: Doctor, tmp_path: Path
) -> None:
    node.gpu("[N/A]")
    node.torch()
    node.install(kernels(tmp_path / "built"))
    assert doctor()[1]["architectures"][0].startswith("unknown: RTX PRO 6000: the driver says '[N/A]'")


def test_a_precompiled_flashinfer_names_its_cuda_and_torch(
    node: Node, doctor: Doctor, tmp_path: Path
) -> None:
    node.torch()
    node.package("flashinfer-python", "0.2.5+cu124torch2.6")
    texts = " ".join(failures(doctor()[1])["flashinfer"])
    assert "CUDA 12, beside a torch for CUDA 13.0" in texts
    assert "torch 2.6, beside torch 2.12.0+cu130" in texts


def test_a_wheel_is_judged_before_it_is_installed(node: Node, doctor: Doctor, tmp_path: Path) -> None:
    node.gpu("9.0", name="H200")
    node.torch()
    node.install(kernels(tmp_path / "there", name="sglang-kernel"))
    wheel = kernels(tmp_path / "new", fatbin=container(entry(120)))
    code, found = doctor("--wheel", str(wheel))
    failed = failures(found)
    assert code == 10
    assert "no sm90/common_ops" in failed["architectures"][0]
    assert "sglang-kernel is installed" in failed["distributions"][0]


def test_scales_in_the_checkpoint_make_fp8_keys_right(node: Node, doctor: Doctor, tmp_path: Path) -> None:
    (tmp_path / "hf_quant_config.json").write_text('{"quantization": {"kv_cache_quant_algo": "FP8"}}')
    index = {"weight_map": {"model.layers.0.self_attn.k_proj.k_scale": "model-1.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert doctor("--checkpoint", str(tmp_path))[1]["kv cache"][0].startswith("passed")


@pytest.mark.parametrize("text", ["{", "[]", '{"quantization": 7}', "\ufeff{}", ""])
def test_a_damaged_quantization_config_is_told(node: Node, doctor: Doctor, tmp_path: Path, text: str) -> None:
    (tmp_path / "hf_quant_config.json").write_text(text)
    found = doctor("--checkpoint", str(tmp_path))[1]["kv cache"][0]
    assert found.startswith(("failed: hf_quant_config.json cannot be read", "passed: "))


def test_an_empty_environment_is_told_in_words(node: Node, doctor: Doctor) -> None:
    code, found = doctor()
    assert code == 10
    assert set(failures(found)) == {"torch", "kernels"}
    assert found["driver"][0].startswith("unknown: no GPU answers")


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--role", "node", "--python", "/nowhere"], 10, "no Python there: /nowhere"),
        (["--role", "node", "--recipe", "sample"], 2, "--recipe is for --role build"),
        (["--checkpoint", "x"], 2, "--checkpoint: only with --role node"),
        (["--role", "gpu"], 2, "gpu"),
    ],
)
def test_wrong_words_end_with_a_sentence(
    words: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["doctor", *words])
    assert ended.value.code == code
    assert says in capsys.readouterr().err
