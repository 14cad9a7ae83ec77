"""The kernel libraries of a node against its GPUs, its torch and its system."""

from __future__ import annotations

import ctypes
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sglwheel.errors import UsageError
from sglwheel.inspect import Cause, Library, TorchSymbols, inspect, installed, loader, sonames, undefined
from sglwheel.nodecheck.node import KERNELS, Gpu
from sglwheel.nodedoctor import device
from sglwheel.nodedoctor.diagnosis import Finding
from sglwheel.nodedoctor.environment import Environment

# Where PyTorch and FlashInfer look for a toolkit that nobody names.
_CUDA_HOME = "/usr/local/cuda"
# NVFP4 ahead of time: without these SGLang compiles on the node (upstream from 2026-03-07 on).
_FP4_OPERATORS = frozenset({"cutlass_scaled_fp4_mm", "scaled_fp4_quant"})


@dataclass(frozen=True)
class Held:
    """The kernels that are judged: those of a wheel, or those that are installed."""

    label: str
    distribution: str
    version: str
    libraries: tuple[Library, ...]
    causes: tuple[Cause, ...]
    operators: frozenset[str]
    """Names without namespace, as far as the libraries' text shows."""
    packages: frozenset[str]

    @property
    def sonames(self) -> frozenset[str]:
        return frozenset(
            name for library in self.libraries for name in (library.soname, library.file_name) if name
        )


def held(environment: Environment, wheel: Path | None, torch: TorchSymbols | None) -> Held | None:
    """Read the wheel, or what is installed of SGLang's kernels; None when nothing is.

    Raises UsageError when the wheel is not there, InspectionError for what is not one.
    """
    if wheel is not None:
        if not wheel.is_file():
            raise UsageError(f"no such wheel: {wheel}", next="ls wheelhouse/*.whl")
        found = inspect(wheel, torch=torch)
        name = found.wheel.name
        return Held(
            label=found.wheel.file_name,
            distribution=name.distribution if name else wheel.name,
            version=str(name.version) if name else "",
            libraries=found.libraries,
            causes=found.causes,
            operators=_short(found.operators),
            packages=frozenset(found.wheel.top_level),
        )
    for name_ in KERNELS:
        distribution = environment.distribution(name_)
        if distribution is None:
            continue
        subject = installed.subject(distribution, torch)
        names = {one for library in subject.libraries for one in subject.operators_of(library)}
        return Held(
            label=f"{name_} {distribution.version}, installed",
            distribution=name_,
            version=distribution.version,
            libraries=subject.libraries,
            causes=undefined.torch_causes(subject),
            operators=_short(names),
            packages=frozenset(subject.wheel.top_level),
        )
    return None


def _short(operators: Sequence[str] | set[str]) -> frozenset[str]:
    return frozenset(name.split("::")[-1].split(".")[0] for name in operators)


def architectures(held: Held | None, gpus: Sequence[Gpu]) -> Iterator[Finding]:
    """Whether SGLang's loader finds code for each GPU in the library that it takes there."""
    if held is None:
        yield Finding(
            "kernels",
            "failed",
            f"none of {', '.join(KERNELS)} is installed",
            "install a wheel of the wheelhouse",
        )
        return
    seen = sorted({gpu.capability for gpu in gpus})
    if not seen:
        targets = sorted({target for library in held.libraries for target in (*library.sass, *library.ptx)})
        yield Finding("architectures", "unknown", f"no GPU answers; there is code for {', '.join(targets)}")
    for text in seen:
        gpu = next(gpu for gpu in gpus if gpu.capability == text)
        name, capability = gpu.name, device.capability(gpu)
        if capability is None:
            yield Finding("architectures", "unknown", f"{name}: the driver says {text!r} for its capability")
            continue
        choice = loader.choose(held.libraries, capability)
        if choice.runs:
            yield Finding(
                "architectures", "passed", f"{name} ({text}) runs {choice.runs} of {choice.library}"
            )
            continue
        inside = next((each for each in held.libraries if each.path == choice.library), None)
        what = ", ".join((*inside.sass, *inside.ptx)) if inside else "nothing"
        where = choice.library or f"no {loader.variant(capability)}/common_ops"
        yield Finding(
            "architectures",
            "failed",
            f"{name} is {text}; the library for it ({where}) has {what}",
            f'build one with architectures = ["{text}a"], or take such a wheel from the wheelhouse',
        )


def torch_symbols(held: Held | None, torch: TorchSymbols | None) -> Iterator[Finding]:
    """Whether this torch exports every symbol that the libraries ask of it."""
    if held is None or torch is None:
        return
    if not held.causes:
        yield Finding("torch symbols", "passed", f"torch {torch.label} exports all")
        return
    count = sum(len(cause.symbols) for cause in held.causes)
    yield Finding(
        "torch symbols",
        "failed",
        f"torch {torch.label} lacks {count}: " + "; ".join(cause.text for cause in held.causes),
        f"install a wheel that was built for torch {torch.label.partition('+')[0]}, not another torch",
    )


def libraries(held: Held | None, torch: TorchSymbols | None) -> Iterator[Finding]:
    """Whether this system has what the libraries need of it: each missing one by name, with its package."""
    if held is None:
        return
    needed = sorted({name for library in held.libraries for name in library.needed})
    wanted = 0
    missing = False
    for soname in needed:
        origin = sonames.classify(soname, held.sonames, torch.cuda_major if torch else None)
        if origin.kind == "unknown":
            missing = True
            yield Finding(
                "libraries", "failed", f"{soname}: {origin.text}", "install the right wheel for this torch"
            )
        elif origin.kind in ("node", "driver", "baseline"):
            wanted += 1
            if (why := _unloadable(soname)) is not None:
                missing = True
                users = ", ".join(each.path for each in held.libraries if soname in each.needed)
                remedy = {"driver": "install the NVIDIA driver", "node": f"install it: {origin.text}"}
                yield Finding(
                    "libraries",
                    "failed",
                    f"{soname} is missing, needed by {users}: {why}",
                    remedy.get(origin.kind, "install it from the distribution"),
                )
    if not missing:
        yield Finding("libraries", "passed", f"this system has all {wanted} that it must bring itself")


def _unloadable(soname: str) -> str | None:
    try:
        ctypes.CDLL(soname)
    except OSError as error:
        return str(error).removeprefix(f"{soname}: ")
    return None


def compilers(held: Held | None, gpus: Sequence[Gpu]) -> Iterator[Finding]:
    """Compilers on the node, where the kernels leave something to be compiled there."""
    if held is None:
        return
    reasons = []
    if (
        any((device.capability(gpu) or (0, 0)) >= (10, 0) for gpu in gpus)
        and not held.operators >= _FP4_OPERATORS
    ):
        reasons.append("NVFP4 is not compiled ahead of time in these kernels")
    if "deep_gemm" in held.packages:
        reasons.append("DeepGEMM compiles its kernels when they are first used")
    if not reasons:
        yield Finding("compilers", "passed", "these kernels are complete: nothing of them is compiled here")
        return
    nvcc = shutil.which("nvcc") or _existing("nvcc")
    cxx = next((name for name in ("c++", "g++", "clang++") if shutil.which(name)), None)
    lacking = [
        name
        for name, there in (("nvcc", nvcc), ("ninja", shutil.which("ninja")), ("a C++ compiler", cxx))
        if not there
    ]
    if lacking:
        yield Finding(
            "compilers",
            "failed" if reasons[0].startswith("NVFP4") else "warning",
            f"{'; '.join(reasons)}: missing {', '.join(lacking)}",
            "install the CUDA toolkit of torch's CUDA, ninja and g++, and set CUDA_HOME",
        )
    else:
        yield Finding("compilers", "passed", f"{'; '.join(reasons)}; nvcc, ninja and {cxx} are there")


def _existing(tool: str) -> str | None:
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), _CUDA_HOME]
    return next((path for home in homes if home and os.access(path := f"{home}/bin/{tool}", os.X_OK)), None)
