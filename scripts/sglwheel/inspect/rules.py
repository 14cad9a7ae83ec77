"""The rules: each looks at a wheel's facts and yields findings. `RULES` is the table, in the order of the
report.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from sglwheel.inspect import loader, platforms, sonames, undefined
from sglwheel.inspect.demangle import demangle
from sglwheel.inspect.libraries import Library
from sglwheel.inspect.report import Finding, Subject
from sglwheel.inspect.wheelfile import record_digest

Rule = Callable[[Subject], Iterator[Finding]]

_REBUILD = "build it again, or download it again and compare the hash with its index"
# Two names of one project: both own the directory sgl_kernel/.
_SAME_FILES = frozenset({"sgl-kernel", "sglang-kernel"})
_STRAY_SUFFIXES = (".a", ".o", ".la", ".cmake", ".pc")


def archive(subject: Subject) -> Iterator[Finding]:
    """Every file can be unpacked and has the checksum that the archive says."""
    for path, reason in subject.wheel.damaged:
        yield Finding("archive", "error", path, f"cannot be unpacked: {reason}", _REBUILD)


def paths(subject: Subject) -> Iterator[Finding]:
    """No file lands outside site-packages, none is there twice."""
    for path in subject.wheel.unsafe:
        yield Finding(
            "paths", "error", path, "would be installed outside of site-packages", "do not install it"
        )
    for path in subject.wheel.duplicates:
        yield Finding(
            "paths", "error", path, "stands twice in the archive: which one counts is chance", _REBUILD
        )


def dist_info(subject: Subject) -> Iterator[Finding]:
    """One .dist-info with METADATA, WHEEL and RECORD."""
    wheel = subject.wheel
    if len(wheel.dist_info) != 1:
        found = ", ".join(wheel.dist_info) or "none"
        yield Finding(
            "dist-info", "error", None, f"must hold one .dist-info directory, holds {found}", _REBUILD
        )
        return
    for name, value in (("METADATA", wheel.metadata), ("WHEEL", wheel.wheel), ("RECORD", wheel.record)):
        if value is None:
            yield Finding(
                "dist-info", "error", f"{wheel.dist_info[0]}/{name}", "missing or unreadable", _REBUILD
            )


def record(subject: Subject) -> Iterator[Finding]:
    """RECORD lists every file with its hash and size, and nothing else."""
    wheel = subject.wheel
    if wheel.record is None or len(wheel.dist_info) != 1:
        return
    # RECORD cannot hold its own hash; signatures of it cannot either.
    exempt = {f"{wheel.dist_info[0]}/RECORD{suffix}" for suffix in ("", ".jws", ".p7s")}
    lines = {entry.path: entry for entry in wheel.record}
    damaged = {path for path, _ in wheel.damaged}
    for file in wheel.files:
        entry = lines.get(file.path)
        if file.path in exempt or file.path in damaged:
            continue
        if entry is None:
            yield Finding("record", "error", file.path, "is not in RECORD", _REBUILD)
        elif entry.digest.split("=")[0] != "sha256":
            yield Finding(
                "record", "error", file.path, f"RECORD has no sha256 for it, but {entry.digest or 'nothing'}"
            )
        elif entry.digest.rstrip("=") != record_digest(file.sha256):
            yield Finding("record", "error", file.path, "has other content than RECORD says", _REBUILD)
        elif entry.size and entry.size != str(file.size):
            yield Finding(
                "record", "error", file.path, f"is {file.size} bytes, RECORD says {entry.size}", _REBUILD
            )
    for path in sorted(lines.keys() - exempt - {file.path for file in wheel.files}):
        yield Finding("record", "error", path, "is in RECORD but not in the wheel", _REBUILD)


def names(subject: Subject) -> Iterator[Finding]:
    """File name, .dist-info and METADATA say the same distribution and version, the expected one."""
    wheel, expect = subject.wheel, subject.expect
    if wheel.name is None:
        yield Finding("names", "error", None, f"{wheel.file_name} is not a wheel's file name")
        return
    if len(wheel.dist_info) == 1:
        distribution, _, version = wheel.dist_info[0].removesuffix(".dist-info").partition("-")
        yield from _same_name(".dist-info", distribution, version, subject)
    if wheel.metadata is not None:
        yield from _same_name(
            "METADATA", str(wheel.metadata.get("Name", "")), str(wheel.metadata.get("Version", "")), subject
        )
    if expect.distribution and canonicalize_name(expect.distribution) != wheel.name.distribution:
        yield Finding("names", "error", None, f"is {wheel.name.distribution}, expected {expect.distribution}")
    if expect.version is not None and expect.version != wheel.name.version:
        yield Finding("names", "error", None, f"is version {wheel.name.version}, expected {expect.version}")


def _same_name(where: str, distribution: str, version: str, subject: Subject) -> Iterator[Finding]:
    name = subject.wheel.name
    assert name is not None
    if canonicalize_name(distribution) != name.distribution:
        yield Finding(
            "names",
            "error",
            where,
            f"says distribution {distribution!r}, the file name {name.distribution!r}",
        )
    try:
        same = Version(version) == name.version
    except InvalidVersion:
        same = False
    if not same:
        yield Finding(
            "names",
            "error",
            where,
            f"says version {version!r}, the file name {str(name.version)!r}",
            "a renamed wheel keeps its METADATA: finish it again instead",
        )


def tags(subject: Subject) -> Iterator[Finding]:
    """The tags in the file name are those in WHEEL."""
    wheel = subject.wheel
    if wheel.name is None or wheel.wheel is None:
        return
    if wheel.name.tags != wheel.wheel_tags:
        yield Finding(
            "tags",
            "error",
            None,
            f"the file name says {_tags(wheel.name.tags)}, WHEEL says {_tags(wheel.wheel_tags)}",
            "the wheel was renamed after it was built: `wheel tags` changes both",
        )


def _tags(values: frozenset[object]) -> str:
    return " ".join(sorted(map(str, values))) or "nothing"


def requires_torch(subject: Subject) -> Iterator[Finding]:
    """METADATA names exactly the torch that the wheel was compiled against."""
    wheel, expect = subject.wheel, subject.expect
    if wheel.metadata is None or not any(map(_uses_torch, subject.libraries)):
        return
    found: list[Requirement] = []
    for text in wheel.requires:
        try:
            requirement = Requirement(text)
        except InvalidRequirement as error:
            yield Finding("requires-torch", "error", "METADATA", f"Requires-Dist: {text}: {error}")
            continue
        if canonicalize_name(requirement.name) == "torch":
            found.append(requirement)
    exact = [
        spec.version
        for r in found
        for spec in r.specifier
        if spec.operator in ("==", "===") and "*" not in spec.version
    ]
    if expect.torch is not None:
        if [Version(version) for version in exact] != [expect.torch]:
            said = ", ".join(map(str, found)) or "no torch"
            yield Finding(
                "requires-torch", "error", "METADATA", f"requires {said}, expected torch=={expect.torch}"
            )
    elif not exact:
        said = f"only {', '.join(map(str, found))}" if found else "no torch at all"
        yield Finding(
            "requires-torch",
            "warning",
            "METADATA",
            f"requires {said}: an installer puts it beside any torch, and it breaks when imported",
            "pin the torch that it was compiled against",
        )
    elif subject.torch is not None and Version(exact[0]) != Version(Version(subject.torch.label).public):
        yield Finding(
            "requires-torch",
            "warning",
            "METADATA",
            f"requires torch=={exact[0]}: an installer would replace {subject.torch.label}",
        )


def _uses_torch(library: Library) -> bool:
    return any(name.startswith(("libtorch", "libc10")) for name in library.needed)


def elf(subject: Subject) -> Iterator[Finding]:
    """Every library can be read."""
    for library in subject.libraries:
        if library.broken:
            yield Finding("elf", "error", library.path, f"no loader can load it: {library.broken}", _REBUILD)


def machine(subject: Subject) -> Iterator[Finding]:
    """Every library is for the processor in the tag."""
    if subject.wheel.name is None:
        return
    promised = {tag.platform for tag in subject.wheel.name.tags}
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
                f"uses {_some(foreign)}: not in the stable ABI of Python 3.{oldest}",
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
            yield Finding("needed", "error", _some(files), f"needs {soname}: {origin.text}", remedy)
        elif origin.kind == "python":
            yield Finding(
                "needed",
                "error",
                _some(files),
                f"needs {soname}: {origin.text}",
                "extension modules leave it open",
            )
        elif origin.kind == "node":
            yield Finding(
                "needed", "info", _some(files), f"needs {soname}, which the node must have: {origin.text}"
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
                f"calls {_some(calls)} but does not need libcuda.so.1: "
                f"on a node it dies with `undefined symbol: {calls[0]}`",
                "link against a driver stub that defines them: the linker drops an empty one (--as-needed)",
            )


def undefined_symbols(subject: Subject) -> Iterator[Finding]:
    """Every other symbol that is left open has somebody who defines it."""
    for library in subject.libraries:
        left = undefined.unresolved(library, subject)
        if left:
            shown = _some([demangle(name) for name in left])
            yield Finding(
                "undefined",
                "error",
                library.path,
                f"nobody defines {shown}",
                "a source file or a library is missing at link time",
            )


def fatbin(subject: Subject) -> Iterator[Finding]:
    """GPU code is stored in a form that can be read to its end."""
    for library in subject.libraries:
        if library.device_error:
            yield Finding(
                "fatbin", "error", library.path, f"GPU code is corrupt at {library.device_error}", _REBUILD
            )


def architectures(subject: Subject) -> Iterator[Finding]:
    """Every library with GPU code holds exactly the targets of the recipe."""
    expect = subject.expect
    if not expect.sass:
        return
    wanted = expect.sass | expect.ptx
    with_code = [library for library in subject.libraries if library.targets]
    for library in with_code:
        held = set(library.sass) | set(library.ptx)
        missing, extra = sorted(wanted - held), sorted(held - wanted)
        if missing or extra:
            parts = [f"lacks {' '.join(missing)}"] * bool(missing) + [
                f"holds {' '.join(extra)} besides"
            ] * bool(extra)
            yield Finding(
                "architectures",
                "error",
                library.path,
                f"{', '.join(parts)}; the recipe says exactly {' '.join(sorted(wanted))}",
                "a hard-coded architecture list in upstream's CMake: `sglwheel series check` names the patch",
            )
    if subject.libraries and not with_code:
        yield Finding(
            "architectures",
            "error",
            None,
            f"no library holds GPU code; the recipe says {' '.join(sorted(wanted))}",
        )


def loads(subject: Subject) -> Iterator[Finding]:
    """On every GPU of the recipe, the library that SGLang's loader takes is there and has code for it."""
    if not loader.has_variants(subject.libraries):
        return
    for sass in sorted(subject.expect.sass):
        capability = divmod(int(re.sub(r"\D", "", sass)), 10)
        choice = loader.choose(subject.libraries, capability)
        where = f"compute capability {capability[0]}.{capability[1]}"
        if choice.library is None:
            wanted = loader.variant(capability)
            yield Finding(
                "loads", "error", None, f"on {where} SGLang loads {wanted}/common_ops, which is not there"
            )
        elif choice.runs is None:
            yield Finding(
                "loads", "error", choice.library, f"SGLang loads it on {where}, for which it has no code"
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
            _some(files),
            "\n".join(lines),
            remedy,
        )


def operators(subject: Subject) -> Iterator[Finding]:
    """The libraries register every operator that the recipe names."""
    found = {name for library in subject.libraries for name in subject.operators_of(library)}
    # A library whose package never calls torch.ops leaves the namespace open.
    bare = {name.split("::")[1] for name in found if name.startswith("?::")}
    for name in subject.expect.operators:
        if name not in found and name.split("::")[1] not in bare:
            yield Finding(
                "operators",
                "error",
                None,
                f"no library registers {name}",
                "the option that compiles it is off, or this pin no longer has it",
            )


def size(subject: Subject) -> Iterator[Finding]:
    """The wheel stays within the recipe's budget."""
    budget = subject.expect.max_size_mib
    if budget is None or subject.wheel.size <= budget << 20:
        return
    largest = sorted(subject.wheel.files, key=lambda file: -file.stored)[:5]
    shares = ", ".join(f"{file.path} {file.stored / 2**20:.1f}" for file in largest)
    yield Finding(
        "size",
        "error",
        None,
        f"{subject.wheel.size / 2**20:.1f} MiB, the recipe allows {budget}; largest, in MiB: {shares}",
        "leave out what this GPU never loads, or raise wheel.max-size-mib",
    )


def strays(subject: Subject) -> Iterator[Finding]:
    """Nothing in the wheel is left over from compiling."""
    found: dict[str, list[str]] = defaultdict(list)
    for file in subject.wheel.files:
        top = file.path.split("/", 1)[0]
        if file.path.endswith(_STRAY_SUFFIXES):
            found["is only useful to a compiler"].append(file.path)
        elif top in ("lib", "lib64", "include", "bin", "share", "cmake") and "/" in file.path:
            found[f"lands in site-packages/{top}, which belongs to nobody"].append(file.path)
    for why, files in sorted(found.items()):
        yield Finding("strays", "warning", _some(files), why, "wheel.exclude in the recipe leaves it out")


def conflicts(subject: Subject) -> Iterator[Finding]:
    """Say which other distribution owns the same files."""
    name = subject.wheel.name
    if name is not None and name.distribution in _SAME_FILES:
        (other,) = _SAME_FILES - {name.distribution}
        yield Finding(
            "conflicts",
            "info",
            None,
            f"{other} owns the same files: with both installed, uninstalling one breaks the other",
            f"uninstall {other} first",
        )


def _some(items: list[str] | tuple[str, ...], limit: int = 4) -> str:
    shown = ", ".join(items[:limit])
    return shown if len(items) <= limit else f"{shown} and {len(items) - limit} more"


RULES: dict[str, Rule] = {
    "archive": archive,
    "paths": paths,
    "dist-info": dist_info,
    "record": record,
    "names": names,
    "tags": tags,
    "requires-torch": requires_torch,
    "elf": elf,
    "machine": machine,
    "abi3": abi3,
    "platform": platform,
    "rpath": rpath,
    "needed": needed,
    "driver": driver,
    "undefined": undefined_symbols,
    "fatbin": fatbin,
    "architectures": architectures,
    "loads": loads,
    "torch-abi": torch_abi,
    "operators": operators,
    "size": size,
    "strays": strays,
    "conflicts": conflicts,
}
