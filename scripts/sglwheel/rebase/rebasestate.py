"""What a rebase remembers between commands, and after a power loss."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from sglwheel import files
from sglwheel.errors import PatchError
from sglwheel.files import Layout
from sglwheel.types import CommitId

Action = Literal["carried", "carried-3way", "resolved", "dropped", "skipped"]
Phase = Literal["applying", "conflict", "finishing"]


@dataclass(frozen=True)
class Done:
    """What became of one patch; `commit` is its commit in the workspace, if it has one."""

    name: str
    action: Action
    why: str
    commit: str | None = None


@dataclass
class State:
    """Everything that `--continue` needs. `head` is the last commit that is accounted for in `done`."""

    recipe: str
    old: str
    new: str
    new_date: str
    old_date: str
    directory: str
    series: str
    new_series: str
    new_series_existed: bool
    recipe_sha256: str
    series_digest: str
    head: str
    phase: Phase = "applying"
    paths: dict[str, str] = field(default_factory=dict)
    drops: dict[str, str] = field(default_factory=dict)
    broke: dict[str, str] = field(default_factory=dict)
    skips: dict[str, str] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)
    done: list[Done] = field(default_factory=list)

    @property
    def to(self) -> CommitId:
        return CommitId.parse(self.new)


def file(layout: Layout, recipe: str) -> Path:
    """Where the state of a recipe's rebase is kept."""
    return layout.work / recipe / "rebase.json"


def workspace(layout: Layout, recipe: str) -> Path:
    """Where conflicts are resolved."""
    return layout.work / recipe / "rebase"


def load(layout: Layout, recipe: str) -> State | None:
    """The rebase in progress, if there is one. Raises PatchError when its file cannot be read."""
    path = file(layout, recipe)
    if not path.is_file():
        return None
    try:
        value: dict[str, Any] = json.loads(path.read_text("utf-8"))
        value["done"] = [Done(**item) for item in value["done"]]
        return State(**value)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise PatchError(
            f"cannot read the state of the rebase: {error}",
            where={"file": layout.relative(path)},
            next=f"sglwheel rebase {recipe} --abort",
        ) from None


def save(layout: Layout, state: State) -> None:
    """Write the state; what was there before is replaced at once. Raises PatchError on a full disk."""
    path = file(layout, state.recipe)
    try:
        files.write_atomic(path, json.dumps(asdict(state), indent=1) + "\n")
    except OSError as error:
        raise PatchError(
            f"cannot keep the state of the rebase: {error.strerror}",
            where={"file": layout.relative(path)},
            next=f"make room, then sglwheel rebase {state.recipe} --continue",
        ) from error
