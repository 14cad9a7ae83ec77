"""What this host brings along: compilers, interpreters, libraries. Looks, and judges nothing."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from packaging.version import InvalidVersion, Version

from sglwheel import process
from sglwheel.errors import ToolchainError

# The tool's own floor (pyproject.toml).
PYTHON_FLOOR = Version("3.11")


@dataclass(frozen=True)
class Compiler:
    """A host C++ compiler; `description` is the first line of what it says of its version."""

    cc: Path
    cxx: Path
    description: str


@dataclass(frozen=True)
class Interpreter:
    """A Python on this host; `headers` says whether Python.h is there."""

    path: Path
    version: Version
    headers: bool

    @property
    def minor(self) -> str:
        """`3.11`."""
        return f"{self.version.major}.{self.version.minor}"


@dataclass(frozen=True)
class Library:
    """A C library that links; `cmake` says where it lies when the compiler would not find it by itself."""

    name: str
    cmake: Mapping[str, str]


def compiler(environment: Mapping[str, str] = os.environ) -> Compiler | None:
    """Find the host compiler: `CXX` (and `CC`) when set, else g++, clang++ or c++ on PATH.

    `CXX` is the way to choose an older gcc where the default one is too new for nvcc.
    """
    path = environment.get("PATH")
    chosen = environment.get("CXX", "").strip()
    for name in (chosen,) if chosen else ("g++", "clang++", "c++"):
        found = shutil.which(name, path=path)
        if found is None:
            continue
        cxx = Path(found)
        c_names = (environment.get("CC", "").strip(), _c_name(cxx.name), "cc")
        cc = next((c for c in (shutil.which(n, path=path) for n in c_names if n) if c is not None), found)
        done = process.run([cxx, "--version"], failure=ToolchainError, timeout=30, what=f"{cxx} --version")
        line = (done.stdout.splitlines() or [""])[0].strip()
        return Compiler(Path(cc), cxx, line)
    return None


def _c_name(cxx: str) -> str:
    return cxx.replace("clang++", "clang").replace("g++", "gcc").replace("c++", "cc")


def interpreter(wanted: Version | None) -> Interpreter | None:
    """Choose the build environment's interpreter: the wanted minor, else the tool's own.

    One with headers wins over one without: kernels are compiled against Python.h. When nothing is wanted and
    the tool's own has none, any other supported Python on the host will do.
    """
    own = _own_interpreter()
    if (wanted is None or _minor(wanted) == own.minor) and own.headers:
        return own
    minor = _minor(wanted) if wanted is not None else None
    others = _others(minor or "3.*")
    with_headers = [found for found in others if found.headers]
    if with_headers:
        return with_headers[0]
    if minor is None or minor == own.minor:
        return own
    return others[0] if others else None


def _minor(version: Version) -> str:
    return f"{version.major}.{version.minor}"


def _own_interpreter() -> Interpreter:
    base = Path(getattr(sys, "_base_executable", None) or sys.executable)
    headers = Path(sysconfig.get_path("include")) / "Python.h"
    return Interpreter(base.resolve(), Version(platform.python_version()), headers.is_file())


_ASK = """
import json, os, platform, sys, sysconfig
header = os.path.join(sysconfig.get_path("include"), "Python.h")
good = sys.implementation.name == "cpython" and not sysconfig.get_config_var("Py_GIL_DISABLED")
print(json.dumps([good, platform.python_version(), os.path.isfile(header)]))
"""


@cache
def _others(minor: str) -> tuple[Interpreter, ...]:
    """Every supported CPython of a minor version (`3.*` for all) on this host, newest first."""
    found: dict[Path, Interpreter] = {}
    for path in _candidates(minor):
        done = process.run(
            [path, "-I", "-c", _ASK], failure=ToolchainError, accept=range(-64, 256), timeout=30
        )
        try:
            good, version, headers = json.loads(done.stdout)
            one = Interpreter(path, Version(version), bool(headers))
        except (ValueError, TypeError, InvalidVersion):
            continue
        if good and one.version >= PYTHON_FLOOR:
            found[path] = one
    return tuple(sorted(found.values(), key=lambda one: one.version, reverse=True))


def _candidates(minor: str) -> list[Path]:
    """Look on PATH and where uv and pyenv keep theirs; asking uv for a list starts every Python there is."""
    data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share")
    managed = Path(os.environ.get("UV_PYTHON_INSTALL_DIR") or data / "uv/python")
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    paths = [
        *managed.glob(f"cpython-{minor}.*/bin/python3"),
        *pyenv.glob(f"versions/{minor}.*/bin/python3"),
    ]
    for directory in os.environ.get("PATH", "").split(os.pathsep):
        # A shim answers only for the version that is switched on.
        if directory and Path(directory).name != "shims":
            paths += Path(directory).glob(f"python{minor}")
    named = re.compile(r"python3\.\d+")
    return sorted(
        {path.resolve() for path in paths if path.is_file() and named.fullmatch(path.resolve().name)}
    )


def git_version() -> Version | None:
    """The version of git on PATH; None when there is none."""
    if shutil.which("git") is None:
        return None
    words = process.run(["git", "--version"], failure=ToolchainError, timeout=30).stdout.split()
    try:
        return Version(".".join(words[2].split(".")[:3]))
    except (IndexError, InvalidVersion):
        return None


def numa(compiler: Compiler, environment: Mapping[str, str] = os.environ) -> Library | None:
    """Find libnuma's header and library: unpacked under `NUMA_ROOT_DIR`, or where the compiler looks."""
    root = environment.get("NUMA_ROOT_DIR", "").strip()
    if root:
        base = Path(root).expanduser().absolute()
        header = next(
            (d for d in (base, base / "include", base / "usr/include") if (d / "numa.h").is_file()), None
        )
        # `exists` follows links: an unpacked libnuma-dev alone has a libnuma.so that leads nowhere.
        library = next((p for p in sorted(base.rglob("libnuma.so")) if p.exists()), None)
        if header is None or library is None:
            return None
        return Library(
            "numa",
            {
                "NUMA_ROOT_DIR": str(base),
                "NUMA_INCLUDE_DIR": str(header),
                "NUMA_LIB_DIR": str(library.parent),
            },
        )
    done = process.run(
        [compiler.cc, "-x", "c", "-", "-o", os.devnull, "-lnuma"],
        failure=ToolchainError,
        input=b"#include <numa.h>\nint main(void) { return numa_available(); }\n",
        accept=range(256),
        timeout=60,
    )
    return Library("numa", {}) if done.returncode == 0 else None


def distribution() -> frozenset[str]:
    """Ids of this distribution and of those that it descends from: `{"ubuntu", "debian"}`."""
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        return frozenset()
    return frozenset({release.get("ID", ""), *release.get("ID_LIKE", "").split()} - {""})


def memory_bytes() -> int:
    """Memory that this process may use: the machine's, or the cgroup's limit where that is lower."""
    import psutil

    total = int(psutil.virtual_memory().total)
    for name in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            total = min(total, int(Path(name).read_text()))
        except (OSError, ValueError):
            continue
    return total


def free_bytes(path: Path) -> int:
    """Free space where `path` is or will be."""
    existing = next(parent for parent in (path, *path.parents) if parent.exists())
    return shutil.disk_usage(existing).free
