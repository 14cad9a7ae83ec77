"""Reads the language of predicates: recursive descent, errors with column and what was expected."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from typing import Literal, TypeVar

from packaging.version import InvalidVersion, Version

from sglwheel.series.predicates import (
    COMPARISONS,
    Always,
    Architectures,
    Compare,
    Junction,
    Option,
    Predicate,
    Upstream,
)
from sglwheel.types import CommitId, CudaArch

_T = TypeVar("_T")
_TOKEN = re.compile(r"\s*(?:(?P<symbol><=|>=|==|!=|<|>|\(|\))|(?P<word>[^\s()<>=!]+)|(?P<bad>\S))")
_SUBJECTS = ("cmake", "cuda", "torch", "architectures", "option", "upstream")


class PredicateError(ValueError):
    """The text is not a predicate; the message says where and what would be."""


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
        symbol = self._choice(*COMPARISONS)
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
