"""Read a distribution that is installed as if it were still a wheel."""

from __future__ import annotations

from importlib.metadata import Distribution
from pathlib import Path

from sglwheel.inspect import libraries as _libraries
from sglwheel.inspect import operators
from sglwheel.inspect.abi import TorchSymbols
from sglwheel.inspect.libraries import Library
from sglwheel.inspect.releases import shipped
from sglwheel.inspect.report import Expectation, Subject
from sglwheel.inspect.wheelfile import File, WheelFile


def subject(distribution: Distribution, torch: TorchSymbols | None) -> Subject:
    """What the inspection's functions look at, for an installed distribution.

    There is no wheel any more, so no hash of it and no hashes of files; a file that is gone is left out.
    """
    found: list[Library] = []
    files: list[File] = []
    uses: set[tuple[str, str, str]] = set()
    for entry in distribution.files or ():
        path = Path(str(distribution.locate_file(entry)))
        name = entry.as_posix()
        if name.startswith("..") or not path.is_file():
            continue
        size = path.stat().st_size
        files.append(File(name, size, size, ""))
        if name.endswith(".py"):
            top = name.split("/", 1)[0]
            uses.update((top, space, operator) for space, operator in operators.uses(path.read_bytes()))
        elif _is_elf(path):
            library = _libraries.read(name, path)
            if library is not None:
                found.append(library)
    wheel = WheelFile(
        path=Path(str(distribution.locate_file(""))),
        sha256="",
        size=sum(file.size for file in files),
        name=None,
        dist_info=(),
        files=tuple(files),
        duplicates=(),
        unsafe=(),
        damaged=(),
        metadata=None,
        wheel=None,
        record=None,
        uses=frozenset(uses),
    )
    return Subject(wheel, tuple(found), Expectation(), torch, shipped())


def _is_elf(path: Path) -> bool:
    try:
        with path.open("rb") as stream:
            return stream.read(4) == b"\x7fELF"
    except OSError:
        return False
