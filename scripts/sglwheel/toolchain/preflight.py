"""Find out in seconds what would stop a build after an hour, and say all of it at once."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version

from sglwheel import git
from sglwheel.console import format_bytes
from sglwheel.errors import HostLacksError
from sglwheel.files import Layout
from sglwheel.recipe import KernelRecipe, Recipe
from sglwheel.toolchain import host

_GIT_FLOOR = Version(".".join(map(str, git.OLDEST)))
# Measured with torch 2.12.0 for CUDA 13.0: 4.9 GB of environment, and 0.3 GB that a toolkit of the same
# release adds to it (2.0 GB where hard links cannot share the libraries); 2.8 and 0.1 GB for their wheels.
_ENVIRONMENT_BYTES = 8_300_000_000
_TOOLKIT_BYTES = 600_000_000
_MIB = 2**20
# Tried with nvcc 13.0.88: it hands its arguments on through a shell and splits those for other programs at
# commas, CMake splits lists at semicolons and minds brackets, PATH splits at colons.
_SPLITS = re.compile(r"[^\w./+@%~=-]")

_COMPILER_PACKAGES = {
    "debian": "apt-get install g++",
    "ubuntu": "apt-get install g++",
    "fedora": "dnf install gcc-c++",
    "rhel": "dnf install gcc-c++",
    "arch": "pacman -S gcc",
    "alpine": "apk add g++ musl-dev",
    "suse": "zypper install gcc-c++",
}
_GIT_PACKAGES = {
    "debian": "apt-get install git",
    "ubuntu": "apt-get install git",
    "fedora": "dnf install git",
    "rhel": "dnf install git",
    "arch": "pacman -S git",
    "alpine": "apk add git",
    "suse": "zypper install git",
}
_PYTHON_PACKAGES = {
    "debian": "apt-get install python3-dev",
    "ubuntu": "apt-get install python3-dev",
    "fedora": "dnf install python3-devel",
    "rhel": "dnf install python3-devel",
    "alpine": "apk add python3-dev",
    "suse": "zypper install python3-devel",
}
_NUMA_PACKAGES = {
    "debian": "apt-get install libnuma-dev",
    "ubuntu": "apt-get install libnuma-dev",
    "fedora": "dnf install numactl-devel",
    "rhel": "dnf install numactl-devel",
    "arch": "pacman -S numactl",
    "alpine": "apk add numactl-dev",
    "suse": "zypper install libnuma-devel",
}
_NUMA_WITHOUT_ROOT = (
    "without root: apt-get download libnuma-dev libnuma1 && for p in libnuma*.deb; do dpkg -x $p numa; done, "
    "then NUMA_ROOT_DIR=$PWD/numa"
)


@dataclass(frozen=True)
class Problem:
    """Something that this host lacks, and how to get it."""

    subject: str
    detail: str
    remedy: str


@dataclass(frozen=True)
class Host:
    """What a build takes from the host, found and good."""

    compiler: host.Compiler
    python: host.Interpreter
    cmake: Mapping[str, str]


def check(recipe: Recipe, layout: Layout) -> tuple[Problem, ...]:
    """Report everything on this host that would stop a build of `recipe`; empty when nothing would."""
    if isinstance(recipe, KernelRecipe):
        return _to_compile(recipe, layout)[0]
    return _to_pack(recipe, layout)[0]


def require(recipe: KernelRecipe, layout: Layout, *, borrowed: host.Interpreter | None = None) -> Host:
    """Return what a build of kernels takes from the host; `borrowed` is a lent environment's interpreter.

    Raises HostLacksError listing every problem.
    """
    problems, compiler, python, cmake = _to_compile(recipe, layout, borrowed)
    if problems or compiler is None or python is None:
        raise _lacking(recipe, problems)
    return Host(compiler, python, cmake)


def require_python(recipe: Recipe, layout: Layout) -> host.Interpreter:
    """Return the interpreter that packs a project of Python alone. Raises HostLacksError like `require`."""
    problems, python = _to_pack(recipe, layout)
    if problems or python is None:
        raise _lacking(recipe, problems)
    return python


def _lacking(recipe: Recipe, problems: tuple[Problem, ...]) -> HostLacksError:
    count = len(problems)
    return HostLacksError(
        f"this host lacks {count} thing{'s' if count != 1 else ''} that {recipe.id or 'the build'} needs",
        where={one.subject: f"{one.detail}\n{one.remedy}" for one in problems},
        next="provide these, then run the same command again",
    )


def _to_pack(
    recipe: Recipe, layout: Layout, borrowed: host.Interpreter | None = None
) -> tuple[tuple[Problem, ...], host.Interpreter | None]:
    """What every kind of recipe needs: git, an interpreter, room."""
    problems: list[Problem] = []
    here = host.git_version()
    if here is None or here < _GIT_FLOOR:
        problems.append(
            Problem("git", f"need {_GIT_FLOOR} or newer, found {here or 'none'}", _install(_GIT_PACKAGES))
        )
    python = borrowed or host.interpreter(recipe.build.python)
    if python is None:
        problems.append(
            Problem(
                "Python",
                f"the recipe names {recipe.build.python}, which is not on this host",
                f"uv python install {recipe.build.python}, or leave build.python out of the recipe",
            )
        )
    return (*problems, *_space(recipe, layout, fetch=borrowed is None)), python


def _to_compile(
    recipe: KernelRecipe, layout: Layout, borrowed: host.Interpreter | None = None
) -> tuple[tuple[Problem, ...], host.Compiler | None, host.Interpreter | None, dict[str, str]]:
    """The same, and a compiler with what it includes and links, and memory for it."""
    problems: list[Problem] = []
    cmake: dict[str, str] = {}
    compiler = host.compiler()
    if compiler is None:
        named = os.environ.get("CXX", "").strip()
        problems.append(
            Problem("C++ compiler", f"CXX={named} is not there", "correct CXX, or unset it")
            if named
            else Problem("C++ compiler", "none of g++, clang++, c++ on PATH", _install(_COMPILER_PACKAGES))
        )
    common, python = _to_pack(recipe, layout, borrowed)
    problems += common
    problems += _paths(layout, borrowed)
    if python is not None and not python.headers:
        problems.append(
            Problem(
                "Python headers",
                f"no Python.h for {python.path}",
                f"{_install(_PYTHON_PACKAGES)}; without root: uv python install {python.minor}",
            )
        )
    # Whether a library links takes a compiler to find out; with none, only an unpacked copy can be judged.
    if "numa" in recipe.build.host_libraries and compiler is not None:
        library = host.numa(compiler)
        if library is None:
            problems.append(_numa_problem())
        else:
            cmake.update(library.cmake)
    elif "numa" in recipe.build.host_libraries and not Path("/usr/include/numa.h").is_file():
        problems.append(_numa_problem())
    needed = recipe.build.largest_unit_mib * _MIB
    memory = host.memory_bytes()
    if memory < needed:
        problems.append(
            Problem(
                "memory",
                f"the largest translation unit needs {format_bytes(needed)}; here are {format_bytes(memory)}",
                "build on a larger host, or raise the container's limit",
            )
        )
    return tuple(problems), compiler, python, cmake


def _paths(layout: Layout, borrowed: host.Interpreter | None) -> Iterator[Problem]:
    """Directories that would stand in compile commands and not come out as one word."""
    root, caches = str(layout.root), str(layout.cache).removeprefix(f"{layout.root}/")
    yield from _one_word("path of the checkout", root, "move the checkout")
    yield from _one_word("path of the caches", caches, "move them: SGLWHEEL_CACHE=/a/plain/path")
    if borrowed is not None:
        yield from _one_word("path of the environment", str(borrowed.path), "make it in another place")


def _one_word(subject: str, path: str, remedy: str) -> Iterator[Problem]:
    found = dict.fromkeys(_SPLITS.findall(path))
    if found:
        shown = " ".join("space" if one == " " else ascii(one).strip("'\"") or one for one in found)
        yield Problem(subject, f"nvcc, its shell or CMake split {path} at: {shown}", remedy)


def _numa_problem() -> Problem:
    root = os.environ.get("NUMA_ROOT_DIR", "").strip()
    if root:
        detail = f"no numa.h with a libnuma.so that leads somewhere under NUMA_ROOT_DIR={root}"
    else:
        detail = "numa.h and libnuma.so are not where the compiler looks"
    return Problem("libnuma headers", detail, f"{_install(_NUMA_PACKAGES)}\n{_NUMA_WITHOUT_ROOT}")


def _install(packages: Mapping[str, str]) -> str:
    """The command for this distribution, or for all where we do not know it."""
    ids = host.distribution()
    for name, command in packages.items():
        if any(one == name or (name == "suse" and "suse" in one) for one in ids):
            return command
    return " | ".join(sorted(set(packages.values())))


def _space(recipe: Recipe, layout: Layout, *, fetch: bool = True) -> list[Problem]:
    """Compare what is still to be written with what is free, for each file system once."""
    needs: dict[Path, int] = {}
    needs[layout.cache] = _still_to_fetch(recipe, layout) if fetch else 0
    needs[layout.work] = recipe.build.build_tree_mib * _MIB
    # The finished wheel, and the copy of it that is published.
    needs[layout.wheelhouse] = 2 * recipe.wheel.max_size_mib * _MIB
    by_device: dict[int, tuple[Path, int]] = {}
    for path, amount in needs.items():
        existing = next(parent for parent in (path, *path.parents) if parent.exists())
        device = existing.stat().st_dev
        before = by_device.get(device, (path, 0))
        by_device[device] = (before[0], before[1] + amount)
    problems = []
    for path, amount in by_device.values():
        free = host.free_bytes(path)
        if free < amount:
            problems.append(
                Problem(
                    "disk",
                    f"need {format_bytes(amount)} for {layout.relative(path)}, {format_bytes(free)} are free",
                    "free some, or move the caches: SGLWHEEL_CACHE=/where/there/is/room",
                )
            )
    return problems


def _still_to_fetch(recipe: Recipe, layout: Layout) -> int:
    needed = 0
    torch = f'"version": "{recipe.torch.version}"'
    markers = list((layout.cache / "envs").glob("*/complete.json"))
    if not any(torch in marker.read_text(errors="replace") for marker in markers):
        needed += _ENVIRONMENT_BYTES
    if recipe.build.assembles_toolkit and not any((layout.cache / "toolkits").glob("*/complete.json")):
        needed += _TOOLKIT_BYTES
    return needed
