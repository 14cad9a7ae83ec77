"""Render what a node needs to run SGLang on a release: a script, a systemd unit, and what is not proven.

Defaults are for SM120 (RTX PRO 6000 Blackwell, RTX 5090); a recipe's `[node]` table changes them. Nothing
here was run on such a GPU by this project: every value carries where it comes from.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace

from sglwheel.wheelhouse.lines import Lines
from sglwheel.wheelhouse.record import Release
from sglwheel.wheelhouse.rendering import render_text

Value = str | int | bool


@dataclass(frozen=True)
class Setting:
    """A flag or variable: why it is set, and who says so."""

    name: str
    value: Value
    reason: str
    source: str

    @property
    def word(self) -> str:
        """As it stands in a shell script."""
        if self.name.startswith("--"):
            return self.name if self.value is True else f"{self.name} {shlex.quote(str(self.value))}"
        return f"{self.name}={shlex.quote(str(self.value))}"


@dataclass(frozen=True)
class Refusal:
    """Arguments that are known to fail or to compute garbage here; `pattern` is a shell pattern."""

    flag: str
    pattern: str
    reason: str
    source: str


_SGLANG = "sgl-project/sglang"
ARGUMENTS = (
    Setting(
        "--attention-backend",
        "flashinfer",
        "The trtllm backends need tcgen05 instructions, FA3 needs SM90: SM120 has neither. "
        "Hybrid GDN models may ask for triton instead.",
        f"{_SGLANG}#18758, #24633, #35080",
    ),
    Setting(
        "--moe-runner-backend",
        "triton",
        "The trtllm MoE kernels have no SM120 code. For NVFP4 experts try flashinfer_cutlass, "
        "and compare answers first: wrong output was reported.",
        f"{_SGLANG}#18758, flashinfer-ai/flashinfer#2723",
    ),
    Setting(
        "--fp4-gemm-backend",
        "cutlass",
        "The wheel's own ahead-of-time NVFP4 kernels; the others compile on the node.",
        "the recipe; later SGLang calls flashinfer_cutlass its SM120 default",
    ),
    Setting(
        "--kv-cache-dtype",
        "bf16",
        "`auto` takes FP8 without a word when the checkpoint's hf_quant_config.json declares it, "
        "and without calibrated scales uses 1.0.",
        f"{_SGLANG}#11749, sgl-project/sgl-cookbook#237",
    ),
    Setting(
        "--disable-custom-all-reduce",
        True,
        "It relies on peer access between all GPUs, which PCIe-only hosts often lack; NCCL does not.",
        "general advice for hosts without NVLink; not measured here",
    ),
)
ENVIRONMENT = (
    Setting(
        "NCCL_P2P_LEVEL",
        "SYS",
        "Lets NCCL use peer-to-peer across PCIe switches and sockets where the platform has it; "
        "set NCCL_P2P_DISABLE=1 instead if the first all-reduce hangs.",
        "NCCL documentation; tinygrad/open-gpu-kernel-modules#45 for the hang",
    ),
    Setting(
        "NCCL_IB_DISABLE",
        "1",
        "One host without InfiniBand: nothing to search for. Remove it on a cluster.",
        "NCCL documentation",
    ),
)
REFUSALS = (
    Refusal(
        "--attention-backend",
        "trtllm*|fa3|fa4|flashmla*|cutlass_mla",
        "has no SM120 code",
        f"{_SGLANG}#24633",
    ),
    Refusal("--prefill-attention-backend", "trtllm*|fa3|flashmla*", "has no SM120 code", f"{_SGLANG}#24633"),
    Refusal("--moe-runner-backend", "flashinfer_trtllm*|deep_gemm", "has no SM120 code", f"{_SGLANG}#18758"),
    Refusal(
        "--kv-cache-dtype",
        "fp8*|fp4*",
        "uses scales of 1.0 unless the checkpoint has its own",
        "sgl-cookbook#237",
    ),
)
NOT_PROVEN = (
    "that the flags give right answers with your model: compare with a known-good host first",
    "speed with these backends, alone and across GPUs",
    "NCCL's settings on your board: run all_reduce_perf before the first model",
    "that your SGLang knows every flag: the script stops if it does not",
)


@dataclass(frozen=True)
class Kit:
    """What is rendered for one release."""

    release: Release
    arguments: tuple[Setting, ...]
    environment: tuple[Setting, ...]

    @classmethod
    def of(
        cls,
        release: Release,
        *,
        arguments: Mapping[str, Value] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Kit:
        """The defaults, changed by a recipe's `[node]`; `false` drops a flag, an empty string a variable."""
        return cls(release, _merge(ARGUMENTS, arguments or {}), _merge(ENVIRONMENT, environment or {}))

    def files(self, location: str) -> dict[str, str]:
        """File names and their text; `location` is where the node sees the wheelhouse."""
        values = {
            "kit": self,
            "record": self.release.record,
            "lines": Lines(self.release.record, location),
            "location": shlex.quote(location),
            "refusals": REFUSALS,
            "not_proven": NOT_PROVEN,
            "gpu": bool(self.release.record.status == "release"),
        }
        names = ("launch.sh", "sglang.service", "README.md")
        return {name: render_text(f"node/{name}", **values) for name in names}


def _merge(defaults: tuple[Setting, ...], changes: Mapping[str, Value]) -> tuple[Setting, ...]:
    known = {setting.name: setting for setting in defaults}
    for name, value in changes.items():
        base = known.get(name, Setting(name, value, "", ""))
        known[name] = replace(base, value=value, reason="Set by the recipe.", source="[node]")
    return tuple(setting for setting in known.values() if setting.value is not False and setting.value != "")
