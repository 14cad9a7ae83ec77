"""Run CMake's control flow: known branches once, undecided ones side by side."""

from __future__ import annotations

import abc
from contextlib import suppress
from dataclasses import dataclass, field

from sglwheel.source.fetchcontent import cmake
from sglwheel.source.fetchcontent.cmake import UNKNOWN, Argument, Block, Command, If, Statement
from sglwheel.source.fetchcontent.conditions import Condition
from sglwheel.source.fetchcontent.variables import Variables

DEPTH = 64
"""Files and functions inside each other; CMake itself stops at 1000."""


class Return(Exception):  # noqa: N818 - control flow, as in CMake
    """`return()`: the end of the file or function."""


@dataclass(kw_only=True)
class Interpreter(abc.ABC):
    """Statements in order; what a command does is a subclass's to say."""

    functions: dict[str, Block] = field(default_factory=dict)
    uncertain: int = 0
    """How many undecided branches we are in."""
    depth: int = 0

    @abc.abstractmethod
    def command(self, command: Command, variables: Variables, parent: Variables | None) -> None:
        """Do what one command does."""

    def run(self, statements: tuple[Statement, ...], variables: Variables, parent: Variables | None) -> None:
        """Run statements; `parent` is the scope of PARENT_SCOPE."""
        for statement in statements:
            if isinstance(statement, If):
                self._if(statement, variables, parent)
            elif isinstance(statement, Block):
                self._block(statement, variables, parent)
            else:
                self.command(statement, variables, parent)

    def _if(self, statement: If, variables: Variables, parent: Variables | None) -> None:
        bodies: list[tuple[Statement, ...]] = []
        decided = False
        for condition, body in statement.branches:
            value = True if condition is None else self._condition(condition, variables)
            if value is not False:
                bodies.append(body)
            if value is True:
                decided = True
                break
        if decided and len(bodies) == 1:
            self.run(bodies[0], variables, parent)
        elif bodies:
            self._either(bodies if decided else [*bodies, ()], variables, parent)

    def _either(
        self, bodies: list[tuple[Statement, ...]], variables: Variables, parent: Variables | None
    ) -> None:
        """Run alternatives one beside the other and keep what they agree on."""
        normal, cache = dict(variables.normal), dict(variables.cache)
        outer = dict(parent.normal) if parent else {}
        outcomes: list[tuple[dict[str, str | None], dict[str, str]]] = []
        outer_outcomes: list[tuple[dict[str, str | None], dict[str, str]]] = []
        self.uncertain += 1
        try:
            for body in bodies:
                variables.normal = dict(normal)
                variables.cache.clear()
                variables.cache.update(cache)
                if parent:
                    parent.normal = dict(outer)
                # After a return() the rest of the file may run or not: it is visited.
                with suppress(Return):
                    self.run(body, variables, parent)
                outcomes.append((dict(variables.normal), dict(variables.cache)))
                outer_outcomes.append((dict(parent.normal) if parent else {}, dict(variables.cache)))
        finally:
            self.uncertain -= 1
        if parent:
            parent.merge(outer_outcomes)
        variables.merge(outcomes)

    def _condition(self, arguments: tuple[Argument, ...], variables: Variables) -> bool | None:
        def test(operator: str, operand: str) -> bool | None:
            if operator == "DEFINED":
                return variables.defined(operand)
            if operator == "IS_ABSOLUTE":
                return operand.startswith("/")
            return None

        return Condition(arguments, variables.lookup, variables.assigned, test).evaluate()

    def _block(self, block: Block, variables: Variables, parent: Variables | None) -> None:
        values = cmake.evaluate_arguments(block.arguments, variables.lookup)
        if block.kind in ("function", "macro"):
            if values:
                self.functions[values[0].lower()] = block
        elif block.kind == "block":
            self.run(block.body, variables, parent)
        elif block.kind == "while":
            self._either([block.body, ()], variables, parent)
        elif values:
            self._foreach(block, values, variables, parent)

    def _foreach(
        self, block: Block, values: list[str], variables: Variables, parent: Variables | None
    ) -> None:
        name, *rest = values
        items: list[str] | None = rest
        if rest[:1] == ["IN"]:
            items, mode = [], ""
            for word in rest[1:]:
                if word in ("LISTS", "ITEMS", "ZIP_LISTS"):
                    mode = word
                elif mode == "LISTS":
                    items.extend(cmake.split(variables.lookup("", word) if variables.assigned(word) else ""))
                else:
                    items.append(word)
        elif rest[:1] == ["RANGE"]:
            items = None
        before = variables.normal.get(name)
        if items is None or len(items) > 1000:
            variables.forget(name)
            self._either([block.body, ()], variables, parent)
        else:
            for item in items:
                variables.assign(name, item)
                if UNKNOWN in item:
                    self._either([block.body, ()], variables, parent)
                else:
                    self.run(block.body, variables, parent)
        variables.assign(name, before)

    def call(self, block: Block, values: list[str], variables: Variables) -> None:
        """Run a function in a scope of its own, or a macro in this one."""
        if self.depth >= DEPTH:
            return
        names = cmake.evaluate_arguments(block.arguments, variables.lookup)[1:]
        bound = {**dict(zip(names, values, strict=False)), "ARGC": str(len(values)), "ARGV": ";".join(values)}
        bound["ARGN"] = ";".join(values[len(names) :])
        bound |= {f"ARGV{index}": value for index, value in enumerate(values)}
        self.depth += 1
        try:
            if block.kind == "function":
                scope = variables.child()
                scope.normal.update(bound)
                with suppress(Return):
                    self.run(block.body, scope, variables)
            else:
                before = {name: variables.normal.get(name) for name in bound}
                variables.normal.update(bound)
                try:
                    self.run(block.body, variables, None)
                finally:
                    variables.normal.update(before)
        finally:
            self.depth -= 1
