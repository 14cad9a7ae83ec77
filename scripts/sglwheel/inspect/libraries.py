"""What one shared library says about itself: the facts that the rules judge."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sglwheel.inspect import fatbin, kernels, operators
from sglwheel.inspect.elf import Elf, ElfError, Undefined
from sglwheel.inspect.fatbin import FatbinError, Target
from sglwheel.inspect.kernels import Kernel


@dataclass(frozen=True)
class Library:
    """One ELF file of the wheel; with `broken` set nothing more is known."""

    path: str
    size: int
    broken: str | None = None
    device_error: str | None = None
    """Where its fat binaries contradict themselves."""
    machine: str = ""
    soname: str | None = None
    needed: tuple[str, ...] = ()
    rpaths: tuple[str, ...] = ()
    versions: frozenset[str] = frozenset()
    """Symbol versions asked of other libraries: GLIBC_2.34."""
    undefined: tuple[Undefined, ...] = field(default=(), repr=False)
    exported: frozenset[str] = field(default=frozenset(), repr=False)
    targets: tuple[tuple[Target, int], ...] = ()
    """Each GPU target with the number of its fatbin entries."""
    device_bytes: int = 0
    """Size of the GPU code as stored."""
    schemas: tuple[str, ...] = ()
    kernels: tuple[Kernel, ...] = field(default=(), repr=False)
    """The largest kernels, where they were asked for."""

    @property
    def sass(self) -> tuple[str, ...]:
        """SASS targets: `sm_120a`."""
        return tuple(str(target) for target, _ in self.targets if target.kind == "sass")

    @property
    def ptx(self) -> tuple[str, ...]:
        """PTX targets, and LTO intermediate code, which is compiled on the node just the same."""
        return tuple(str(target) for target, _ in self.targets if target.kind != "sass")

    @property
    def top_level(self) -> str:
        return self.path.split("/", 1)[0]

    @property
    def file_name(self) -> str:
        return self.path.rsplit("/", 1)[-1]

    @property
    def initialises(self) -> frozenset[str]:
        """Names of Python modules that it defines."""
        return frozenset(name.removeprefix("PyInit_") for name in self.exported if name.startswith("PyInit_"))


def read(path: str, copy: Path, holes: Sequence[tuple[int, int]] = (), *, largest: int = 0) -> Library | None:
    """Read a library; None for an ELF file that no loader loads (an object file, a cubin).

    `copy` may lack GPU code at `holes`; not where the `largest` kernels are asked for.
    """
    size = copy.stat().st_size
    try:
        with Elf(copy, holes=holes) as elf:
            if elf.type not in (2, 3) or elf.machine == "cuda":
                return None
            if elf.type == 2 and not path.endswith(".so") and ".so." not in path:
                return None
            counted = Counter[Target]()
            stored = 0
            device_error = None
            try:
                for entry in fatbin.entries(elf):
                    counted[entry.target] += 1
                    stored += entry.stored
            except FatbinError as error:
                device_error = str(error)
            wanted = kernels.read(elf, path) if largest and device_error is None else []
            return Library(
                path=path,
                size=size,
                device_error=device_error,
                machine=elf.machine,
                soname=elf.soname,
                needed=elf.needed,
                rpaths=elf.rpaths,
                versions=frozenset(version for version, _ in elf.version_needs.values()),
                undefined=elf.undefined,
                exported=elf.exported,
                targets=tuple(sorted(counted.items())),
                device_bytes=stored,
                schemas=operators.schemas(elf),
                kernels=tuple(heapq.nlargest(largest, wanted)),
            )
    except ElfError as error:
        return Library(path=path, size=size, broken=str(error))
