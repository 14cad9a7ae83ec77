"""What a line's record says, `lines/<name>/line.json`: where it points and pointed, what it promises."""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path
from typing import Literal

import pydantic
from packaging.version import Version
from pydantic import AwareDatetime, BaseModel, ConfigDict

from sglwheel import files
from sglwheel.errors import WheelhouseError
from sglwheel.wheelhouse import signing
from sglwheel.wheelhouse.house import Wheelhouse
from sglwheel.wheelhouse.record import Record

Why = Literal["complete", "rollback", "set"]
Generation = tuple[Version, int]
# What a recipe may be called, so that every recipe has a line.
NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")
# Within a local version: PEP 440 reads all of them as a dot.
_SEPARATOR = re.compile(r"[._-]")
_version = functools.lru_cache(maxsize=1024)(Version)


class Cell(BaseModel):
    """One wheel that a line promises: for this machine, beside this torch, with code for these GPUs."""

    model_config = ConfigDict(frozen=True)

    project: str
    torch: str
    platform: str
    architectures: tuple[str, ...] = ()

    @classmethod
    def of(cls, record: Record) -> Cell:
        return cls(
            project=record.project,
            torch=record.requires_torch or "",
            platform=record.platform,
            architectures=record.architectures,
        )

    def __str__(self) -> str:
        return (
            f"{self.project} for {self.torch}, {self.platform}, {'+'.join(self.architectures) or 'any GPU'}"
        )


class Move(BaseModel):
    """One state of a pointer."""

    model_config = ConfigDict(frozen=True)

    when: AwareDatetime
    members: tuple[str, ...]
    why: Why = "complete"


class Pointer(BaseModel):
    """`lines/<name>/line.json`."""

    model_config = ConfigDict(frozen=True)

    name: str
    # `release` moves past candidates, `candidate` takes them too.
    takes: Literal["release", "candidate"] = "release"
    promise: tuple[Cell, ...] = ()
    # A rollback holds until the line is moved by hand: the next build must not undo what a person decided.
    held: bool = False
    history: tuple[Move, ...] = ()

    @property
    def members(self) -> tuple[str, ...]:
        return self.history[-1].members if self.history else ()


def directory(house: Wheelhouse, name: str) -> Path:
    """Raises WheelhouseError for what is not a line's name."""
    if not NAME.fullmatch(name):
        raise WheelhouseError(f"{name!r} is not a line's name: lower-case letters, digits, `.`, `_` and `-`")
    return house.root / "lines" / name


def load(house: Wheelhouse, name: str) -> Pointer | None:
    path = directory(house, name) / "line.json"
    try:
        return Pointer.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, pydantic.ValidationError) as error:
        raise WheelhouseError(
            "a line's record is damaged",
            where={"file": str(path)},
            next="sglwheel wheelhouse verify --repair",
        ) from error


def load_all(house: Wheelhouse) -> dict[str, Pointer]:
    root = house.root / "lines"
    names = sorted(path.parent.name for path in root.glob("*/line.json")) if root.is_dir() else []
    return {name: pointer for name in names if (pointer := load(house, name)) is not None}


def save(house: Wheelhouse, pointer: Pointer) -> None:
    """Write a line's record; who signed the one before did not sign this."""
    text = json.dumps(pointer.model_dump(mode="json"), indent=1) + "\n"
    path = directory(house, pointer.name) / "line.json"
    signing.drop(path)
    files.write_atomic(path, text)


def generation(record: Record) -> Generation:
    """`(0.3.21, 7)`: what one change of recipe or series produced, for every machine and torch."""
    build = _SEPARATOR.split(record.local)[-1]
    return _version(record.public), int(build) if build.isdigit() else 0
