"""Values that more than one stage speaks of: commit ids, GPU targets, torch versions."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

from packaging.version import InvalidVersion, Version

_COMMIT = re.compile(r"[0-9a-f]{40}")
_ARCH = re.compile(r"(?P<major>\d{1,2})\.(?P<minor>\d)(?P<suffix>[af]?)(?P<ptx>\+PTX)?")
_CUDA_LINE = re.compile(r"cu(?P<major>\d{2})(?P<minor>\d)")

# Targets that nvcc 13.0 lists under --list-gpu-arch / --list-gpu-code, as CMake and torch spell them.
_KNOWN_CAPABILITIES = frozenset(
    {
        (7, 5),
        (8, 0),
        (8, 6),
        (8, 7),
        (8, 8),
        (8, 9),
        (9, 0),
        (10, 0),
        (10, 1),
        (10, 3),
        (11, 0),
        (12, 0),
        (12, 1),
    }
)


class CommitId(str):
    """A full Git commit id: 40 lower-case hexadecimal digits."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raise ValueError, with the reason, for short ids, tags and branches."""
        if _COMMIT.fullmatch(text):
            return cls(text)
        if re.fullmatch(r"[0-9a-f]{4,39}", text):
            raise ValueError(f"short commit id {text!r}: give all 40 digits (git rev-parse {text})")
        raise ValueError(
            f"{text!r} is not a commit id: tags and branches move (git rev-parse {text!r}^{{commit}})"
        )

    @property
    def short(self) -> str:
        return self[:9]


@dataclass(frozen=True, order=True)
class CudaArch:
    """A GPU target: `12.0a` for CMake and torch is `sm_120a` for nvcc."""

    major: int
    minor: int
    suffix: str = ""
    ptx: bool = False

    @classmethod
    def parse(cls, text: str) -> CudaArch:
        """Raise ValueError for what CMake and torch do not spell this way, or nvcc does not know."""
        match = _ARCH.fullmatch(text)
        if match is None:
            dotted = re.fullmatch(r"(?:sm_|compute_)?(\d{1,2})(\d)([af]?)", text)
            hint = f": write {dotted[1]}.{dotted[2]}{dotted[3]}" if dotted else ": write it like 12.0a"
            raise ValueError(f"{text!r} is not an architecture{hint}")
        arch = cls(int(match["major"]), int(match["minor"]), match["suffix"], match["ptx"] is not None)
        if (arch.major, arch.minor) not in _KNOWN_CAPABILITIES:
            known = ", ".join(f"{a}.{b}" for a, b in sorted(_KNOWN_CAPABILITIES))
            raise ValueError(f"unknown architecture {text!r}: compute capabilities are {known}")
        if arch.suffix and arch.major < 9:
            raise ValueError(f"unknown architecture {text!r}: suffixes start with 9.0a")
        return arch

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}{self.suffix}{'+PTX' if self.ptx else ''}"

    @property
    def digits(self) -> str:
        """`120a`."""
        return f"{self.major}{self.minor}{self.suffix}"

    @property
    def sm(self) -> str:
        """The SASS target: `sm_120a`."""
        return f"sm_{self.digits}"

    @property
    def compute(self) -> str:
        """The virtual architecture: `compute_120a`."""
        return f"compute_{self.digits}"

    @property
    def capability(self) -> tuple[int, int]:
        return (self.major, self.minor)


@dataclass(frozen=True, order=True)
class CudaLine:
    """A CUDA release as PyTorch's indexes name it: `cu130` is 13.0."""

    major: int
    minor: int

    @classmethod
    def parse(cls, text: str) -> CudaLine:
        match = _CUDA_LINE.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is not a CUDA line: write it like cu130")
        return cls(int(match["major"]), int(match["minor"]))

    def __str__(self) -> str:
        return f"cu{self.major}{self.minor}"

    @property
    def version(self) -> str:
        """`13.0`."""
        return f"{self.major}.{self.minor}"


def parse_torch_version(text: str) -> Version:
    """Parse an exact torch version without local part: `2.12.0` or a nightly `2.13.0.dev20261101`.

    Raises ValueError.
    """
    try:
        version = Version(text)
    except InvalidVersion:
        raise ValueError(f"{text!r} is not a version: write it like 2.12.0 or 2.13.0.dev20261101") from None
    if version.local:
        raise ValueError(f"{text!r} has a local part: write {version.public}; `cuda` names the CUDA line")
    if len(version.release) != 3:
        raise ValueError(f"{text!r} is not exact: give major.minor.patch")
    return version
