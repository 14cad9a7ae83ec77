"""CMake files as data: commands, blocks, and the expansion of variables."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import tree_sitter_cmake
from tree_sitter import Language, Node, Parser

# Stands in a value for the part that only a real configure run knows.
UNKNOWN = "\0"

_LANGUAGE = Language(tree_sitter_cmake.language())
_REFERENCE = re.compile(r"\$(ENV|CACHE)?\{([^${}]*)\}")
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)


@dataclass(frozen=True)
class Argument:
    """One argument as written, without its quotes; `kind` is unquoted, quoted, bracket or paren."""

    kind: str
    text: str


@dataclass(frozen=True)
class Command:
    """A command with its name in lower case."""

    name: str
    arguments: tuple[Argument, ...]
    line: int


@dataclass(frozen=True)
class If:
    """Branches in order; `else` has no condition."""

    branches: tuple[tuple[tuple[Argument, ...] | None, tuple[Statement, ...]], ...]
    line: int


@dataclass(frozen=True)
class Block:
    """A foreach, while, function, macro or block with what stands in its parentheses."""

    kind: str
    arguments: tuple[Argument, ...]
    body: tuple[Statement, ...]
    line: int


Statement = Command | If | Block


def parse(text: str) -> tuple[Statement, ...]:
    """Parse a CMake file; what the grammar cannot read is left out."""
    # CMake reads CRLF files too; the grammar does not.
    tree = Parser(_LANGUAGE).parse(text.replace("\r\n", "\n").encode())
    return _statements(tree.root_node)


def _statements(node: Node) -> tuple[Statement, ...]:
    return tuple(statement for child in node.children if (statement := _statement(child)) is not None)


def _statement(node: Node) -> Statement | None:
    line = node.start_point[0] + 1
    if node.type == "normal_command":
        return Command(_text(node.children[0]).lower(), _arguments(node), line)
    if node.type == "if_condition":
        branches: list[tuple[tuple[Argument, ...] | None, tuple[Statement, ...]]] = []
        condition: tuple[Argument, ...] | None = None
        for child in node.children:
            if child.type in ("if_command", "elseif_command"):
                condition = _arguments(child)
                branches.append((condition, ()))
            elif child.type == "else_command":
                branches.append((None, ()))
            elif child.type == "body" and branches:
                branches[-1] = (branches[-1][0], branches[-1][1] + _statements(child))
        return If(tuple(branches), line)
    kinds = {
        "foreach_loop": "foreach",
        "while_loop": "while",
        "function_def": "function",
        "macro_def": "macro",
        "block_def": "block",
    }
    if node.type in kinds:
        arguments = _arguments(node.children[0])
        bodies = (_statements(child) for child in node.children if child.type == "body")
        return Block(kinds[node.type], arguments, tuple(item for body in bodies for item in body), line)
    return None


def _arguments(command: Node) -> tuple[Argument, ...]:
    result: list[Argument] = []
    for part in command.children:
        if part.type != "argument_list":
            continue
        for child in part.children:
            if child.type in "()":
                result.append(Argument("paren", child.type))
            elif child.type == "argument" and child.children:
                inner = child.children[0]
                text = _text(inner)
                if inner.type == "quoted_argument":
                    result.append(Argument("quoted", text[1:-1]))
                elif inner.type == "bracket_argument":
                    content = [c for c in inner.children if c.type == "bracket_argument_content"]
                    result.append(Argument("bracket", _text(content[0]) if content else ""))
                else:
                    result.append(Argument("unquoted", text))
    return tuple(result)


def _text(node: Node) -> str:
    return (node.text or b"").decode("utf-8", "replace")


Lookup = Callable[[str, str], str]
"""Value of a reference: (`""`, `ENV` or `CACHE`; name); `UNKNOWN` if only CMake knows it."""


def expand(text: str, lookup: Lookup) -> str:
    """Replace variable references from the innermost outwards, then escapes."""
    text = text.replace("\\$", "\1").replace("\\\n", "")
    for _ in range(1000):
        match = _REFERENCE.search(text)
        if match is None:
            break
        value = UNKNOWN if UNKNOWN in match[2] else lookup(match[1] or "", match[2])
        text = text[: match.start()] + value.replace("$", "\1") + text[match.end() :]
    return _ESCAPE.sub(_unescape, text).replace("\1", "$")


def _unescape(match: re.Match[str]) -> str:
    return {"n": "\n", "t": "\t", "r": "\r", ";": "\\;"}.get(match[1], match[1])


def evaluate_arguments(arguments: tuple[Argument, ...], lookup: Lookup) -> list[str]:
    """The values a command receives: unquoted ones fall apart at semicolons, and vanish when empty."""
    values: list[str] = []
    for argument in arguments:
        if argument.kind in ("bracket", "paren"):
            values.append(argument.text)
        elif argument.kind == "quoted":
            values.append(expand(argument.text, lookup))
        else:
            values.extend(item for item in split(expand(argument.text, lookup)) if item)
    return values


def split(value: str) -> list[str]:
    """A CMake list's items."""
    return [item.replace("\\;", ";") for item in re.split(r"(?<!\\);", value)] if value else []
