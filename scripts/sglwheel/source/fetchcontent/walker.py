"""Walk a CMake project as a configure run would, and on both sides of what only that run can decide."""

from __future__ import annotations

import platform
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from sglwheel.errors import SourceError
from sglwheel.source.fetchcontent import cmake, evaluate
from sglwheel.source.fetchcontent.cmake import UNKNOWN, Command, Statement
from sglwheel.source.fetchcontent.declaration import Declaration, Plan, Tree, parse_declaration
from sglwheel.source.fetchcontent.evaluate import join
from sglwheel.source.fetchcontent.interpreter import DEPTH, Interpreter, Return
from sglwheel.source.fetchcontent.variables import Environment, Variables

# Fetched sources, and the project itself, while nobody knows where they will lie.
_FETCHED = "/.sglwheel-fetched/"
_PROJECT = "/.sglwheel-project"
_INSIDE = re.compile(re.escape(_FETCHED) + r"([^/;\s<>\"',]+)((?:/[^/;\s<>\"',]+)*)/?")


@dataclass
class Walker(Interpreter):
    """Walk a project as a configure run would, on both sides of what cannot be known."""

    project: Tree
    fetch: Callable[[Declaration], Tree]
    """Called when a fetched source's own CMake files are needed."""
    options: Mapping[str, str]
    environment: Environment
    _declared: dict[str, list[Declaration]] = field(default_factory=dict)
    _populated: dict[str, str] = field(default_factory=dict)
    _references: dict[str, set[str]] = field(default_factory=dict)
    _trees: dict[str, Tree] = field(default_factory=dict)
    _walked: set[str] = field(default_factory=set)
    _files: dict[str, tuple[Statement, ...] | None] = field(default_factory=dict)
    _settled: set[str] = field(default_factory=set)

    def walk(self, directory: str) -> Plan:
        """Start at `directory`/CMakeLists.txt of the project. Raises SourceError."""
        variables = Variables(self.environment, dict(self.options), _host())
        source = join(_PROJECT, directory)
        if self._load(f"{source}/CMakeLists.txt") is None:
            raise SourceError(
                "no CMakeLists.txt", where={"directory": directory}, next="check source.directory"
            )
        self._directory(source, variables)
        return Plan(
            tuple(self._declaration(name) for name in sorted(self._populated)),
            {name: frozenset(self._references.get(name, ())) for name in self._populated},
            frozenset(self._walked),
        )

    def _declaration(self, name: str) -> Declaration:
        found = self._declared.get(name)
        if not found:
            raise SourceError(
                f"{name} is populated but nowhere declared", where={"file": self._populated[name]}
            )
        distinct = {(item.urls, item.requested, item.submodules) for item in found}
        if len(distinct) > 1:
            raise SourceError(
                f"{name} is declared in {len(distinct)} ways, and which one counts is known to CMake alone",
                where={item.where: f"{item.url} {item.requested}" for item in found},
                next="decide it with an option under [build.cmake] in the recipe",
            )
        return found[0]

    def _load(self, path: str) -> tuple[Statement, ...] | None:
        if path not in self._files:
            text = self._read(path)
            self._files[path] = None if text is None else cmake.parse(text)
        return self._files[path]

    def _read(self, path: str) -> str | None:
        if path.startswith(_PROJECT + "/"):
            return self.project.read(path.removeprefix(_PROJECT + "/"))
        if path.startswith(_FETCHED):
            name, _, rest = path.removeprefix(_FETCHED).partition("/")
            if name not in self._trees:
                self._trees[name] = self.fetch(self._declaration(name))
            return self._trees[name].read(rest)
        return None

    def _directory(self, source: str, outer: Variables) -> None:
        variables = outer.child()
        variables.assign("CMAKE_CURRENT_SOURCE_DIR", source)
        if not outer.assigned("CMAKE_SOURCE_DIR"):
            variables.assign("CMAKE_SOURCE_DIR", source)
            variables.assign("PROJECT_SOURCE_DIR", source)
        self._file(f"{source}/CMakeLists.txt", variables, outer)

    def _file(self, path: str, variables: Variables, parent: Variables | None) -> None:
        statements = self._load(path)
        if statements is None:
            return
        if self.depth >= DEPTH:
            raise SourceError("CMake files include each other without end", where={"file": _shown(path)})
        before = {
            name: variables.normal.get(name) for name in ("CMAKE_CURRENT_LIST_DIR", "CMAKE_CURRENT_LIST_FILE")
        }
        variables.assign("CMAKE_CURRENT_LIST_FILE", path)
        variables.assign("CMAKE_CURRENT_LIST_DIR", path.rpartition("/")[0])
        self.depth += 1
        try:
            self.run(statements, variables, parent)
        except Return:
            pass
        finally:
            self.depth -= 1
            variables.normal.update(before)

    def command(self, command: Command, variables: Variables, parent: Variables | None) -> None:
        values = cmake.evaluate_arguments(command.arguments, variables.lookup)
        name = command.name
        if name not in ("message", "fetchcontent_declare"):
            self._note(values, variables)
        where = f"{_shown(variables.lookup('', 'CMAKE_CURRENT_LIST_FILE'))}:{command.line}"
        if name == "return":
            raise Return
        if name == "project":
            variables.assign("PROJECT_SOURCE_DIR", variables.lookup("", "CMAKE_CURRENT_SOURCE_DIR"))
            if values:
                variables.assign("PROJECT_NAME", values[0])
                variables.assign(f"{values[0]}_SOURCE_DIR", variables.lookup("", "CMAKE_CURRENT_SOURCE_DIR"))
        elif name == "include" and values:
            self._include(values[0], variables, parent)
        elif name == "add_subdirectory" and values:
            self._add_subdirectory(values[0], variables)
        elif name == "fetchcontent_declare" and values:
            self._declare(values, where)
        elif name == "fetchcontent_populate" and values:
            if len(values) > 1:
                self._declare(values, where)
            self._populate(values[0], where, variables)
        elif name == "fetchcontent_makeavailable":
            for value in values:
                self._make_available(value, where, variables)
        elif name in self.functions:
            self.call(self.functions[name], values, variables)
        else:
            evaluate.apply(name, values, variables, parent)

    def _include(self, target: str, variables: Variables, parent: Variables | None) -> None:
        if UNKNOWN in target:
            return
        if "/" in target or target.endswith(".cmake"):
            self._file(join(variables.lookup("", "CMAKE_CURRENT_SOURCE_DIR"), target), variables, parent)
            return
        for directory in cmake.split(variables.lookup("", "CMAKE_MODULE_PATH")):
            path = f"{directory}/{target}.cmake"
            if UNKNOWN not in path and self._load(path) is not None:
                self._file(path, variables, parent)
                return

    def _add_subdirectory(self, target: str, variables: Variables) -> None:
        if UNKNOWN in target:
            return
        source = join(variables.lookup("", "CMAKE_CURRENT_SOURCE_DIR"), target)
        if source.startswith(_FETCHED):
            self._walked.add(source.removeprefix(_FETCHED).partition("/")[0])
        self._directory(source, variables)

    def _declare(self, values: list[str], where: str) -> None:
        declaration = parse_declaration(values, where)
        name = declaration.name
        # The first declaration wins, in CMake too; one that may not happen leaves the question open.
        if name not in self._settled:
            self._declared.setdefault(name, []).append(declaration)
        if not self.uncertain:
            self._settled.add(name)

    def _populate(self, name: str, where: str, variables: Variables) -> str:
        lower = name.lower()
        self._populated.setdefault(lower, where)
        variables.fixed[f"{lower}_SOURCE_DIR"] = _FETCHED + lower
        return lower

    def _make_available(self, name: str, where: str, variables: Variables) -> None:
        if UNKNOWN in name:
            return
        lower = self._populate(name, where, variables)
        if lower in self._walked:
            return
        source = join(_FETCHED + lower, self._declaration(lower).subdirectory)
        if self._load(f"{source}/CMakeLists.txt") is not None:
            self._walked.add(lower)
            self._directory(source, variables)

    def _note(self, values: list[str], variables: Variables) -> None:
        """Remember every path inside a fetched source, also relative ones in its own CMake files."""
        here = variables.lookup("", "CMAKE_CURRENT_SOURCE_DIR")
        for value in values:
            if _FETCHED in value:
                for match in _INSIDE.finditer(value):
                    self._references.setdefault(match[1], set()).add(_cut(match[2]))
            elif here.startswith(_FETCHED) and "/" in value and not value.startswith("/"):
                for match in _INSIDE.finditer(join(here, value)):
                    self._references.setdefault(match[1], set()).add(_cut(match[2]))


def _cut(path: str) -> str:
    """A reference without what CMake would still fill in: globs, unknown parts, generator expressions."""
    parts: list[str] = []
    for part in path.strip("/").split("/"):
        if UNKNOWN in part or any(sign in part for sign in "*?[$"):
            break
        if part not in ("", "."):
            parts.append(part)
    return "/".join(parts) or "."


def _host() -> dict[str, str | None]:
    machine = platform.machine()
    known: dict[str, str | None] = {
        "CMAKE_SYSTEM_NAME": "Linux",
        "CMAKE_SYSTEM_PROCESSOR": machine,
        "CMAKE_HOST_SYSTEM_PROCESSOR": machine,
        "CMAKE_BUILD_TYPE": "Release",
        "UNIX": "1",
        "LINUX": "1",
    }
    return known | dict.fromkeys(
        ("WIN32", "APPLE", "MSVC", "MINGW", "ANDROID", "CYGWIN", "CMAKE_MODULE_PATH")
    )


def _shown(path: str) -> str:
    return path.removeprefix(_PROJECT + "/").removeprefix(_FETCHED)
