"""When a patch is needed: a small closed language over the resolved toolchain, the recipe and upstream."""

from __future__ import annotations

import difflib
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

from packaging.version import InvalidVersion, Version

from sglwheel.recipe import Recipe
from sglwheel.types import CommitId, CudaArch

_T = TypeVar("_T")
_TOKEN = re.compile(r"\s*(?:(?P<symbol><=|>=|==|!=|<|>|\(|\))|(?P<word>[^\s()<>=!]+)|(?P<bad>\S))")
_COMPARISONS: Mapping[str, Callable[[Version, Version], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
_SUBJECTS = ("cmake", "cuda", "torch", "architectures", "option", "upstream")
# CMake's own words for false (the constants that `if()` knows); everything else that is set is true.
_OFF = re.compile(r"(OFF|0|FALSE|NO|N|IGNORE|NOTFOUND|.*-NOTFOUND|)", re.IGNORECASE)


class PredicateError(ValueError):
    """The text is not a predicate; the message says where and what would be."""


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
        holds = _COMPARISONS[self.symbol](compared, self.version)
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


def parse(text: str) -> Predicate:
    """Parse a predicate. Raises PredicateError with the column and what was expected there."""
    if not text.strip():
        return Always()
    parser = _Parser(text)
    predicate = parser.either()
    if parser.token is not None:
        raise parser.error("expected `and`, `or` or the end")
    return predicate


class _Parser:
    """Recursive descent: either = both {or both}, both = single {and single}, single = (either) or one."""

    def __init__(self, text: str) -> None:
        self._text = text.rstrip()
        self._end = 0
        self._start = 0
        self._depth = 0
        self.token: str | None = None
        self._advance()

    def either(self) -> Predicate:
        return self._junction("or", lambda: self._junction("and", self._single))

    def error(self, message: str) -> PredicateError:
        found = f"found {self.token!r}" if self.token is not None else "found the end"
        return PredicateError(f"{message}, {found} at column {self._start + 1} of {self._text!r}")

    def _junction(self, word: Literal["and", "or"], part: Callable[[], Predicate]) -> Predicate:
        parts = [part()]
        while self._take(word):
            parts.append(part())
        # `(a and b) and c` reads as one list, so that the canonical text parses back to the same value.
        flat: list[Predicate] = []
        for item in parts:
            flat.extend(item.parts if isinstance(item, Junction) and item.word == word else (item,))
        return flat[0] if len(flat) == 1 else Junction(word, tuple(flat))

    def _single(self) -> Predicate:
        if self.token != "(":
            return self._condition()
        self._depth += 1
        if self._depth > 50:
            raise self.error("too many parentheses")
        self._advance()
        inner = self.either()
        if self.token != ")":
            raise self.error("expected `)`")
        self._advance()
        self._depth -= 1
        return inner

    def _condition(self) -> Predicate:
        match self.token:
            case "cmake" | "cuda" | "torch" as subject:
                self._advance()
                return self._comparison(subject)
            case "architectures":
                self._advance()
                has = self._choice("has", "lacks") == "has"
                return Architectures(has, self._value("an architecture", CudaArch.parse))
            case "option":
                self._advance()
                name = self._value("an option's name", _option_name)
                self._choice("is")
                return Option(name, not self._take("not"), self._choice("ON", "OFF") == "ON")
            case "upstream":
                self._advance()
                contains = self._choice("contains", "lacks") == "contains"
                return Upstream(contains, self._value("a commit", CommitId.parse))
        near = difflib.get_close_matches(self.token or "", _SUBJECTS, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise self.error(f"expected one of {', '.join(_SUBJECTS)}{hint}")

    def _comparison(self, subject: Literal["cmake", "cuda", "torch"]) -> Predicate:
        symbol = self._choice(*_COMPARISONS)
        word = self.token or ""
        prefix = word.endswith(".*")
        if prefix and symbol not in ("==", "!="):
            raise self.error(f"`.*` goes with == and != only, not with {symbol}")
        version = self._value("a version", lambda text: _version(text.removesuffix(".*")))
        return Compare(subject, symbol, version, prefix)

    def _take(self, word: str) -> bool:
        if self.token != word:
            return False
        self._advance()
        return True

    def _choice(self, *words: str) -> str:
        if self.token not in words:
            raise self.error(f"expected {' or '.join(words)}")
        word = self.token
        self._advance()
        return word

    def _value(self, what: str, convert: Callable[[str], _T]) -> _T:
        if self.token is None:
            raise self.error(f"expected {what}")
        try:
            value = convert(self.token)
        except ValueError as error:
            raise PredicateError(f"expected {what} at column {self._start + 1}: {error}") from None
        self._advance()
        return value

    def _advance(self) -> None:
        match = _TOKEN.match(self._text, self._end)
        if match is None:
            self._start, self.token = len(self._text), None
            return
        kind = match.lastgroup or ""
        self._start, self._end, self.token = match.start(kind), match.end(), match[kind]
        if kind == "bad":
            raise self.error("this sign means nothing here")


def _version(text: str) -> Version:
    try:
        version = Version(text)
    except InvalidVersion:
        raise ValueError(f"{text!r} is not a version") from None
    if version.local:
        raise ValueError(f"{text!r} has a local part, which is not compared")
    return version


def _option_name(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.+-]*", text):
        raise ValueError(f"{text!r} is not a CMake variable's name")
    return text
