"""What an inspection found: facts and findings as values, and the two ways to show them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from packaging.version import Version

from sglwheel.console import counted
from sglwheel.inspect.abi import Cause, TorchSymbols
from sglwheel.inspect.demangle import demangle
from sglwheel.inspect.libraries import Library
from sglwheel.inspect.loader import Choice
from sglwheel.inspect.operators import name_of
from sglwheel.inspect.releases import Releases
from sglwheel.inspect.wheelfile import WheelFile
from sglwheel.recipe import Recipe

REBUILD = "build it again, or download it again and compare the hash with its index"
Severity = Literal["error", "warning", "info"]


@dataclass(frozen=True)
class Finding:
    """One thing that a rule has to say about one file, or about the wheel when `file` is None."""

    rule: str
    severity: Severity
    file: str | None
    detail: str
    remedy: str | None = None


@dataclass(frozen=True)
class Expectation:
    """What the wheel must be; None or empty leaves a point open."""

    torch: Version | None = None
    cuda_major: int | None = None
    sass: frozenset[str] = frozenset()
    ptx: frozenset[str] = frozenset()
    operators: tuple[str, ...] = ()
    absent_operators: tuple[str, ...] = ()
    max_size_mib: int | None = None
    distribution: str | None = None
    version: Version | None = None
    pure: bool | None = None
    """Whether it must be of Python alone."""

    @classmethod
    def of(
        cls, recipe: Recipe, *, distribution: str | None = None, version: Version | None = None
    ) -> Expectation:
        """What a recipe promises; name and version are the finishing stage's."""
        architectures = recipe.build.architectures
        return cls(
            torch=recipe.torch.version,
            cuda_major=recipe.torch.cuda.major,
            sass=frozenset() if recipe.pure else frozenset(arch.sm for arch in architectures),
            ptx=frozenset(arch.compute for arch in architectures if arch.ptx and not recipe.pure),
            pure=recipe.pure,
            operators=recipe.operators,
            absent_operators=recipe.absent_operators,
            max_size_mib=recipe.wheel.max_size_mib,
            distribution=distribution,
            version=version,
        )


@dataclass(frozen=True)
class Subject:
    """Everything that a rule may look at."""

    wheel: WheelFile
    libraries: tuple[Library, ...]
    expect: Expectation
    torch: TorchSymbols | None
    releases: Releases

    @property
    def cuda_major(self) -> int | None:
        """CUDA of the torch that the wheel shall run beside."""
        return self.torch.cuda_major if self.torch is not None else self.expect.cuda_major

    @property
    def sonames(self) -> frozenset[str]:
        """What libraries of the wheel are called, by themselves and by their files."""
        return frozenset(
            name for library in self.libraries for name in (library.soname, library.file_name) if name
        )

    def operators_of(self, library: Library) -> tuple[str, ...]:
        """Operators that a library registers, one for each of its schemas.

        As `namespace::name`; `?::name` where the package's Python does not tell the namespace.
        """
        spaces = Counter(space for top, space, _ in self.wheel.uses if top == library.top_level)
        usual = spaces.most_common(1)[0][0] if spaces else "?"
        calls = {name: space for top, space, name in self.wheel.uses if top == library.top_level}
        names = [name_of(schema) for schema in library.schemas]
        return tuple(
            name if "::" in name else f"{calls.get(name.split('.')[0], usual)}::{name}" for name in names
        )


@dataclass(frozen=True)
class Inspection:
    """The facts about one wheel and what the rules say to them."""

    wheel: WheelFile
    libraries: tuple[Library, ...]
    operators_by_library: Mapping[str, tuple[str, ...]]
    platform: str | None
    """The oldest platform tag that is true, computed from versioned symbols."""
    choices: tuple[Choice, ...]
    torch: str | None
    causes: tuple[Cause, ...]
    fits: tuple[str, ...]
    """Known torch releases that it would load with, by symbols and by CUDA."""
    blocked: Mapping[str, tuple[str, ...]]
    """Libraries that would not load beside this torch, with the symbols and SONAMEs that nobody brings."""
    findings: tuple[Finding, ...]

    @property
    def wheel_sha256(self) -> str:
        return self.wheel.sha256

    @property
    def operators(self) -> tuple[str, ...]:
        """Operators that the libraries register, as far as their text shows."""
        return tuple(sorted({name for names in self.operators_by_library.values() for name in names}))

    @property
    def ok(self) -> bool:
        """No finding is an error."""
        return not any(finding.severity == "error" for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        """Everything, in types that JSON has; keys are stable."""
        wheel = self.wheel
        return {
            "schema": 1,
            "wheel": wheel.file_name,
            "wheel_sha256": wheel.sha256,
            "size": wheel.size,
            "distribution": wheel.name.distribution if wheel.name else None,
            "version": str(wheel.name.version) if wheel.name else None,
            "requires": list(wheel.requires),
            "ok": self.ok,
            "torch": self.torch,
            "fits": list(self.fits),
            "platform": self.platform,
            "libraries": [
                {
                    "file": library.path,
                    "size": library.size,
                    "machine": library.machine,
                    "broken": library.broken or library.device_error,
                    "needed": list(library.needed),
                    "sass": list(library.sass),
                    "ptx": list(library.ptx),
                    "cubins": sum(count for target, count in library.targets if target.kind == "sass"),
                    "device_bytes": library.device_bytes,
                    "kernels": [
                        {"name": each.name, "target": each.target, "size": each.size}
                        for each in library.kernels
                    ],
                }
                for library in self.libraries
            ],
            "loads": [
                {
                    "capability": f"{choice.capability[0]}.{choice.capability[1]}",
                    "library": choice.library,
                    "runs": choice.runs,
                }
                for choice in self.choices
            ],
            "operators": list(self.operators),
            "blocked": {path: list(reasons) for path, reasons in self.blocked.items()},
            "torch_abi": [
                {
                    "cause": cause.text,
                    "symbols": [
                        {
                            "symbol": missing.symbol,
                            "demangled": missing.demangled,
                            "instead": missing.nearest,
                            "files": list(missing.files),
                        }
                        for missing in cause.symbols
                    ],
                }
                for cause in self.causes
            ],
            "findings": [
                {
                    "rule": finding.rule,
                    "severity": finding.severity,
                    "file": finding.file,
                    "detail": finding.detail,
                    "remedy": finding.remedy,
                }
                for finding in self.findings
            ],
        }

    def render(self) -> list[str]:
        """The same for people, as lines."""
        return list(self._lines())

    def _lines(self) -> Iterator[str]:
        wheel = self.wheel
        yield wheel.file_name
        yield f"  sha256    {wheel.sha256}"
        yield f"  size      {_megabytes(wheel.size)}, {counted(len(wheel.files), 'file')}"
        yield f"  requires  {', '.join(wheel.requires) or 'nothing'}"
        yield f"  platform  {self.platform or 'cannot be computed'} (from versioned symbols)"
        yield f"  torch     {'compared with ' + self.torch if self.torch else 'not compared'}"
        yield f"  loads in  {'torch ' + ', '.join(self.fits) if self.fits else 'no torch release known here'}"
        if self.operators:
            yield f"  operators {len(self.operators)} found without loading"
        yield ""
        for library in sorted(self.libraries, key=lambda each: -each.size):
            targets = " ".join((*library.sass, *library.ptx)) or "no GPU code"
            yield f"  {_megabytes(library.size):>9}  {library.path}  {library.broken or targets}"
        if self.choices:
            yield ""
            for choice in self.choices:
                gpu = f"{choice.capability[0]}.{choice.capability[1]}"
                yield f"  GPU {gpu:>4}  {choice.library or 'nothing'}  {choice.runs or 'no code for it'}"
        kernels = sorted((each for library in self.libraries for each in library.kernels), reverse=True)
        if kernels:
            yield ""
        for kernel in kernels:
            yield f"  {kernel.size / 1e3:>7.1f} kB  {kernel.target:<8} {demangle(kernel.name)}"
        yield ""
        for severity in ("error", "warning", "info"):
            for finding in self.findings:
                if finding.severity == severity:
                    first, *rest = finding.detail.splitlines()
                    place = f" {finding.file}:" if finding.file else ""
                    yield f"{severity}[{finding.rule}]{place} {first}"
                    yield from (f"  {line}" for line in rest)
                    if finding.remedy:
                        yield f"  remedy: {finding.remedy}"
        errors = sum(finding.severity == "error" for finding in self.findings)
        yield f"{'fits' if self.ok else 'does not fit'}: {errors} error{'s' if errors != 1 else ''}"


def listed(items: Sequence[str], limit: int = 4) -> str:
    """The first few of a list, and how many more."""
    shown = ", ".join(items[:limit])
    return shown if len(items) <= limit else f"{shown} and {len(items) - limit} more"


def _megabytes(count: int) -> str:
    return f"{count / 1e6:.1f} MB"
