"""What a host lacks for building a recipe: all of it at once, and five lines of CUDA really compiled."""

from __future__ import annotations

import email.utils
import locale
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx

from sglwheel import network, process
from sglwheel.build.limits import Host
from sglwheel.console import format_bytes
from sglwheel.errors import SglwheelError, ToolchainError, UsageError
from sglwheel.files import Layout, cache_directory
from sglwheel.mirrors import Mirrors, local_path, redacted
from sglwheel.nodedoctor.diagnosis import Finding
from sglwheel.recipe import KernelRecipe, Recipe
from sglwheel.toolchain import (
    environments,
    hermetic,
    host,
    hosttoolkit,
    packages,
    preflight,
    probe,
    torchpin,
)
from sglwheel.toolchain.cudahome import CudaHome
from sglwheel.toolchain.pylocks import Pylocks
from sglwheel.toolchain.torchindex import PYPI

_MIB = 2**20
# What five lines of CUDA need of a toolkit: 100 MB instead of all its libraries.
_COMPILER_WHEELS = frozenset(
    ("nvidia-cuda-nvcc", "nvidia-nvvm", "nvidia-cuda-crt", "nvidia-cuda-cccl", "nvidia-cuda-runtime")
)
# Certificates are refused by a clock that is off by days, ninja and nodes' caches mind minutes.
_CLOCK_SECONDS = 300.0


def examine(recipe: Recipe, layout: Layout, mirrors: Mirrors) -> tuple[Finding, ...]:
    """Look at all that a build of `recipe` takes from this host; nothing stops at the first trouble."""
    problems = preflight.check(recipe, layout)
    found = [Finding(one.subject, "failed", one.detail, one.remedy) for one in problems]
    wrong = {one.subject for one in problems}
    found += [one for one in _good(recipe, layout) if one.check not in wrong]
    found += [_locale(), *_writable(layout), *_clock(layout, mirrors)]
    if isinstance(recipe, KernelRecipe):
        found.append(_compiles(recipe, layout, mirrors))
    return tuple(found)


def _good(recipe: Recipe, layout: Layout) -> Iterator[Finding]:
    """What the preflight looked at, in words for the case that it found no fault."""
    yield Finding("git", "passed", str(host.git_version()))
    python = host.interpreter(recipe.build.python)
    if python is not None:
        yield Finding("Python", "passed", f"{python.version} with headers, {python.path}")
    free = ", ".join(
        f"{layout.relative(path)} {format_bytes(host.free_bytes(path))}"
        for path in (layout.cache, layout.work, layout.wheelhouse)
    )
    yield Finding("disk", "passed", f"free for {free}")
    machine = Host()
    cores = machine.cores()
    every = os.cpu_count() or 1
    yield Finding("CPU", "passed", f"{cores} of {every}" if cores < every else str(cores))
    if not isinstance(recipe, KernelRecipe):
        return
    compiler = host.compiler()
    if compiler is not None:
        yield Finding("C++ compiler", "passed", f"{compiler.description}, {compiler.cxx}")
    largest = recipe.build.largest_unit_mib * _MIB
    total, now = machine.memory_total(), machine.memory_available()
    room = (
        f"{format_bytes(total)}, {format_bytes(now)} free; the largest source takes {format_bytes(largest)}"
    )
    if now < largest:
        yield Finding("memory", "warning", room, "the build waits until others have given some back")
    else:
        yield Finding("memory", "passed", room)


def _locale() -> Finding:
    """Builds run in C.UTF-8: without it CMake and compilers garble names and messages."""
    before = locale.setlocale(locale.LC_CTYPE)
    try:
        locale.setlocale(locale.LC_CTYPE, "C.UTF-8")
    except locale.Error:
        return Finding(
            "locale",
            "failed",
            "this system has no C.UTF-8",
            "apt-get install libc-bin | dnf install glibc-langpack-en",
        )
    finally:
        locale.setlocale(locale.LC_CTYPE, before)
    return Finding("locale", "passed", "C.UTF-8")


def _writable(layout: Layout) -> Iterator[Finding]:
    """Whether files can be made, and programs started, where the build does either."""
    for path, starts in ((layout.cache, True), (layout.work, True), (layout.wheelhouse, False)):
        name = f"writable: {layout.relative(path)}"
        existing = next(parent for parent in (path, *path.parents) if parent.exists())
        try:
            with tempfile.TemporaryDirectory(prefix=".sglwheel-", dir=existing) as scratch:
                program = Path(scratch) / "program"
                program.write_text("#!/bin/sh\n")
                program.chmod(0o755)
                if starts:
                    process.run([program], failure=ToolchainError, timeout=30)
        except OSError as error:
            remedy = f"give this user {existing}, or move the caches: SGLWHEEL_CACHE=<directory>"
            yield Finding(name, "failed", f"{existing}: {error.strerror}", remedy)
        except ToolchainError as error:
            yield Finding(name, "failed", error.what, "compilers lie there: mount it without noexec")
        else:
            yield Finding(name, "passed", "files can be made" + (" and started" if starts else ""))


def _clock(layout: Layout, mirrors: Mirrors) -> Iterator[Finding]:
    """Compare the clock with the file system's, with the checkout's own files, and with a server's."""
    now = time.time()
    with tempfile.NamedTemporaryFile(dir=cache_directory(layout.cache)) as file:
        apart = abs(Path(file.name).stat().st_mtime - now)
    newest = max((path.stat().st_mtime for path in layout.recipes.glob("*.toml")), default=now)
    remedy = "set it: timedatectl set-ntp true, or on the container's host"
    if apart > 2:
        yield Finding(
            "clock", "failed", f"{apart:.0f} s apart from the file system's: ninja rebuilds", remedy
        )
    elif newest > now + _CLOCK_SECONDS:
        yield Finding("clock", "failed", "recipes were written in its future", remedy)
    else:
        yield _served_clock(mirrors, remedy)


def _served_clock(mirrors: Mirrors, remedy: str) -> Finding:
    shown = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    for place in mirrors.candidates(PYPI):
        if local_path(place) is not None:
            continue
        try:
            # An answer of any kind has a date.
            answer = httpx.head(f"{place}/", timeout=5, follow_redirects=True, verify=network.tls())
            date = answer.headers.get("Date", "")
            off = email.utils.parsedate_to_datetime(date).timestamp() - time.time()
        except (httpx.HTTPError, httpx.InvalidURL, ValueError):
            continue
        except UsageError as error:
            return Finding("certificates", "failed", error.what, error.next or "")
        if abs(off) > _CLOCK_SECONDS:
            return Finding("clock", "failed", f"{shown}, {abs(off):.0f} s off {redacted(place)}'s", remedy)
        return Finding("clock", "passed", f"{shown}, as {redacted(place)} has it")
    return Finding("clock", "passed", f"{shown}; no server was there to compare with")


def _compiles(recipe: KernelRecipe, layout: Layout, mirrors: Mirrors) -> Finding:
    """Compile five lines of CUDA for the recipe's GPUs through the host compiler that a build would use."""
    name = "compiles CUDA"
    compiler, python = host.compiler(), host.interpreter(recipe.build.python)
    if compiler is None or python is None:
        return Finding(name, "unknown", "not without a compiler and a Python")
    try:
        cuda = _cuda(recipe, layout, mirrors, compiler, python)
        if cuda is None:
            return Finding(name, "unknown", "no lock yet that says which nvcc", f"sglwheel lock {recipe.id}")
        environment = hermetic.clean_environment(recipe, layout, python.path.parent, cuda, compiler)
        nvcc = cuda.path / "bin" / "nvcc"
        probe.compile_probe(nvcc, compiler, recipe.build.architectures, environment, layout)
    except SglwheelError as error:
        said = error.where.get("says") or "; ".join(error.where.values())
        return Finding(name, "failed", f"{error.what}: {said}".strip(), error.next)
    targets = ", ".join(str(arch) for arch in recipe.build.architectures)
    return Finding(name, "passed", f"nvcc {cuda.nvcc_version} through {compiler.cxx.name} for {targets}")


def _cuda(
    recipe: KernelRecipe, layout: Layout, mirrors: Mirrors, compiler: host.Compiler, python: host.Interpreter
) -> CudaHome | None:
    """The toolkit that a build would use, or just its compiler where nothing was fetched yet."""
    if not recipe.build.assembles_toolkit:
        return hosttoolkit.find(recipe, layout, compiler)
    locks = Pylocks(recipe, torchpin.pin(recipe), layout, mirrors)
    lock = packages.read(locks.paths[1])
    if lock is None:
        return None
    found = preflight.Host(compiler, python, {})
    logs = layout.work / recipe.id / "doctor"
    supply = environments.Supply(layout, mirrors, None)
    if not environments.toolkit_root(lock, compiler, layout).is_dir():
        few = tuple(one for one in lock.pins.packages if one.name in _COMPILER_WHEELS)
        lock = replace(lock, pins=replace(lock.pins, packages=few))
    return environments.toolkit(lock, recipe, found, python.path, layout, logs, supply)[0]
