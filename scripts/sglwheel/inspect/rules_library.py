"""Rules about each shared library: what it needs of Python, the system, CUDA and torch."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from sglwheel.inspect import platforms, sonames, undefined
from sglwheel.inspect.demangle import demangle
from sglwheel.inspect.report import REBUILD, Finding, Subject, listed

# Of libstdc++ itself: what was only compiled against it never defines these.
_CXX_RUNTIME = frozenset({"__cxa_throw", "__gxx_personality_v0"})


def elf(subject: Subject) -> Iterator[Finding]:
    """Every library can be read."""
    for library in subject.libraries:
        if library.broken:
            yield Finding("elf", "error", library.path, f"no loader can load it: {library.broken}", REBUILD)


def machine(subject: Subject) -> Iterator[Finding]:
    """Every library is for the processor in the tag."""
    if subject.wheel.name is None:
        return
    promised = {tag.platform for tag in subject.wheel.name.tags}
    if "any" in promised:
        return  # that there is a library at all is another rule's finding
    for library in subject.libraries:
        if library.machine and not any(p.endswith(f"_{library.machine}") for p in promised):
            said = " ".join(sorted(promised))
            yield Finding("machine", "error", library.path, f"is for {library.machine}, the tag says {said}")


def abi3(subject: Subject) -> Iterator[Finding]:
    """With an abi3 tag, every library keeps to the stable ABI of the oldest Python that it promises."""
    name = subject.wheel.name
    if name is None or not any(tag.abi == "abi3" for tag in name.tags):
        return
    oldest = min(
        (int(tag.interpreter[3:]) for tag in name.tags if re.fullmatch(r"cp3\d+", tag.interpreter)), default=2
    )
    for library in subject.libraries:
        other = re.search(r"\.(cpython-\d+|cp\d+)[^.]*\.so$", library.path)
        if other:
            yield Finding(
                "abi3",
                "error",
                library.path,
                f"loads with {other[1]} only, inside a wheel that says abi3",
                "leave it out, or build it with the limited API",
            )
            continue
        foreign = undefined.outside_stable_abi(library, oldest)
        if foreign:
            yield Finding(
                "abi3",
                "error",
                library.path,
                f"uses {listed(foreign)}: not in the stable ABI of Python 3.{oldest}",
                f"compile with Py_LIMITED_API=0x03{oldest:02x}0000",
            )


def platform(subject: Subject) -> Iterator[Finding]:
    """The platform tag promises no older system than the libraries' versioned symbols need."""
    name = subject.wheel.name
    computed = platforms.compute(subject.libraries)
    if name is None or computed is None:
        return
    for tag in sorted({tag.platform for tag in name.tags}):
        verdict = platforms.compare(tag, computed)
        if verdict == "older":
            yield Finding(
                "platform",
                "error",
                None,
                f"the tag says {tag}, but the libraries need {computed.name}: "
                + platforms.reason(subject.libraries, tag),
                f"tag it {computed.name}",
            )
        elif verdict == "generic" and computed.name.startswith("manylinux"):
            yield Finding(
                "platform", "warning", None, f"the tag {tag} says nothing; it could be {computed.name}"
            )
        elif verdict == "newer":
            yield Finding("platform", "warning", None, f"the tag says {tag}, {computed.name} would do")


def rpath(subject: Subject) -> Iterator[Finding]:
    """Search paths lead into the wheel or beside it, never to a build host or to linker stubs."""
    for library in subject.libraries:
        for entry in library.rpaths:
            if "stubs" in entry.split("/"):
                why = "leads to linker stubs: the stub would be loaded instead of the driver"
            elif not entry:
                why = "is empty: the loader looks into the current directory"
            elif not entry.startswith(("$ORIGIN", "${ORIGIN}")):
                why = "is a path of the build host"
            else:
                continue
            yield Finding(
                "rpath", "error", library.path, f"RUNPATH entry {entry!r} {why}", "link with no rpath"
            )


def needed(subject: Subject) -> Iterator[Finding]:
    """Every needed library is brought by somebody."""
    users: dict[str, list[str]] = defaultdict(list)
    for library in subject.libraries:
        for soname in library.needed:
            users[soname].append(library.path)
    for soname, files in sorted(users.items()):
        origin = sonames.classify(soname, subject.sonames, subject.cuda_major)
        if origin.kind == "unknown":
            own = " or ".join(map(str, sorted(sonames.cuda_majors(soname))))
            remedy = (
                f"it needs a torch built for CUDA {own}" if own else "link it statically, or leave it out"
            )
            yield Finding("needed", "error", listed(files), f"needs {soname}: {origin.text}", remedy)
        elif origin.kind == "python":
            yield Finding(
                "needed",
                "error",
                listed(files),
                f"needs {soname}: {origin.text}",
                "extension modules leave it open",
            )
        elif origin.kind == "node":
            yield Finding(
                "needed", "info", listed(files), f"needs {soname}, which the node must have: {origin.text}"
            )


def runtime(subject: Subject) -> Iterator[Finding]:
    """No library brings a C++ runtime of its own: torch's libraries share the system's."""
    for library in subject.libraries:
        own = sorted(_CXX_RUNTIME & library.exported)
        if own:
            yield Finding(
                "runtime",
                "error",
                library.path,
                f"defines {listed(own)} itself: a second C++ runtime beside torch's libstdc++.so.6; "
                "such a wheel ended the process when it was imported",
                "link with the shared libstdc++: another CXX, or without -static-libstdc++",
            )


def driver(subject: Subject) -> Iterator[Finding]:
    """Who calls the CUDA driver needs libcuda.so.1 by name."""
    for library in subject.libraries:
        calls = undefined.driver_calls(library)
        if calls and "libcuda.so.1" not in library.needed:
            yield Finding(
                "driver",
                "error",
                library.path,
                f"calls {listed(calls)} but does not need libcuda.so.1: "
                f"on a node it dies with `undefined symbol: {calls[0]}`",
                "link against a driver stub that defines them: the linker drops an empty one (--as-needed)",
            )


def undefined_symbols(subject: Subject) -> Iterator[Finding]:
    """Every other symbol that is left open has somebody who defines it."""
    for library in subject.libraries:
        left = undefined.unresolved(library, subject)
        if left:
            shown = listed([demangle(name) for name in left])
            yield Finding(
                "undefined",
                "error",
                library.path,
                f"nobody defines {shown}",
                "a source file or a library is missing at link time",
            )


def torch_abi(subject: Subject) -> Iterator[Finding]:
    """Every symbol of torch that the libraries use is exported by the torch beside it."""
    if subject.torch is None:
        return
    fits = undefined.fitting(subject)
    other = f"torch {' or '.join(fits)}" if fits else "the torch that it was compiled against"
    remedy = f"use {other}, or build it against {subject.torch.label}"
    for cause in undefined.torch_causes(subject):
        files = sorted({file for missing in cause.symbols for file in missing.files})
        lines = [f"{cause.text} in torch {subject.torch.label}"]
        for missing in cause.symbols[:8]:
            lines.append(f"missing   {missing.demangled}")
            if missing.nearest:
                lines.append(f"  instead {missing.nearest}")
        if len(cause.symbols) > 8:
            lines.append(f"and {len(cause.symbols) - 8} further symbols")
        yield Finding(
            "torch-abi",
            "error",
            listed(files),
            "\n".join(lines),
            remedy,
        )
