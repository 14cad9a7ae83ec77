"""What this host brings along: compilers, interpreters, libraries. Looks, and judges nothing."""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import uv
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
    others = [found for found in _others() if minor is None or found.minor == minor]
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


@cache
def _others() -> tuple[Interpreter, ...]:
    """Every CPython that uv finds, newest first. Nothing is downloaded."""
    done = process.run(
        [uv.find_uv_bin(), "python", "list", "--only-installed", "--no-config", "--output-format", "json"],
        failure=ToolchainError,
        accept=range(256),
        what="uv python list",
    )
    try:
        listed = json.loads(done.stdout or "[]")
    except ValueError:
        return ()
    found: dict[Path, Interpreter] = {}
    for item in listed:
        try:
            version = Version(item["version"])
            path = Path(item["path"]).resolve()
        except (KeyError, TypeError, InvalidVersion):
            continue
        if item.get("implementation") != "cpython" or version < PYTHON_FLOOR or path in found:
            continue
        if item.get("variant", "default") != "default":
            continue
        found[path] = Interpreter(path, version, _has_headers(path))
    return tuple(sorted(found.values(), key=lambda one: one.version, reverse=True))


def _has_headers(python: Path) -> bool:
    done = process.run(
        [python, "-I", "-c", "import sysconfig; print(sysconfig.get_path('include'))"],
        failure=ToolchainError,
        accept=range(256),
        timeout=30,
    )
    return done.returncode == 0 and (Path(done.stdout.strip()) / "Python.h").is_file()


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
