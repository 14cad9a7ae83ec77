"""When a patch is needed: a small closed language over the resolved toolchain, the recipe and upstream."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from packaging.version import Version

from sglwheel.recipe import Recipe
from sglwheel.types import CommitId, CudaArch

COMPARISONS: Mapping[str, Callable[[Version, Version], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
# CMake's own words for false (the constants that `if()` knows); everything else that is set is true.
_OFF = re.compile(r"(OFF|0|FALSE|NO|N|IGNORE|NOTFOUND|.*-NOTFOUND|)", re.IGNORECASE)


@dataclass(frozen=True)
class Facts:
    """What predicates ask about; `cmake` is None where nothing is compiled.

    `contains` says whether a commit is an ancestor of the upstream commit.
    """

    cmake: Version | None
    cuda: Version
    torch: Version
    architectures: tuple[CudaArch, ...]
    options: Mapping[str, str]
    contains: Callable[[str], bool]

    @classmethod
    def of(
        cls,
        recipe: Recipe,
        *,
        cmake: Version | None,
        cuda: Version,
        torch: Version,
        contains: Callable[[str], bool],
    ) -> Facts:
        """The facts of a recipe whose toolchain is resolved."""
        options = {
            name: ("ON" if value else "OFF") if isinstance(value, bool) else str(value)
            for name, value in recipe.options.items()
        }
        return cls(cmake, cuda, torch, recipe.build.architectures, options, contains)


@dataclass(frozen=True)
class Verdict:
    """Whether a patch is needed; `because` names the values that decided."""

    needed: bool
    because: str


class Predicate(Protocol):
    """A parsed condition; `str()` gives its canonical text."""

    def evaluate(self, facts: Facts) -> Verdict: ...


@dataclass(frozen=True)
class Always:
    """The empty predicate."""

    def __str__(self) -> str:
        return ""

    def evaluate(self, facts: Facts) -> Verdict:
        return Verdict(True, "always needed")


@dataclass(frozen=True)
class Compare:
    """`cmake < 3.31`: plain PEP 440 order, without local parts; `== 13.0.*` compares the leading parts."""

    subject: Literal["cmake", "cuda", "torch"]
    symbol: str
    version: Version
    prefix: bool = False

    def __str__(self) -> str:
        return f"{self.subject} {self.symbol} {self.version}{'.*' if self.prefix else ''}"

    def evaluate(self, facts: Facts) -> Verdict:
        found: Version | None = getattr(facts, self.subject)
        if found is None:
            return Verdict(False, f"{self.subject} takes no part in this build")
        actual = Version(found.public)
        compared = actual
        if self.prefix:
            length = len(self.version.release)
            padded = (*actual.release, *(0,) * length)[:length]
            compared = Version(".".join(map(str, padded)))
        holds = COMPARISONS[self.symbol](compared, self.version)
        verb = "is" if holds else "is not"
        return Verdict(holds, f"{self.subject} {actual} {verb} {str(self).removeprefix(self.subject + ' ')}")


@dataclass(frozen=True)
class Architectures:
    """`architectures has 9.0a`: exactly this target, suffix included."""

    has: bool
    arch: CudaArch

    def __str__(self) -> str:
        return f"architectures {'has' if self.has else 'lacks'} {self.arch}"

    def evaluate(self, facts: Facts) -> Verdict:
        present = self.arch in facts.architectures
        listed = " ".join(map(str, facts.architectures))
        return Verdict(
            present == self.has, f"architectures ({listed}) {'have' if present else 'lack'} {self.arch}"
        )


@dataclass(frozen=True)
class Option:
    """`option X is [not] ON|OFF`, looked up in the recipe's [build.cmake]; an unset option is neither."""

    name: str
    positive: bool
    on: bool

    def __str__(self) -> str:
        return f"option {self.name} is {'' if self.positive else 'not '}{'ON' if self.on else 'OFF'}"

    def evaluate(self, facts: Facts) -> Verdict:
        value = facts.options.get(self.name)
        if value is None:
            return Verdict(not self.positive, f"option {self.name} is unset")
        off = _OFF.fullmatch(value) is not None
        return Verdict((off != self.on) == self.positive, f"option {self.name} is {'OFF' if off else 'ON'}")


@dataclass(frozen=True)
class Upstream:
    """`upstream contains <commit>`, or lacks: whether the pin descends from the commit."""

    contains: bool
    commit: CommitId

    def __str__(self) -> str:
        return f"upstream {'contains' if self.contains else 'lacks'} {self.commit}"

    def evaluate(self, facts: Facts) -> Verdict:
        present = facts.contains(self.commit)
        return Verdict(
            present == self.contains, f"upstream {'contains' if present else 'lacks'} {self.commit.short}"
        )


def commits(predicate: Predicate) -> frozenset[CommitId]:
    """The upstream commits that a condition asks for."""
    if isinstance(predicate, Junction):
        return frozenset().union(*map(commits, predicate.parts))
    return frozenset({predicate.commit}) if isinstance(predicate, Upstream) else frozenset()


@dataclass(frozen=True)
class Junction:
    """`a and b`, `a or b`; every part is evaluated, so that the reason names all that decided."""

    word: Literal["and", "or"]
    parts: tuple[Predicate, ...]

    def __str__(self) -> str:
        texts = (f"({part})" if isinstance(part, Junction) else str(part) for part in self.parts)
        return f" {self.word} ".join(texts)

    def evaluate(self, facts: Facts) -> Verdict:
        verdicts = [part.evaluate(facts) for part in self.parts]
        needed = (all if self.word == "and" else any)(verdict.needed for verdict in verdicts)
        reasons = dict.fromkeys(verdict.because for verdict in verdicts if verdict.needed == needed)
        return Verdict(needed, " and ".join(reasons))
