"""A recipe's `[node]`: how SGLang is started on the wheel, and what is known to compute garbage there.

Every value carries a reason and a source, because nobody can check them here. All of it ends in a shell
script, so what is not quoted there is limited to characters that mean nothing to a shell.
"""

from __future__ import annotations

import re
from typing import Annotated

import pydantic
from pydantic import AfterValidator, Field

from sglwheel.recipe.fields import Array, Table


def _line(text: str) -> str:
    if not text.strip() or not text.isprintable():
        raise ValueError("must be one line of text")
    return text


def _argument(text: str) -> str:
    if not re.fullmatch(r"--[a-z0-9]+(-[a-z0-9]+)*", text):
        raise ValueError(f"{text!r} is not an argument: write it like --attention-backend")
    return text


def _variable(text: str) -> str:
    if not re.fullmatch(r"(NCCL|CUDA|SGLANG|SGL|FLASHINFER|TORCH|TRITON|OMP)_[A-Z0-9_]+", text):
        raise ValueError(f"{text!r} is not a variable of SGLang or of what it runs on")
    return text


def _plain(text: str) -> str:
    if not re.fullmatch(r"[\w.,:/=+-]+", text):
        raise ValueError(f"{text!r} must be letters, digits and `_.,:/=+-`")
    return text


def _pattern(text: str) -> str:
    if not re.fullmatch(r"[\w*.-]+", text):
        raise ValueError(f"{text!r} must be letters, digits, `_.-`, and `*` for anything")
    return text


def _file(text: str) -> str:
    if not re.fullmatch(r"\w[\w.-]*", text):
        raise ValueError(f"{text!r} is not the name of a model's file")
    return text


def _regex(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"{text!r} is not a regular expression: {error}") from None
    return _line(text)


Line = Annotated[str, AfterValidator(_line)]
ArgumentName = Annotated[str, AfterValidator(_argument)]


class Sourced(Table):
    """Something that must be believed, and why."""

    reason: Line
    source: Line = Field(description="where this is known from")


class Argument(Sourced):
    """An argument of SGLang that is given unless the operator gives it."""

    name: ArgumentName
    value: Annotated[str, AfterValidator(_plain)] | None = Field(None, description="none for a switch")

    @property
    def words(self) -> str:
        """As it stands in a shell script."""
        return self.name if self.value is None else f"{self.name} {self.value}"


class Variable(Sourced):
    """An environment variable that is set unless the operator set it."""

    name: Annotated[str, AfterValidator(_variable)]
    value: Annotated[str, AfterValidator(_plain)]


class Refusal(Sourced):
    """Values of an argument that fail or compute garbage; for some models only, where `file` is given."""

    argument: ArgumentName
    values: Array[Annotated[str, AfterValidator(_pattern)]] = Field(min_length=1)
    file: Annotated[str, AfterValidator(_file)] | None = Field(
        None, description="a file of the model; without one the refusal is for every model"
    )
    matches: Annotated[str, AfterValidator(_regex)] | None = Field(
        None, description="regular expression that finds the models in `file`"
    )

    @pydantic.model_validator(mode="after")
    def _together(self) -> Refusal:
        if (self.file is None) != (self.matches is None):
            raise ValueError("`file` and `matches` come together")
        return self


class Node(Table):
    """How a node starts SGLang on this wheel."""

    arguments: Array[Argument] = ()
    environment: Array[Variable] = ()
    refusals: Array[Refusal] = ()
    not_proven: Array[Line] = Field(min_length=1, description="what only a node can show")

    @pydantic.model_validator(mode="after")
    def _once(self) -> Node:
        names = [*(item.name for item in self.arguments), *(item.name for item in self.environment)]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"stands twice: {', '.join(twice)}")
        return self
