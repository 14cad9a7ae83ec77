"""Compile five lines of CUDA before an hour of compiling."""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from sglwheel import process
from sglwheel.errors import ToolchainError
from sglwheel.files import Layout, cache_directory, write_atomic
from sglwheel.toolchain.host import Compiler
from sglwheel.types import CudaArch

_PROBE = """\
#include <cuda_runtime.h>
#include <cuda/std/utility>
#include <cmath>
#include <string>
__global__ void probe(float *x) { x[0] = cuda::std::move(x[0]) * 2.0f; }
int main() { probe<<<1, 1>>>(nullptr); return std::string("probe").size() == 5 ? 0 : int(std::rint(1.5)); }
"""
_LIBRARY = """\
#include <stdexcept>
extern "C" void probe(const char *said) { throw std::runtime_error(said); }
"""
_REMEDIES = (
    (
        re.compile(r"unsupported GNU version|unsupported clang version", re.IGNORECASE),
        "the host compiler is newer than this CUDA knows: install an older one and name it, like CXX=g++-14",
    ),
    (
        re.compile(
            r"exception specification is incompatible|\b(cospi|sinpi|rsqrt)f?\b.*(incompatible|declared)"
        ),
        "glibc 2.41 and newer declare functions that this CUDA declares: name a newer build.cuda-toolkit, "
        "or build on a distribution with an older glibc (Debian 12, Ubuntu 24.04)",
    ),
    (
        re.compile(r"__SV(Float|Int|Uint|Bool)|arm_sve|__Float32x4_t|__mfp8"),
        "this CUDA does not know the compiler's SVE types: install an older one and name it, like CXX=g++-13",
    ),
    (
        re.compile(r"Unsupported gpu architecture|is not defined for option 'gpu-architecture'"),
        "this CUDA does not know one of build.architectures: name a newer build.cuda-toolkit",
    ),
    (
        re.compile(r"cuda_runtime\.h|cuda/std/utility"),
        "the toolkit lacks headers: a broken cache? delete its directory and run again",
    ),
)


def remedy(text: str) -> str | None:
    """What to do about a compiler's message that we know."""
    return next((advice for pattern, advice in _REMEDIES if pattern.search(text)), None)


def compile_probe(
    nvcc: Path,
    compiler: Compiler,
    architectures: Sequence[CudaArch],
    environment: Mapping[str, str],
    layout: Layout,
) -> None:
    """Compile and link five lines of CUDA for every architecture, before an hour of compiling.

    And that C++ libraries share the system's runtime, as torch's do (docs/device-sm90.md). A pass is
    remembered for the same nvcc, compiler and targets. Raises ToolchainError with what to do.
    """
    gencodes = [
        f"-gencode=arch={arch.compute},code=[{arch.compute},{arch.sm}]"
        if arch.ptx
        else f"-gencode=arch={arch.compute},code={arch.sm}"
        for arch in architectures
    ]
    facts = [
        _LIBRARY,
        str(nvcc),
        str(nvcc.stat().st_mtime_ns),
        str(compiler.cxx),
        compiler.description,
        *gencodes,
    ]
    key = hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]
    passed = cache_directory(layout.cache / "probes") / key
    if passed.exists():
        return
    with tempfile.TemporaryDirectory(prefix="sglwheel-probe-") as name:
        _shares_runtime(compiler, environment, Path(name))
        code = Path(name) / "probe.cu"
        code.write_text(_PROBE)
        done = process.run(
            [
                nvcc,
                "-std=c++17",
                *gencodes,
                "-ccbin",
                compiler.cxx,
                code,
                "-o",
                Path(name) / "probe",
                "-lcudadevrt",
            ],
            failure=ToolchainError,
            cwd=Path(name),
            env=environment,
            accept=range(-64, 256),
            timeout=300,
            what="the CUDA compiler probe",
        )
    if done.returncode != 0:
        text = (done.stderr + done.stdout).strip()
        lines = [line for line in text.splitlines() if "error" in line.lower()] or text.splitlines()[-3:]
        raise ToolchainError(
            "nvcc cannot compile five lines with this host's compiler",
            where={
                "nvcc": str(nvcc),
                "compiler": f"{compiler.cxx} ({compiler.description})",
                "says": "\n".join(line[:300] for line in lines[:3])
                or process.describe_status(done.returncode),
            },
            next=remedy(text) or "try another host compiler (CXX=...) or another build.cuda-toolkit",
        )
    write_atomic(passed, compiler.description + "\n")


def _shares_runtime(compiler: Compiler, environment: Mapping[str, str], directory: Path) -> None:
    """Raise ToolchainError for a compiler whose libraries bring a C++ runtime of their own."""
    code, library = directory / "probe.cpp", directory / "probe.so"
    code.write_text(_LIBRARY)
    process.run(
        [compiler.cxx, "-shared", "-fPIC", code, "-o", library],
        failure=ToolchainError,
        cwd=directory,
        env=environment,
        timeout=300,
        what="linking a C++ library",
        next="try another host compiler (CXX=...)",
    )
    if b"libstdc++.so" not in library.read_bytes():
        raise ToolchainError(
            "this host's compiler links C++ libraries without the shared libstdc++",
            where={
                "compiler": f"{compiler.cxx} ({compiler.description})",
                "why": "two C++ runtimes beside torch end the process at the first number in a message",
            },
            next="name another compiler: CXX=/usr/bin/g++",
        )
