"""Which torch releases does a wheel load with? One table answers for many, without downloading any.

Most symbols are the same from release to release, so the table keeps each once, with a bit per release: a
dozen take little more room than one. It holds torch's own names only, not those of what torch bundles.
"""

from __future__ import annotations

import functools
import lzma
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version

from sglwheel.errors import ToolchainError
from sglwheel.files import write_atomic
from sglwheel.inspect import sonames
from sglwheel.inspect.abi import TorchSymbols, is_torch

_SHIPPED = Path(__file__).with_name("data") / "torch-releases.xz"
_MAX_TABLE = 512 << 20
_HEADER = re.compile(r"# torch (\S+) cuda (\S+)")


@dataclass(frozen=True)
class Releases:
    """Torch builds, oldest first, and for every symbol a bit for each build that exports it."""

    builds: tuple[tuple[str, str | None], ...]
    masks: Mapping[str, int]

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(label for label, _ in self.builds)

    def fitting(self, symbols: Iterable[str], needed: Iterable[str]) -> tuple[str, ...]:
        """Builds that export all `symbols`, and whose CUDA brings all `needed` libraries of CUDA."""
        mask = (1 << len(self.builds)) - 1
        for name in symbols:
            mask &= self.masks.get(name, 0)
        majors = [majors for soname in needed if (majors := sonames.cuda_majors(soname))]
        return tuple(
            label
            for index, (label, cuda) in enumerate(self.builds)
            if mask >> index & 1 and all(cuda and int(cuda.split(".")[0]) in each for each in majors)
        )

    def symbols(self, label: str) -> TorchSymbols:
        """One build's symbols. Raises KeyError."""
        index = self.labels.index(label) if label in self.labels else None
        if index is None:
            raise KeyError(label)
        exported = frozenset(name for name, mask in self.masks.items() if mask >> index & 1)
        return TorchSymbols(label, self.builds[index][1], exported)


def combine(torches: Sequence[TorchSymbols]) -> Releases:
    """Make a table of several builds; the later of two with one label counts."""
    unique = {torch.label: torch for torch in torches}
    ordered = sorted(unique.values(), key=lambda torch: Version(torch.label))
    masks: dict[str, int] = {}
    for index, torch in enumerate(ordered):
        for name in torch.symbols:
            masks[name] = masks.get(name, 0) | 1 << index
    return Releases(tuple((torch.label, torch.cuda) for torch in ordered), masks)


def write(releases: Releases, path: Path) -> None:
    """Write a table; the same builds give the same bytes."""
    lines = [f"# torch {label} cuda {cuda or 'none'}" for label, cuda in releases.builds]
    lines += [f"{mask:x} {name}" for name, mask in sorted(releases.masks.items()) if is_torch(name)]
    write_atomic(path, lzma.compress(("\n".join(lines) + "\n").encode(), preset=9 | lzma.PRESET_EXTREME))


def read(path: Path) -> Releases:
    """Read a table that `write` wrote. Raises ToolchainError."""
    try:
        decompressor = lzma.LZMADecompressor(memlimit=256 << 20)
        lines = decompressor.decompress(path.read_bytes(), max_length=_MAX_TABLE).decode().splitlines()
        if not decompressor.eof:
            raise ValueError("larger than any table of ours")
        builds: list[tuple[str, str | None]] = []
        while len(builds) < len(lines) and (match := _HEADER.fullmatch(lines[len(builds)])):
            builds.append((match[1], None if match[2] == "none" else match[2]))
        if not builds:
            raise ValueError("names no torch build")
        masks = {
            name: int(mask, 16) for mask, _, name in (line.partition(" ") for line in lines[len(builds) :])
        }
    except (OSError, lzma.LZMAError, ValueError) as error:
        raise ToolchainError(
            f"cannot read the table of torch releases: {error}", where={"file": str(path)}
        ) from error
    return Releases(tuple(builds), masks)


@functools.cache
def shipped() -> Releases:
    """The releases that the tool knows of its own."""
    return read(_SHIPPED) if _SHIPPED.is_file() else Releases((), {})
