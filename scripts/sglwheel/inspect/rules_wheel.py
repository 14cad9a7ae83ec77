"""Rules about the wheel as a file: archive, names, metadata, size."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from sglwheel.inspect.distinfo import record_digest
from sglwheel.inspect.libraries import Library
from sglwheel.inspect.report import REBUILD, Finding, Subject, listed

# Two names of one project: both own the directory sgl_kernel/.
_SAME_FILES = frozenset({"sgl-kernel", "sglang-kernel"})
_STRAY_SUFFIXES = (".a", ".o", ".la", ".cmake", ".pc")


def archive(subject: Subject) -> Iterator[Finding]:
    """Every file can be unpacked and has the checksum that the archive says."""
    for path, reason in subject.wheel.damaged:
        yield Finding("archive", "error", path, f"cannot be unpacked: {reason}", REBUILD)


def paths(subject: Subject) -> Iterator[Finding]:
    """No file lands outside site-packages, none is there twice."""
    for path in subject.wheel.unsafe:
        yield Finding(
            "paths", "error", path, "would be installed outside of site-packages", "do not install it"
        )
    for path in subject.wheel.duplicates:
        yield Finding(
            "paths", "error", path, "stands twice in the archive: which one counts is chance", REBUILD
        )


def dist_info(subject: Subject) -> Iterator[Finding]:
    """One .dist-info with METADATA, WHEEL and RECORD."""
    wheel = subject.wheel
    if len(wheel.dist_info) != 1:
        found = ", ".join(wheel.dist_info) or "none"
        yield Finding(
            "dist-info", "error", None, f"must hold one .dist-info directory, holds {found}", REBUILD
        )
        return
    for name, value in (("METADATA", wheel.metadata), ("WHEEL", wheel.wheel), ("RECORD", wheel.record)):
        if value is None:
            yield Finding(
                "dist-info", "error", f"{wheel.dist_info[0]}/{name}", "missing or unreadable", REBUILD
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
            yield Finding("record", "error", file.path, "is not in RECORD", REBUILD)
        elif entry.digest.split("=")[0] != "sha256":
            yield Finding(
                "record", "error", file.path, f"RECORD has no sha256 for it, but {entry.digest or 'nothing'}"
            )
        elif entry.digest.rstrip("=") != record_digest(file.sha256):
            yield Finding("record", "error", file.path, "has other content than RECORD says", REBUILD)
        elif entry.size and entry.size != str(file.size):
            yield Finding(
                "record", "error", file.path, f"is {file.size} bytes, RECORD says {entry.size}", REBUILD
            )
    for path in sorted(lines.keys() - exempt - {file.path for file in wheel.files}):
        yield Finding("record", "error", path, "is in RECORD but not in the wheel", REBUILD)


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


def pure(subject: Subject) -> Iterator[Finding]:
    """A wheel for any platform holds no library; it is one if, and only if, the recipe is of Python alone."""
    wheel, expect = subject.wheel, subject.expect
    if wheel.name is None:
        return
    platforms = {tag.platform for tag in wheel.name.tags}
    libraries = [library.path for library in subject.libraries]
    if "any" in platforms and libraries:
        yield Finding(
            "pure",
            "error",
            listed(libraries),
            "is a library, in a wheel whose tag says any platform",
            REBUILD,
        )
    if expect.pure is None:
        return
    if expect.pure and platforms != {"any"}:
        said = " ".join(sorted(platforms))
        yield Finding("pure", "error", None, f"is for {said}, but the recipe is of Python alone")
    if not expect.pure and "any" in platforms:
        yield Finding("pure", "error", None, "is for any platform, but the recipe's kernels are compiled")


def _tags(values: frozenset[object]) -> str:
    return " ".join(sorted(map(str, values))) or "nothing"


def requires_torch(subject: Subject) -> Iterator[Finding]:
    """METADATA names exactly the torch that the wheel was compiled against."""
    wheel, expect = subject.wheel, subject.expect
    if wheel.metadata is None or not (expect.pure or any(map(_uses_torch, subject.libraries))):
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
        yield Finding("strays", "warning", listed(files), why, "wheel.exclude in the recipe leaves it out")


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
