"""Where a torch build's exported symbols come from: an installed torch, a wheel file, or a stored list."""

from __future__ import annotations

import lzma
import re
import tempfile
import zipfile
from pathlib import Path, PurePosixPath

from sglwheel.errors import ToolchainError
from sglwheel.files import Layout, cache_directory, write_atomic
from sglwheel.inspect import releases
from sglwheel.inspect.abi import TorchSymbols
from sglwheel.inspect.elf import Elf, ElfError

_SUFFIX = ".symbols.xz"
# Bundled helpers that nothing outside torch links to by name.
_FOREIGN = re.compile(r"lib(gomp|nvshmem|cudnn|cublas|cudart|nccl).*")
_ASSIGNMENT = re.compile(r"^(__version__|cuda)\b[^=\n]*=\s*['\"]([^'\"]+)['\"]", re.MULTILINE)
_MAX_LIST = 512 << 20


def installed(torch: Path) -> TorchSymbols:
    """Read an installed torch; `torch` is its package directory, or a virtual environment or site-packages
    with one.

    torch is not imported. Raises ToolchainError when there is none.
    """
    candidates = [torch, torch / "torch", *sorted(torch.glob("lib/python3*/site-packages/torch"))]
    package = next(
        (path for path in candidates if (path / "version.py").is_file() and (path / "lib").is_dir()), None
    )
    if package is None:
        raise ToolchainError(
            "no torch there",
            where={"directory": str(torch)},
            next="name a virtual environment that has torch",
        )
    label, cuda = _version((package / "version.py").read_text())
    symbols: set[str] = set()
    for library in sorted((package / "lib").glob("*.so*")):
        if not _FOREIGN.match(library.name):
            symbols |= _exports(library, label)
    return TorchSymbols(label, cuda, frozenset(symbols))


def from_wheel(wheel: Path) -> TorchSymbols:
    """Read a torch wheel file without installing it. Raises ToolchainError for what is not one."""
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            tempfile.TemporaryDirectory(prefix="sglwheel-torch-") as scratch,
        ):
            label, cuda = _version(archive.read("torch/version.py").decode())
            symbols: set[str] = set()
            for member in archive.infolist():
                path = PurePosixPath(member.filename)
                if str(path.parent) != "torch/lib" or ".so" not in path.name or _FOREIGN.match(path.name):
                    continue
                copy = Path(scratch) / "library.so"
                with archive.open(member) as stream, copy.open("wb") as sink:
                    while chunk := stream.read(1 << 20):
                        sink.write(chunk)
                symbols |= _exports(copy, label)
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise ToolchainError(
            f"not a torch wheel: {error}", where={"file": str(wheel)}, next="download it again"
        ) from error
    return TorchSymbols(label, cuda, frozenset(symbols))


def _exports(library: Path, label: str) -> frozenset[str]:
    try:
        with Elf(library) as elf:
            return elf.exported
    except ElfError as error:
        raise ToolchainError(
            f"torch {label} is damaged: {library.name}: {error}", next="install torch again"
        ) from error


def _version(text: str) -> tuple[str, str | None]:
    found = dict(_ASSIGNMENT.findall(text))
    if "__version__" not in found:
        raise ToolchainError("torch/version.py names no version")
    return found["__version__"], found.get("cuda")


def save(torch: TorchSymbols, directory: Path) -> Path:
    """Write a symbol list, a few hundred kB, so that the build need not be there the next time."""
    header = f"# torch {torch.label} cuda {torch.cuda or 'none'}\n"
    path = directory / f"torch-{torch.label}{_SUFFIX}"
    write_atomic(path, lzma.compress((header + "\n".join(sorted(torch.symbols)) + "\n").encode(), preset=9))
    return path


def load(path: Path) -> TorchSymbols:
    """Read a symbol list that `save` wrote. Raises ToolchainError."""
    try:
        decompressor = lzma.LZMADecompressor(memlimit=256 << 20)
        raw = decompressor.decompress(path.read_bytes(), max_length=_MAX_LIST)
        header, _, rest = raw.decode().partition("\n")
        match = re.fullmatch(r"# torch (\S+) cuda (\S+)", header)
        if match is None or not decompressor.eof:
            raise ValueError("not a symbol list")
    except (OSError, lzma.LZMAError, ValueError) as error:
        raise ToolchainError(
            f"cannot read the symbol list: {error}",
            where={"file": str(path)},
            next=f"remove it, it is made again: rm {path}",
        ) from error
    return TorchSymbols(
        match[1], None if match[2] == "none" else match[2], frozenset(rest.split("\n")) - {""}
    )


def known(layout: Layout) -> tuple[str, ...]:
    """Torch builds whose symbols need no download: read before on this host, or shipped with the tool."""
    return tuple(sorted({*_lists(layout), *releases.shipped().labels}))


def stored(version: str, layout: Layout) -> TorchSymbols:
    """`2.12.0` or `2.12.0+cu130`: from the cache, the shipped table, or a wheel that the store has.

    Raises ToolchainError, naming what there is.
    """
    lists = _lists(layout)
    for labels in (tuple(lists), releases.shipped().labels):
        matching = [label for label in labels if version in (label, label.split("+")[0])]
        if matching:
            label = matching[-1]
            return load(lists[label]) if label in lists else releases.shipped().symbols(label)
    wheel = _stored_wheel(version, layout)
    if wheel is not None:
        return _kept(from_wheel(wheel), layout)
    raise ToolchainError(
        f"no symbol list of torch {version}",
        where={"known": ", ".join(known(layout)) or "none"},
        next="pass an environment that has it, or a torch wheel",
    )


def _stored_wheel(version: str, layout: Layout) -> Path | None:
    """A torch wheel of this version that `pin` or a build has kept; any platform's will do."""
    for path in sorted((layout.cache / "wheels").glob("*/torch-*.whl")):
        label = path.name.split("-")[1]
        if version in (label, label.split("+")[0]):
            return path
    return None


def _lists(layout: Layout) -> dict[str, Path]:
    paths = sorted((layout.cache / "torch-symbols").glob(f"torch-*{_SUFFIX}"))
    return {path.name.removeprefix("torch-").removesuffix(_SUFFIX): path for path in paths}


def find(text: str, layout: Layout) -> TorchSymbols:
    """What `--torch` names: a torch wheel, a symbol list, an environment with torch, or a stored version.

    A list that was read is kept in the cache. Raises ToolchainError.
    """
    path = Path(text)
    if path.is_dir():
        return _kept(installed(path), layout)
    if path.suffix == ".whl":
        return _kept(from_wheel(path), layout)
    if text.endswith(_SUFFIX):
        return load(path)
    return stored(text, layout)


def _kept(torch: TorchSymbols, layout: Layout) -> TorchSymbols:
    directory = cache_directory(layout.cache / "torch-symbols")
    if not (directory / f"torch-{torch.label}{_SUFFIX}").is_file():
        save(torch, directory)
    return torch
