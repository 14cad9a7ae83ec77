"""Inspect a wheel from its files alone: nothing is imported, nothing is run, no GPU is needed."""

from __future__ import annotations

import threading
from pathlib import Path

from sglwheel.errors import InspectionError
from sglwheel.inspect import libraries as _libraries
from sglwheel.inspect import loader, platforms, undefined, wheelfile
from sglwheel.inspect.abi import Cause, Missing, TorchSymbols
from sglwheel.inspect.libraries import Library
from sglwheel.inspect.releases import Releases, shipped
from sglwheel.inspect.report import Expectation, Finding, Inspection, Subject
from sglwheel.inspect.rules import RULES

_MAX_SYMBOLS = 2_000_000  # of all libraries together; the largest published wheel has 60,000

__all__ = [
    "RULES",
    "Cause",
    "Expectation",
    "Finding",
    "Inspection",
    "Library",
    "Missing",
    "TorchSymbols",
    "inspect",
]


def inspect(
    wheel: Path,
    *,
    expect: Expectation | None = None,
    torch: TorchSymbols | None = None,
    releases: Releases | None = None,
    kernels: int = 0,
) -> Inspection:
    """Read a wheel and judge it by every rule; `expect` and `torch` add the rules that compare.

    `releases` defaults to the torch releases that the tool knows. `kernels` asks for that many of the largest
    kernels of each library, which takes reading all GPU code. What is wrong with the wheel is a finding.
    Raises InspectionError only for what is not a wheel, or cannot be read safely.
    """
    found: dict[str, Library] = {}
    lock = threading.Lock()

    def analyse(path: str, copy: Path, holes: wheelfile.Holes) -> None:
        library = _libraries.read(path, copy, holes, largest=kernels)
        if library is not None:
            with lock:
                found[path] = library
                count = sum(len(each.undefined) + len(each.exported) for each in found.values())
            if count > _MAX_SYMBOLS:
                raise InspectionError(
                    f"refused, not a sane wheel: more than {_MAX_SYMBOLS} symbols", where={"file": str(wheel)}
                )

    facts = wheelfile.read(wheel, analyse, whole=kernels > 0)
    subject = Subject(
        wheel=facts,
        libraries=tuple(found[path] for path in sorted(found)),
        expect=expect or Expectation(),
        torch=torch,
        releases=releases if releases is not None else shipped(),
    )
    computed = platforms.compute(subject.libraries)
    return Inspection(
        wheel=facts,
        libraries=subject.libraries,
        operators_by_library={
            library.path: subject.operators_of(library) for library in subject.libraries if library.schemas
        },
        platform=computed.name if computed is not None else None,
        choices=loader.choices(subject.libraries),
        torch=torch.label if torch is not None else None,
        causes=undefined.torch_causes(subject),
        fits=undefined.fitting(subject),
        blocked={
            library.path: reasons
            for library in subject.libraries
            if (reasons := undefined.blockers(library, subject))
        },
        findings=tuple(finding for rule in RULES.values() for finding in rule(subject)),
    )
