"""C++ names as people read them.

`__cxa_demangle` of libstdc++ does the work: torch needs that library anyway, so every host that matters has
it. cxxfilt (PyPI) wraps the same call but searches for the library by running ldconfig and gcc.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from dataclasses import dataclass

_MAX_LENGTH = 1 << 16


@functools.cache
def _library() -> Callable[[bytes], bytes | None] | None:
    try:
        cxx, c = ctypes.CDLL("libstdc++.so.6"), ctypes.CDLL(None)
        function, free = cxx.__cxa_demangle, c.free
    except (OSError, AttributeError):
        return None
    function.restype = ctypes.c_void_p
    function.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int)]
    free.argtypes = [ctypes.c_void_p]

    def call(name: bytes) -> bytes | None:
        status = ctypes.c_int()
        pointer = function(name, None, None, ctypes.byref(status))
        if not pointer or status.value != 0:
            return None
        try:
            return ctypes.string_at(pointer)
        finally:
            free(pointer)

    return call


def demangle(name: str) -> str:
    """`_ZN3c105ErrorD1Ev` → `c10::Error::~Error()`; what cannot be read stays as it is."""
    call = _library()
    if call is None or not name.startswith("_Z") or len(name) > _MAX_LENGTH:
        return name
    text = call(name.encode("utf-8", "surrogateescape"))
    return name if text is None else text.decode("utf-8", "replace")


@dataclass(frozen=True)
class Signature:
    """A demangled name in parts: `int const* at::TensorBase::const_data_ptr<int, 0>() const`."""

    text: str
    qualified: str
    """`at::TensorBase::const_data_ptr`, without the template arguments of its last part."""
    template: str
    """`<int, 0>`, or empty."""
    parameters: tuple[str, ...] | None
    """None for data."""
    qualifiers: str
    returns: str

    @property
    def name(self) -> str:
        """The last part: `const_data_ptr`."""
        return _split(self.qualified, "::")[-1]

    @property
    def namespace(self) -> str:
        """The first part: `at`."""
        return _split(self.qualified, "::")[0]


_KINDS = (
    "vtable for ",
    "VTT for ",
    "typeinfo for ",
    "typeinfo name for ",
    "guard variable for ",
    "non-virtual thunk to ",
)


def parse(text: str) -> Signature:
    """Split a demangled name; never fails, at worst everything is in `qualified`."""
    for kind in _KINDS:
        if text.startswith(kind):
            return Signature(text, text.removeprefix(kind), "", None, "", kind.strip())
    opening = _parameters_at(text)
    head, parameters, qualifiers = text, None, ""
    if opening is not None:
        closing = _closing(text, opening)
        inside = text[opening + 1 : closing]
        parameters = tuple(part.strip() for part in _split(inside, ",")) if inside.strip() else ()
        head, qualifiers = text[:opening], text[closing + 1 :].strip()
    words = _split(head, " ")
    returns = ""
    if len(words) > 1 and "operator" not in words[-2]:
        returns, head = " ".join(words[:-1]), words[-1]
    template = ""
    if head.endswith(">") and "operator" not in head:
        start = _template_at(head)
        head, template = head[:start], head[start:]
    return Signature(text, head, template, parameters, qualifiers, returns)


def _parameters_at(text: str) -> int | None:
    """Where the function's own parameter list opens."""
    depth = 0
    position = 0
    while position < len(text):
        character = text[position]
        if text.startswith("(anonymous namespace)", position):
            position += len("(anonymous namespace)")
            continue
        if text.startswith("operator()", position):
            position += len("operator()")
            continue
        if text.startswith("operator", position) and not depth:
            # operator<, operator<<, operator->: not brackets
            position += len("operator")
            while position < len(text) and text[position] in "<>=-+*/%&|^!~":
                position += 1
            continue
        if character in "<[{":
            depth += 1
        elif character in ">]}" and not text.startswith("->", position - 1):
            depth -= 1
        elif character == "(":
            if depth == 0:
                return position
            position = _closing(text, position)
        position += 1
    return None


def _closing(text: str, opening: int) -> int:
    depth = 0
    for position in range(opening, len(text)):
        if text[position] == "(":
            depth += 1
        elif text[position] == ")":
            depth -= 1
            if depth == 0:
                return position
    return len(text)


def _template_at(head: str) -> int:
    depth = 0
    for position in range(len(head) - 1, -1, -1):
        if head[position] == ">":
            depth += 1
        elif head[position] == "<":
            depth -= 1
            if depth == 0:
                return position
    return len(head)


def _split(text: str, separator: str) -> list[str]:
    """Split at a separator outside of all brackets."""
    parts: list[str] = []
    depth, start, position = 0, 0, 0
    while position < len(text):
        character = text[position]
        if character in "<([{":
            depth += 1
        elif character in ">)]}":
            depth -= 1
        elif depth == 0 and text.startswith(separator, position):
            parts.append(text[start:position])
            position += len(separator)
            start = position
            continue
        position += 1
    parts.append(text[start:])
    return parts
