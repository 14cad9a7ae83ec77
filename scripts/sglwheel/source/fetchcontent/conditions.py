"""CMake conditions in three values: true, false, and what only a real configure run can tell."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from packaging.version import InvalidVersion, Version

from sglwheel.source.fetchcontent.cmake import UNKNOWN, Argument, Lookup, expand, split

_TRUE = frozenset({"1", "ON", "YES", "TRUE", "Y"})
_FALSE = frozenset({"", "0", "OFF", "NO", "FALSE", "N", "IGNORE", "NOTFOUND"})
_UNARY = frozenset(
    {"EXISTS", "COMMAND", "DEFINED", "IS_DIRECTORY", "IS_SYMLINK", "IS_ABSOLUTE", "TARGET", "TEST", "POLICY"}
)
_ORDERS = ("EQUAL", "LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL")
_BINARY = frozenset(
    {prefix + order for prefix in ("", "STR", "VERSION_") for order in _ORDERS}
    | {"MATCHES", "IN_LIST", "PATH_EQUAL", "IS_NEWER_THAN"}
)


def constant(value: str) -> bool | None:
    """What a word alone means in a condition; None if it is not a constant."""
    upper = value.upper()
    if upper in _TRUE:
        return True
    if upper in _FALSE or upper.endswith("-NOTFOUND"):
        return False
    try:
        return float(value) != 0
    except ValueError:
        return None


@dataclass
class Condition:
    """Evaluate one `if()`: True, False, or None where only a real configure run can tell."""

    arguments: tuple[Argument, ...]
    lookup: Lookup
    assigned: Callable[[str], bool]
    test: Callable[[str, str], bool | None]
    """Answers `DEFINED x`, `EXISTS x`, …: (operator, operand)."""

    def evaluate(self) -> bool | None:
        """The condition's value."""
        self._tokens: list[tuple[str, str]] = []
        for argument in self.arguments:
            if argument.kind == "unquoted":
                self._tokens += [("word", item) for item in split(expand(argument.text, self.lookup)) if item]
            elif argument.kind == "quoted":
                self._tokens.append(("string", expand(argument.text, self.lookup)))
            else:
                self._tokens.append((argument.kind, argument.text))
        self._next = 0
        value = self._or()
        return value if self._next == len(self._tokens) else None

    def _word(self, offset: int = 0) -> str:
        position = self._next + offset
        if position < len(self._tokens):
            kind, text = self._tokens[position]
            return text if kind in ("word", "paren") else ""
        return ""

    def _or(self) -> bool | None:
        value = self._and()
        while self._word() == "OR":
            self._next += 1
            other = self._and()
            value = True if value or other else (None if value is None or other is None else False)
        return value

    def _and(self) -> bool | None:
        value = self._not()
        while self._word() == "AND":
            self._next += 1
            other = self._not()
            value = False if value is False or other is False else (None if None in (value, other) else True)
        return value

    def _not(self) -> bool | None:
        if self._word() == "NOT":
            self._next += 1
            value = self._not()
            return None if value is None else not value
        return self._primary()

    def _primary(self) -> bool | None:
        if self._next >= len(self._tokens):
            return None
        if self._tokens[self._next] == ("paren", "("):
            self._next += 1
            value = self._or()
            self._next += self._word() == ")"
            return value
        if self._word() in _UNARY and self._next + 1 < len(self._tokens) and self._word(1) not in _BINARY:
            operator, operand = self._word(), self._tokens[self._next + 1][1]
            self._next += 2
            return None if UNKNOWN in operand else self.test(operator, operand)
        left = self._tokens[self._next]
        self._next += 1
        if self._word() in _BINARY and self._next + 1 < len(self._tokens):
            operator = self._word()
            right = self._tokens[self._next + 1]
            self._next += 2
            return self._compare(operator, left, right)
        return self._truth(left)

    def _truth(self, token: tuple[str, str]) -> bool | None:
        kind, text = token
        if UNKNOWN in text:
            return None
        value = constant(text)
        if value is not None:
            return value
        if kind != "word":
            return False
        content = self.lookup("", text)
        if UNKNOWN in content:
            return None
        value = constant(content)
        return True if value is None else value

    def _operand(self, token: tuple[str, str], *, left: bool) -> str:
        kind, text = token
        if kind == "word" and (self.assigned(text) or (left and re.fullmatch(r"[A-Za-z_]\w*", text))):
            return self.lookup("", text)
        return text

    def _compare(self, operator: str, left: tuple[str, str], right: tuple[str, str]) -> bool | None:
        a, b = self._operand(left, left=True), self._operand(right, left=False)
        if operator == "IN_LIST":
            b = self.lookup("", right[1])
        if UNKNOWN in a or UNKNOWN in b:
            return None
        if operator == "IN_LIST":
            return left[1] in split(b) or a in split(b)
        if operator == "MATCHES":
            try:
                return re.search(b, a) is not None
            except re.error:
                return None
        if operator.startswith("VERSION_"):
            return _ordered(operator.removeprefix("VERSION_"), _version(a), _version(b))
        if operator.startswith("STR"):
            return _ordered(operator.removeprefix("STR"), a, b)
        if operator in ("PATH_EQUAL", "IS_NEWER_THAN"):
            return a == b if operator == "PATH_EQUAL" else None
        try:
            return _ordered(operator, float(a), float(b))
        except ValueError:
            return False


def _version(text: str) -> Version | None:
    match = re.match(r"\d+(\.\d+)*", text)
    try:
        return Version(match[0]) if match else Version("0")
    except InvalidVersion:
        return None


def _ordered(operator: str, a: object, b: object) -> bool | None:
    if a is None or b is None:
        return None
    # Both sides have one type: str, float or Version.
    less, equal = bool(a < b), a == b  # type: ignore[operator]
    return {
        "EQUAL": equal,
        "LESS": less,
        "LESS_EQUAL": less or equal,
        "GREATER": not less and not equal,
        "GREATER_EQUAL": not less,
    }[operator]
