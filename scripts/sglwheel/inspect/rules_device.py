"""Rules about GPU code and what it registers with torch."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sglwheel.inspect import loader
from sglwheel.inspect.report import REBUILD, Finding, Subject


def fatbin(subject: Subject) -> Iterator[Finding]:
    """GPU code is stored in a form that can be read to its end."""
    for library in subject.libraries:
        if library.device_error:
            yield Finding(
                "fatbin", "error", library.path, f"GPU code is corrupt at {library.device_error}", REBUILD
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
                "upstream's CMake hard-codes a list: the series needs a patch for it (sglwheel patch <id>)",
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


def operators(subject: Subject) -> Iterator[Finding]:
    """The libraries register every operator that the recipe names, and none that it calls absent."""
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
    for library in subject.libraries:
        for name in sorted({*subject.expect.absent_operators}.intersection(subject.operators_of(library))):
            yield Finding(
                "operators",
                "error",
                library.path,
                f"registers {name}, which the recipe calls absent",
                "built from another pin, or wheel.absent-operators is out of date",
            )
