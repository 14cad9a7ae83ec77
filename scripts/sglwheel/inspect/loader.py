"""Which library SGLang's loader takes on which GPU, and whether it holds code for it.

`sgl_kernel/load_utils.py` loads `sm90/common_ops.*` on compute capability 9.0 and `sm100/common_ops.*` on
every other, also where there is no GPU; when that fails, `common_ops.*` beside it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sglwheel.inspect.libraries import Library

# What SGLang is run on; a wheel's own targets are added.
_COMMON = ((8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (10, 3), (12, 0), (12, 1))
VARIANTS = ("sm90", "sm100")


@dataclass(frozen=True)
class Choice:
    """What is loaded on one compute capability."""

    capability: tuple[int, int]
    library: str | None
    runs: str | None
    """The target that the GPU would run, None when the library holds none for it."""


def variant(capability: tuple[int, int]) -> str:
    """The directory that the loader looks into."""
    return "sm90" if capability == (9, 0) else "sm100"


def has_variants(libraries: Iterable[Library]) -> bool:
    """Whether the wheel is laid out for this loader."""
    return any(_variant_of(library) for library in libraries)


def _variant_of(library: Library) -> str | None:
    parts = library.path.split("/")
    return parts[-2] if len(parts) >= 3 and parts[-2] in VARIANTS else None


def choose(libraries: Iterable[Library], capability: tuple[int, int]) -> Choice:
    """The library that the loader takes on a GPU."""
    libraries = [library for library in libraries if not library.broken]
    wanted = variant(capability)
    taken = next((library for library in libraries if _variant_of(library) == wanted), None)
    if taken is None:
        packages = {library.path.split("/")[0] for library in libraries if _variant_of(library)}
        taken = next(
            (
                library
                for library in libraries
                if library.path.split("/")[0] in packages
                and library.path.count("/") == 1
                and library.file_name.startswith("common_ops.")
            ),
            None,
        )
    if taken is None:
        return Choice(capability, None, None)
    # SASS before PTX, the most specific first.
    running = [target for target, _ in taken.targets if target.runs_on(capability)]
    running.sort(key=lambda target: (target.kind != "sass", -target.number, target.suffix == ""))
    return Choice(capability, taken.path, str(running[0]) if running else None)


def choices(libraries: tuple[Library, ...]) -> tuple[Choice, ...]:
    """One choice for every compute capability in use, and those the wheel has code for."""
    if not has_variants(libraries):
        return ()
    capabilities = set(_COMMON) | {
        target.capability for library in libraries for target, _ in library.targets if target.kind == "sass"
    }
    return tuple(choose(libraries, capability) for capability in sorted(capabilities))
