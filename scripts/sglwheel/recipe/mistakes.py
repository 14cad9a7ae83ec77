"""What is wrong in a recipe's file, in words: an address, a reason, a suggestion."""

from __future__ import annotations

import difflib
from typing import Any, get_args

import pydantic
from pydantic import BaseModel

from sglwheel.errors import UsageError


def error(path: str, mistakes: list[tuple[str, str]]) -> UsageError:
    """All mistakes as one error."""
    count = len(mistakes)
    return UsageError(
        f"{path} has {count} mistake{'s' if count != 1 else ''}", where=dict(mistakes), next=f"edit {path}"
    )


def of(error: pydantic.ValidationError, model: type[BaseModel]) -> list[tuple[str, str]]:
    """Every mistake that a kind of recipe, `model`, finds in its data: (dotted address, reason)."""
    items = error.errors(include_url=False)
    # An array whose items are all wrong is not empty as well.
    bad_items = {tuple(item["loc"][:-1]) for item in items if isinstance(item["loc"][-1], int)}
    return [
        _mistake(item, model)
        for item in items
        if item["type"] != "too_short" or tuple(item["loc"]) not in bad_items
    ]


def _mistake(item: Any, recipe: type[BaseModel]) -> tuple[str, str]:
    location = [part for part in item["loc"] if part != "[key]"]
    address = ".".join(str(part) for part in location)
    kind = item["type"]
    if kind == "extra_forbidden":
        near = difflib.get_close_matches(str(location[-1]), _keys(location[:-1], recipe), n=1)
        return address, "unknown key" + (f": did you mean {near[0]!r}?" if near else "")
    if kind == "missing":
        return address, "missing"
    given = _toml_type(item["input"])
    expected = {
        "string_type": "a string",
        "bool_type": "a boolean",
        "int_type": "an integer",
        "tuple_type": "an array",
        "dict_type": "a table",
        "model_type": "a table",
    }
    context = item.get("ctx", {})
    if kind in expected:
        return address, f"must be {expected[kind]}, is {given}"
    if kind == "greater_than_equal":
        return address, f"must be at least {context['ge']}"
    if kind == "less_than_equal":
        return address, f"must be at most {context['le']}"
    if kind == "literal_error":
        return address, f"must be {context['expected'].replace(chr(39), chr(34))}"
    if kind in ("too_short", "string_too_short"):
        return address, "must not be empty"
    return address, str(item["msg"]).removeprefix("Value error, ")


def _keys(location: list[Any], recipe: type[BaseModel]) -> list[str]:
    model: Any = recipe
    for part in location:
        field = next((f for f in model.model_fields.values() if (f.alias or "") == part), None)
        if field is None:
            return []
        candidates = [field.annotation, *get_args(field.annotation)]
        model = next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), None)
        if model is None:
            return []
    return [field.alias or name for name, field in model.model_fields.items() if name != "id"]


def _toml_type(value: Any) -> str:
    kinds = {
        str: "a string",
        bool: "a boolean",
        int: "an integer",
        float: "a float",
        list: "an array",
        dict: "a table",
    }
    return kinds.get(type(value), type(value).__name__)
