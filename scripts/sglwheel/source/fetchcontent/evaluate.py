"""What CMake's own variable commands do, as far as it can be known without CMake."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import PurePosixPath

from sglwheel.source.fetchcontent.cmake import UNKNOWN, split
from sglwheel.source.fetchcontent.variables import Variables

# Known to change no variable, or only names that nobody asks for.
_INERT = frozenset(
    {
        "add_compile_definitions", "add_compile_options", "add_custom_command", "add_custom_target",
        "add_definitions", "add_dependencies", "add_executable", "add_library", "add_link_options",
        "add_test", "cmake_minimum_required", "cmake_policy", "enable_language", "enable_testing",
        "include_directories", "install", "link_directories", "link_libraries", "mark_as_advanced",
        "message", "python_add_library", "set_property", "set_source_files_properties",
        "set_target_properties", "set_tests_properties", "source_group", "target_compile_definitions",
        "target_compile_features", "target_compile_options", "target_include_directories",
        "target_link_directories", "target_link_libraries", "target_link_options", "target_sources",
    }
)  # fmt: skip


def apply(name: str, values: list[str], variables: Variables, parent: Variables | None) -> None:
    """Do what a variable command does; any other command makes the variables it names unknown."""
    handler = _HANDLERS.get(name)
    if handler is not None and values:
        handler(values, variables, parent)
    elif name not in _INERT:
        for value in values:
            if variables.normal.get(value) is not None:
                variables.forget(value)


def _set(values: list[str], variables: Variables, parent: Variables | None) -> None:
    name, *rest = values
    if UNKNOWN in name or name.startswith("ENV{"):
        return
    if "CACHE" in rest:
        at = rest.index("CACHE")
        if "FORCE" in rest[at:] or name not in variables.cache:
            variables.cache[name] = ";".join(rest[:at])
        return
    scope = variables
    if rest and rest[-1] == "PARENT_SCOPE":
        rest.pop()
        if parent is None:
            return
        scope = parent
    scope.assign(name, ";".join(rest) if rest else None)


def _unset(values: list[str], variables: Variables, parent: Variables | None) -> None:
    if "CACHE" in values[1:]:
        variables.cache.pop(values[0], None)
    else:
        (parent if "PARENT_SCOPE" in values[1:] and parent else variables).assign(values[0], None)


def _option(values: list[str], variables: Variables, parent: Variables | None) -> None:
    name = values[0]
    if variables.normal.get(name) is None:
        variables.cache.setdefault(name, values[2] if len(values) > 2 else "OFF")


def _list(values: list[str], variables: Variables, parent: Variables | None) -> None:
    operation, name, *rest = (*values, "")[: max(2, len(values))]
    old = variables.lookup("", name) if variables.assigned(name) else ""
    if UNKNOWN in name:
        return
    items = split(old)
    unknown = any(UNKNOWN in item for item in (*items, *rest))
    if operation == "APPEND":
        variables.assign(name, ";".join([*items, *rest]))
        return
    if operation == "PREPEND":
        variables.assign(name, ";".join([*rest, *items]))
        return
    outputs = {"LENGTH": 0, "GET": -1, "FIND": -1, "JOIN": -1, "SUBLIST": -1}
    target = rest[outputs[operation]] if operation in outputs and rest else name
    result: str | None = None
    if not unknown:
        if operation == "LENGTH":
            result = str(len(items))
        elif operation == "REMOVE_DUPLICATES":
            result = ";".join(dict.fromkeys(items))
        elif operation == "REMOVE_ITEM":
            result = ";".join(item for item in items if item not in rest)
        elif operation == "SORT" and not rest:
            result = ";".join(sorted(items))
        elif operation == "REVERSE":
            result = ";".join(reversed(items))
        elif operation == "FIND" and len(rest) == 2:
            result = str(items.index(rest[0]) if rest[0] in items else -1)
        elif operation == "JOIN" and len(rest) == 2:
            result = rest[0].join(items)
        elif operation == "GET" and len(rest) == 2 and re.fullmatch(r"-?\d+", rest[0]):
            index = int(rest[0])
            result = items[index] if -len(items) <= index < len(items) else None
        elif operation == "FILTER" and len(rest) == 3 and (pattern := _regex(rest[2])):
            wanted = rest[0] == "INCLUDE"
            result = ";".join(item for item in items if (pattern.search(item) is not None) is wanted)
    variables.assign(target, UNKNOWN if result is None else result)


def _string(values: list[str], variables: Variables, parent: Variables | None) -> None:
    operation, *rest = values
    if operation == "APPEND" and rest:
        old = variables.lookup("", rest[0]) if variables.assigned(rest[0]) else ""
        variables.assign(rest[0], old + "".join(rest[1:]))
        return
    result: str | None = None
    target = rest[-1] if rest else ""
    known = not any(UNKNOWN in value for value in rest)
    if operation == "REGEX" and len(rest) >= 3:
        what, expression = rest[0], _regex(rest[1])
        target = rest[3] if what == "REPLACE" and len(rest) > 3 else rest[2]
        if expression is not None and known:
            if what == "REPLACE":
                result = expression.sub(re.sub(r"\\\\(\d)", r"\\\1", rest[2]), "".join(rest[4:]))
            else:
                found = [match[0] for match in expression.finditer("".join(rest[3:]))]
                result = ";".join(found if what == "MATCHALL" else found[:1])
    elif operation == "REPLACE" and len(rest) >= 3:
        target = rest[2]
        result = "".join(rest[3:]).replace(rest[0], rest[1]) if known and rest[0] else None
    elif operation in ("TOUPPER", "TOLOWER", "STRIP", "LENGTH") and len(rest) == 2:
        text = rest[0]
        result = {
            "TOUPPER": text.upper(),
            "TOLOWER": text.lower(),
            "STRIP": text.strip(),
            "LENGTH": str(len(text)),
        }[operation]
        result = result if known else None
    elif operation in ("CONCAT", "JOIN") and len(rest) >= (2 if operation == "JOIN" else 1):
        target = rest[1] if operation == "JOIN" else rest[0]
        result = rest[0].join(rest[2:]) if operation == "JOIN" else "".join(rest[1:])
    elif operation in ("FIND", "COMPARE", "SUBSTRING") and len(rest) >= 3:
        target = rest[2] if operation == "FIND" else rest[-1]
    if target and UNKNOWN not in target:
        variables.assign(target, UNKNOWN if result is None else result)


def _get_filename_component(values: list[str], variables: Variables, parent: Variables | None) -> None:
    if len(values) < 3:
        return
    name, path, mode = values[:3]
    pure = PurePosixPath(path)
    results: dict[str, str] = {
        "DIRECTORY": str(pure.parent),
        "PATH": str(pure.parent),
        "NAME": pure.name,
        "NAME_WE": pure.name.split(".")[0],
        "EXT": "".join(pure.suffixes),
    }
    if mode in ("ABSOLUTE", "REALPATH"):
        base = variables.lookup("", "CMAKE_CURRENT_SOURCE_DIR")
        results[mode] = join(base, path)
    variables.assign(name, results.get(mode, UNKNOWN))


def _math(values: list[str], variables: Variables, parent: Variables | None) -> None:
    if len(values) > 1:
        variables.forget(values[1])


def join(base: str, path: str) -> str:
    """A path seen from `base`, without `.` and `..`."""
    whole = path if path.startswith("/") else f"{base}/{path}"
    parts: list[str] = []
    for part in whole.split("/"):
        if part == ".." and parts and parts[-1]:
            parts.pop()
        elif part not in ("", ".") or not parts:
            parts.append(part)
    return "/".join(parts)


def _regex(expression: str) -> re.Pattern[str] | None:
    try:
        return re.compile(expression)
    except re.error:
        return None


_HANDLERS: dict[str, Callable[[list[str], Variables, Variables | None], None]] = {
    "set": _set,
    "unset": _unset,
    "option": _option,
    "list": _list,
    "string": _string,
    "get_filename_component": _get_filename_component,
    "math": _math,
}
