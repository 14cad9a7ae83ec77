"""A `libcuda.so` that defines the driver's symbols and has no driver behind them.

Build hosts need it to link: with an *empty* stub `--as-needed` drops libcuda from NEEDED, and the wheel dies
on the node. Tests on machines without a driver preload it, so that `import` gets past the dynamic linker.
"""

from __future__ import annotations

import re
from pathlib import Path

from sglwheel import process
from sglwheel.errors import ToolchainError
from sglwheel.files import Layout, write_atomic

SONAME = "libcuda.so.1"
# CUDA_ERROR_STUB_LIBRARY: cudart turns it into "CUDA driver is a stub library".
_STUB = 34

_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
_DECLARED = re.compile(r"\bCUDAAPI\s+(cu[A-Z]\w*)\s*\(")
# `#define cuMemAlloc cuMemAlloc_v2` and `#define cuMemcpyHtoD __CUDA_API_PTDS(cuMemcpyHtoD_v2)`: callers
# compiled against cuda.h ask the linker for the right-hand side.
_RENAMED = re.compile(r"^[ \t]*#[ \t]*define[ \t]+cu[A-Z]\w*[ \t]+(cu[A-Z]\w*)[ \t]*$", re.MULTILINE)
_PER_THREAD = re.compile(r"\b__CUDA_API_(PTDS|PTSZ)\((cu[A-Z]\w*)\)")
_INLINE = re.compile(r"\bstatic\s+inline\s+CUresult\s+(cu[A-Z]\w*)\s*\(")


def symbols(header: str) -> tuple[str, ...]:
    """Name every function that a program compiled against this cuda.h can ask the linker for, sorted.

    Old and new versions, and the per-thread-stream twins, are separate symbols.
    """
    text = _COMMENT.sub(" ", header).replace("\\\n", " ")
    found = set(_DECLARED.findall(text)) | set(_RENAMED.findall(text))
    for kind, name in _PER_THREAD.findall(text):
        found |= {name, f"{name}_{kind.lower()}"}
    return tuple(sorted(found - set(_INLINE.findall(text))))


def source(names: tuple[str, ...]) -> str:
    """Write the stub's C source.

    No function takes arguments: by the C calling conventions of x86-64 and aarch64 a callee may ignore them.
    """
    special = {"cuGetErrorName", "cuGetErrorString"}
    lines = ["/* Generated from cuda.h: every driver function, none of which does anything. */"]
    lines += [f"int {name}(void) {{ return {_STUB}; }}" for name in names if name not in special]
    # Callers print what these point to without looking at the status.
    lines += [
        f"int {name}(int error, const char **text) "
        f'{{ (void)error; if (text) *text = "no CUDA driver: this is a stub"; return {_STUB}; }}'
        for name in sorted(special & set(names))
    ]
    return "\n".join(lines) + "\n"


def build_stub(cuda_home: Path, into: Path, *, cc: Path | str = "cc") -> Path:
    """Compile the stub for this toolkit's cuda.h into `into`, as `libcuda.so` and `libcuda.so.1`.

    Returns the path of `libcuda.so`. Raises ToolchainError.
    """
    header = cuda_home / "include" / "cuda.h"
    try:
        names = symbols(header.read_text(encoding="utf-8", errors="replace"))
    except OSError as error:
        raise ToolchainError(
            f"the CUDA toolkit has no cuda.h: {error.strerror}", where={"file": str(header)}
        ) from error
    if "cuInit" not in names or not any(name.startswith("cuGetProcAddress") for name in names):
        raise ToolchainError(
            f"cuda.h declares no driver functions that we recognise ({len(names)} found)",
            where={"file": str(header)},
        )
    into.mkdir(parents=True, exist_ok=True)
    code = into / "libcuda-stub.c"
    write_atomic(code, source(names))
    library = into / "libcuda.so"
    temporary = into / ".libcuda.so.new"
    process.run(
        [cc, "-shared", "-fPIC", "-O1", "-w", "-nostdlib", f"-Wl,-soname,{SONAME}", "-o", temporary, code],
        failure=ToolchainError,
        what="compiling the driver stub",
    )
    temporary.replace(library)
    link = into / SONAME
    link.unlink(missing_ok=True)
    link.symlink_to(library.name)
    return library


def kept(layout: Layout) -> Path | None:
    """A directory with a stub that an earlier build made, or None."""
    places = (*layout.cache.glob("stubs/*/"), *layout.cache.glob("toolkits/*/cuda/lib64/stubs/"))
    return next((place for place in sorted(places) if (place / "libcuda.so.1").is_file()), None)
