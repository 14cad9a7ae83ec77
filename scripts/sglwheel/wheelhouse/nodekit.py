"""Render what a node needs to run SGLang on a release: a script, a systemd unit, and what is not proven.

What is in them comes from the recipe's `[node]` table. Nothing of it was run on such a GPU by this project:
every value carries its reason and source into the rendered files.
"""

from __future__ import annotations

import shlex
import textwrap
from dataclasses import dataclass
from pathlib import Path

from sglwheel.errors import WheelhouseError
from sglwheel.recipe import Recipe
from sglwheel.recipe.node import Node, Refusal, Sourced
from sglwheel.wheelhouse.lines import Lines
from sglwheel.wheelhouse.listings import catalogue
from sglwheel.wheelhouse.record import Release
from sglwheel.wheelhouse.rendering import render_text


@dataclass(frozen=True)
class Kit:
    """What is rendered for one release."""

    release: Release
    node: Node

    @classmethod
    def of(cls, release: Release, recipe: Recipe) -> Kit:
        """Raises WheelhouseError for a recipe that says nothing of nodes, or built another wheel."""
        if release.record.recipe and release.record.recipe != recipe.id:
            raise WheelhouseError(
                f"{release.id} was built by recipe {release.record.recipe}, not {recipe.id}",
                next=f"leave --recipe out, or give --recipe {release.record.recipe}",
            )
        if recipe.node is None and release.record.alone:
            raise WheelhouseError(
                f"{release.id} is of Python alone: a node's kit is the one of the kernels beside it",
                next="sglwheel wheelhouse list, then node-kit for the kernels of this SGLang",
            )
        if recipe.node is None:
            raise WheelhouseError(
                f"recipe {recipe.id} does not say how a node runs its wheel",
                where={"file": f"recipes/{recipe.id}.toml", "missing": "[node]"},
                next="add a [node] table, as recipes/cu130.toml has one",
            )
        return cls(release, recipe.node)

    def files(self, location: str) -> dict[str, str]:
        """File names and their text; `location` is where the node sees the wheelhouse."""
        values = {
            "node": self.node,
            "record": self.release.record,
            "lines": Lines(self.release.record, location),
            "location": shlex.quote(location),
            "comment": comment,
            "pattern": pattern,
            "quote": shlex.quote,
        }
        names = ("launch.sh", "sglang.service", "README.md")
        texts = {name: render_text(f"node/{name}", **values) for name in names}
        # What every start checks, without the wheelhouse: a node must come up again while that is away.
        return {**texts, "releases.json": catalogue(Path()).whole([self.release.record])}


def comment(item: Sourced) -> str:
    """Reason and source as lines of a shell comment."""
    # Names of projects and arguments have hyphens, and are looked for whole.
    lines = [
        line
        for text in (item.reason, f"Source: {item.source}")
        for line in textwrap.wrap(text, 100, break_on_hyphens=False, break_long_words=False)
    ]
    return "\n".join(f"# {line}" for line in lines)


def pattern(refusal: Refusal) -> str:
    """A shell pattern over `<argument>=<value>`."""
    return " | ".join(f"{refusal.argument}={value}" for value in refusal.values)
