"""Sort the symbols that a library leaves open by who is to define them."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from sglwheel.inspect import sonames
from sglwheel.inspect.abi import Cause, compare, is_torch
from sglwheel.inspect.libraries import Library
from sglwheel.inspect.report import Subject
from sglwheel.inspect.wheelfile import WheelFile

_PYTHON = re.compile(r"_?Py[A-Z_]\w*")
# cuMemFree, cuGetProcAddress_v2; not cudaFree, cublasCreate or cuFileOpen.
_DRIVER = re.compile(r"cu(?!File)[A-Z]\w*")
# What the CUDA wheels beside torch define, by prefix. They are in torch's own NEEDED, so they are loaded
# already.
_CUDA = re.compile(
    r"(cuda[A-Z]|__cuda|cublas|curand|cufft|cusparse|cusolver|nvrtc|nvJitLink|__nvJitLink|nccl|pnccl|cudnn|cuFile|nvtx"
    r"|cupti|nvshmem)\w*"
)
_NODE = {re.compile(r"numa_\w+|move_pages|mbind"): "libnuma.so.1", re.compile(r"ibv_\w+"): "libibverbs.so.1"}
_NVML = re.compile(r"nvml[A-Z]\w*")
_STANDARD = re.compile(
    r"_ZT?[IVSv]?N?[VKRO]*S[tabsiod]\w*|_Z(nw|na|dl|da)\w+|__cxa_\w+|__gxx_\w+|_ZTVN10__cxxabiv\w*|_Unwind_\w+"
)


def _open(library: Library) -> Iterator[str]:
    """Names that must be defined elsewhere and say no version: a version already says by which library."""
    for symbol in library.undefined:
        if not symbol.weak and (symbol.library is None or symbol.library not in library.needed):
            yield symbol.name


def python_symbols(library: Library) -> tuple[str, ...]:
    return tuple(sorted(name for name in _open(library) if _PYTHON.fullmatch(name)))


def driver_calls(library: Library) -> tuple[str, ...]:
    """Functions of the CUDA driver, and of its NVML."""
    return tuple(sorted(name for name in _open(library) if _DRIVER.fullmatch(name)))


def torch_symbols(library: Library, subject: Subject) -> tuple[str, ...]:
    """Symbols that torch has to define."""
    return tuple(
        sorted(name for name in _open(library) if not _by_others(name, library, subject) and is_torch(name))
    )


def torch_causes(subject: Subject) -> tuple[Cause, ...]:
    """Why the libraries would not load with the torch beside them."""
    if subject.torch is None:
        return ()
    return compare(
        ((library.path, name) for library in subject.libraries for name in torch_symbols(library, subject)),
        subject.torch,
    )


def fitting(subject: Subject) -> tuple[str, ...]:
    """Torch releases that all libraries of the wheel would load with; empty where none uses torch."""
    wanted = {name for library in subject.libraries for name in torch_symbols(library, subject)}
    if not wanted:
        return ()
    needed = {soname for library in subject.libraries for soname in library.needed} - subject.sonames
    fits = subject.releases.fitting(wanted, needed)
    # Symbols do not show how classes are laid out, and torch changes that between minor releases (what is of
    # 2.8 aborts in 2.9 where every symbol is there): where the wheel names its torch, no other minor counts.
    pinned = pinned_torch(subject.wheel)
    return tuple(
        label for label in fits if pinned is None or Version(label).release[:2] == pinned.release[:2]
    )


def pinned_torch(wheel: WheelFile) -> Version | None:
    """The torch that METADATA requires exactly."""
    for text in wheel.requires:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        exact = [each.version for each in requirement.specifier if each.operator == "=="]
        if canonicalize_name(requirement.name) == "torch" and exact and "*" not in exact[0]:
            return Version(exact[0])
    return None


def blockers(library: Library, subject: Subject) -> tuple[str, ...]:
    """Why a library would not load beside the subject's torch: symbols and SONAMEs that nobody brings.

    Empty means that it loads, as far as files tell: a dynamic loader asks for nothing else.
    """
    if library.broken:
        return (library.broken,)
    exported = subject.torch.symbols if subject.torch is not None else frozenset[str]()
    found = [name for name in torch_symbols(library, subject) if subject.torch and name not in exported]
    found += unresolved(library, subject)
    found += [
        soname
        for soname in library.needed
        if sonames.classify(soname, subject.sonames, subject.cuda_major).kind == "unknown"
    ]
    return tuple(found)


def unresolved(library: Library, subject: Subject) -> tuple[str, ...]:
    """Symbols that nobody defines, as far as files can tell."""
    return tuple(
        sorted(
            name
            for name in _open(library)
            if not _by_others(name, library, subject)
            and not is_torch(name)
            and (subject.torch is None or name not in subject.torch.symbols)
        )
    )


def _by_others(name: str, library: Library, subject: Subject) -> bool:
    if (
        _PYTHON.fullmatch(name)
        or _DRIVER.fullmatch(name)
        or _CUDA.fullmatch(name)
        or name in library.exported
    ):
        return True
    if _STANDARD.fullmatch(name):
        return "libstdc++.so.6" in library.needed or "libgcc_s.so.1" in library.needed
    if _NVML.fullmatch(name):
        return "libnvidia-ml.so.1" in library.needed
    if any(pattern.fullmatch(name) and soname in library.needed for pattern, soname in _NODE.items()):
        return True
    return any(
        name in other.exported and (other.soname in library.needed or other.file_name in library.needed)
        for other in subject.libraries
        if other is not library
    )


def outside_stable_abi(library: Library, minor: int) -> tuple[str, ...]:
    """Python symbols that Python 3.`minor`'s stable ABI does not have."""
    stable = _stable_abi()
    return tuple(name for name in python_symbols(library) if stable.get(name, 999) > minor)


@functools.cache
def _stable_abi() -> dict[str, int]:
    # Half a megabyte of tables: only where a wheel claims abi3.
    import abi3info

    added: dict[str, int] = {}
    for table in (abi3info.FUNCTIONS, abi3info.DATAS):
        for symbol, entry in table.items():
            added[symbol.name] = entry.added.minor
    return added
