"""Who brings a library that a wheel needs: torch, its CUDA wheels, the driver, the distribution, or the node's owner."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Literal

Kind = Literal["wheel", "torch", "cuda", "driver", "baseline", "node", "python", "unknown"]

_TORCH = frozenset(
    "libtorch.so libtorch_cpu.so libtorch_cuda.so libtorch_cuda_linalg.so libtorch_python.so libc10.so libc10_cuda.so"
    " libshm.so libcaffe2_nvrtc.so libtorch_global_deps.so libtorch_nvshmem.so".split()
)
# SONAMEs of what torch's Linux wheels depend on, by CUDA major (read from torch 2.9 … 2.12 and their nvidia-* wheels).
_CUDA: dict[int, frozenset[str]] = {
    12: frozenset(
        "libcudart.so.12 libcublas.so.12 libcublasLt.so.12 libnvblas.so.12 libnvrtc.so.12 libcufft.so.11 libcufftw.so.11"
        " libcurand.so.10 libcusolver.so.11 libcusolverMg.so.11 libcusparse.so.12 libnvJitLink.so.12 libcupti.so.12"
        " libcudnn.so.9 libnccl.so.2 libcusparseLt.so.0 libcufile.so.0 libnvToolsExt.so.1 libnvshmem_host.so.3".split()
    ),
    13: frozenset(
        "libcudart.so.13 libcublas.so.13 libcublasLt.so.13 libnvblas.so.13 libnvrtc.so.13 libcufft.so.12 libcufftw.so.12"
        " libcurand.so.10 libcusolver.so.12 libcusolverMg.so.12 libcusparse.so.12 libnvJitLink.so.13 libcupti.so.13"
        " libcudnn.so.9 libnccl.so.2 libcusparseLt.so.0 libcufile.so.0 libnvshmem_host.so.3".split()
    ),
}
_CUDA_NAME = re.compile(
    r"lib(cudart|cublas|cublasLt|nvblas|nvrtc|nvrtc-builtins|cufftw?|curand|cusolver|cusolverMg|cusparse|nvJitLink|cupti"
    r"|cudnn|nccl|cusparseLt|cufile|nvToolsExt|nvshmem_host|nvfatbin|nvjpeg|npp\w+)\.so(\.(?P<major>\d+))?.*"
)
# Their major number is CUDA's own.
_FOLLOWS_CUDA = re.compile(r"lib(cudart|cublas|cublasLt|nvblas|nvrtc|nvJitLink|cupti)\.so\.(?P<major>\d+)")
_DRIVER = frozenset({"libcuda.so.1", "libnvidia-ml.so.1", "libnvidia-ptxjitcompiler.so.1", "libnvcuvid.so.1"})
_NODE = {
    "libnuma.so.1": "Debian/Ubuntu `libnuma1`, Fedora/RHEL `numactl-libs`, openSUSE `libnuma1`, Arch `numactl`",
    "libibverbs.so.1": "Debian/Ubuntu `libibverbs1`, Fedora/RHEL `libibverbs`, openSUSE `libibverbs1`, Arch `rdma-core`",
    "libmlx5.so.1": "Debian/Ubuntu `ibverbs-providers`, Fedora/RHEL `libibverbs`, Arch `rdma-core`",
    "libgomp.so.1": "Debian/Ubuntu `libgomp1`, Fedora/RHEL `libgomp`, Arch `gcc-libs`",
    "libtbb.so.12": "Debian/Ubuntu `libtbb12`, Fedora/RHEL `tbb`",
}


@dataclass(frozen=True)
class Origin:
    """Where a NEEDED library comes from."""

    kind: Kind
    text: str


def package_for(soname: str) -> str | None:
    """Which package of which distribution brings a library, where that is known."""
    return _NODE.get(soname)


def cuda_major(soname: str) -> int | None:
    """The CUDA major that a soname commits to: 12 for `libcudart.so.12`."""
    match = _FOLLOWS_CUDA.fullmatch(soname)
    return int(match["major"]) if match else None


def classify(soname: str, inside: frozenset[str], major: int | None) -> Origin:
    """Say who brings `soname`. `inside`: SONAMEs and file names in the wheel; `major`: CUDA of the torch beside it."""
    if soname in inside:
        return Origin("wheel", "in the wheel")
    if soname in _TORCH:
        return Origin("torch", "in torch's wheel")
    if soname in _DRIVER:
        return Origin("driver", "from the NVIDIA driver")
    if soname.startswith("libpython"):
        return Origin("python", "a particular Python's shared library")
    if _CUDA_NAME.fullmatch(soname):
        own = cuda_major(soname)
        known = _CUDA.get(major) if major is not None else frozenset().union(*_CUDA.values())
        if known is None:
            return Origin("cuda", "from the CUDA wheels that torch needs") if own in (None, major) else Origin(
                "unknown", f"of CUDA {own}, beside a torch of CUDA {major}"
            )
        if soname in known:
            return Origin("cuda", "from the CUDA wheels that torch needs")
        wrong = f"of CUDA {own}" if own is not None else "of another CUDA"
        return Origin("unknown", wrong + (f", beside a torch of CUDA {major}" if major else ""))
    if soname in _baseline() or soname.startswith(("ld-linux", "ld64.so", "linux-vdso")):
        return Origin("baseline", "on every Linux that the platform tag promises")
    if soname in _NODE:
        return Origin("node", _NODE[soname])
    return Origin("unknown", "brought by neither torch, the driver nor every Linux")


@functools.cache
def _baseline() -> frozenset[str]:
    """auditwheel's list of libraries that manylinux counts on, without those of a desktop."""
    from auditwheel.architecture import Architecture
    from auditwheel.libc import Libc
    from auditwheel.policy import WheelPolicies

    policies = WheelPolicies(libc=Libc.GLIBC, arch=Architecture.x86_64)
    return policies.highest.whitelist
