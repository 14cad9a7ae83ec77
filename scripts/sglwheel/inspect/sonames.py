"""Who brings a library that a wheel needs: torch, its CUDA wheels, the driver, or the node's system."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Literal

Kind = Literal["wheel", "torch", "cuda", "driver", "baseline", "node", "python", "unknown"]

_TORCH = re.compile(
    r"lib(torch(_cpu|_cuda|_cuda_linalg|_python|_global_deps|_nvshmem)?|c10(_cuda)?|shm|caffe2_nvrtc)\.so"
)
# Number in the SONAME of what torch's Linux wheels depend on, for CUDA 12 and 13 (read from torch 2.9 to 2.12
# and their nvidia-* wheels). Where they differ, the one's library is of no use beside a torch of the other.
_CUDA: dict[str, dict[int, int]] = {
    "cublas": {12: 12, 13: 13},
    "cublasLt": {12: 12, 13: 13},
    "cudart": {12: 12, 13: 13},
    "cudnn": {12: 9, 13: 9},
    "cufft": {12: 11, 13: 12},
    "cufftw": {12: 11, 13: 12},
    "cufile": {12: 0, 13: 0},
    "cupti": {12: 12, 13: 13},
    "curand": {12: 10, 13: 10},
    "cusolver": {12: 11, 13: 12},
    "cusolverMg": {12: 11, 13: 12},
    "cusparse": {12: 12, 13: 12},
    "cusparseLt": {12: 0, 13: 0},
    "nccl": {12: 2, 13: 2},
    "nvJitLink": {12: 12, 13: 13},
    "nvToolsExt": {12: 1},
    "nvblas": {12: 12, 13: 13},
    "nvrtc": {12: 12, 13: 13},
    "nvshmem_host": {12: 3, 13: 3},
}
_CUDA_NAME = re.compile(r"lib(?P<name>\w+)\.so\.(?P<number>\d+)")
_DRIVER = frozenset({"libcuda.so.1", "libnvidia-ml.so.1", "libnvidia-ptxjitcompiler.so.1", "libnvcuvid.so.1"})
_NODE = {
    "libnuma.so.1": "Debian/Ubuntu libnuma1, Fedora/RHEL numactl-libs, openSUSE libnuma1, Arch numactl",
    "libibverbs.so.1": "Debian/Ubuntu libibverbs1, Fedora/RHEL libibverbs, Arch rdma-core",
    "libmlx5.so.1": "Debian/Ubuntu ibverbs-providers, Fedora/RHEL libibverbs, Arch rdma-core",
    "libgomp.so.1": "Debian/Ubuntu libgomp1, Fedora/RHEL libgomp, Arch gcc-libs",
}


@dataclass(frozen=True)
class Origin:
    """Where a NEEDED library comes from."""

    kind: Kind
    text: str


def package_for(soname: str) -> str | None:
    """Which package of which distribution brings a library, where that is known."""
    return _NODE.get(soname)


def cuda_majors(soname: str) -> frozenset[int]:
    """The CUDA majors whose torch brings a library: {12} for `libcudart.so.12`; empty for others."""
    match = _CUDA_NAME.fullmatch(soname)
    if match is None:
        return frozenset()
    by_major = _CUDA.get(match["name"], {})
    return frozenset(major for major, number in by_major.items() if number == int(match["number"]))


def classify(soname: str, inside: frozenset[str], major: int | None) -> Origin:
    """Say who brings `soname`.

    `inside`: SONAMEs and file names in the wheel; `major`: CUDA of the torch that the wheel runs beside.
    """
    if soname in inside:
        return Origin("wheel", "in the wheel")
    if _TORCH.fullmatch(soname):
        return Origin("torch", "in torch's wheel")
    if soname in _DRIVER:
        return Origin("driver", "from the NVIDIA driver")
    if soname.startswith("libpython"):
        return Origin("python", "the shared library of one particular Python")
    match = _CUDA_NAME.fullmatch(soname)
    if match is not None and match["name"] in _CUDA:
        majors = cuda_majors(soname)
        if major in majors or (major is None and majors):
            return Origin("cuda", "from the CUDA wheels that torch needs")
        of = " and ".join(map(str, sorted(majors))) or "another release"
        return Origin("unknown", f"of CUDA {of}" + (f", beside a torch of CUDA {major}" if major else ""))
    if soname in _baseline() or soname.startswith(("ld-linux", "ld64.so")):
        return Origin("baseline", "on every Linux that the platform tag promises")
    if soname in _NODE:
        return Origin("node", _NODE[soname])
    return Origin("unknown", "brought by neither torch, the driver nor every Linux")


@functools.cache
def _baseline() -> frozenset[str]:
    """What manylinux counts on, by auditwheel's policies."""
    # Loading the policies takes a quarter of a second.
    from auditwheel.architecture import Architecture
    from auditwheel.libc import Libc
    from auditwheel.policy import WheelPolicies

    names: frozenset[str] = WheelPolicies(libc=Libc.GLIBC, arch=Architecture.x86_64).highest.whitelist
    return names
