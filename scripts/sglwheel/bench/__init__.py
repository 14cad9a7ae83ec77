"""What the build is measured by: ratios from one run, with medians and spread."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sglwheel.files import Layout
from sglwheel.pipeline import Options


@dataclass(frozen=True)
class Setting:
    """What one bench run was asked: how often, and how much smaller than real the fakes are.

    `units` are those of the real upstream to compile under both flags (none: the named list), with what
    `options` say about torch, toolkit, sources, compilers at once and their memory. `recipes` are those whose
    recorded builds are looked at (none: all).
    """

    layout: Layout
    scratch: Path
    repeat: int = 3
    memory: float = 16.0
    time: float = 16.0
    slots: int = 8
    units: tuple[str, ...] = ()
    options: Options = field(default_factory=Options)
    keep: Path | None = None
    recipes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Ratio:
    """One line of the report. `values` are the same ratio measured again; `bar` is what the median may be."""

    what: str
    values: Sequence[float]
    bar: float | None = None
    unit: str = ""
    note: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def met(self) -> bool | None:
        """Whether the bar holds, None without one."""
        return None if self.bar is None else self.median <= self.bar

    def line(self) -> str:
        """`what  median (least to most, n)  bar  verdict`."""
        spread = f"{min(self.values):.3f} to {max(self.values):.3f}, n={len(self.values)}"
        verdict = {None: "", True: "met", False: "MISSED"}[self.met]
        bar = "" if self.bar is None else f"<= {self.bar:g}{self.unit}"
        line = f"{self.what:<58} {self.median:8.3f}{self.unit:<2} ({spread})"
        return f"{line:<104} {bar:<9} {verdict:<6} {self.note}".rstrip()

    def to_json(self) -> dict[str, Any]:
        return {
            "what": self.what,
            "median": self.median,
            "values": list(self.values),
            "unit": self.unit,
            "bar": self.bar,
            "met": self.met,
            "note": self.note,
        }


Part = Callable[[Setting], Iterator[Ratio]]


def parts() -> Mapping[str, Part]:
    """Everything that can be measured, by name, in the order of the report."""
    from sglwheel.bench import caching, plain, recordings, scheduling, upstream, verbs

    return {
        "scaled": scheduling.scaled,
        "sixteen": scheduling.sixteen,
        "simulated": scheduling.simulated,
        "recorded": recordings.recorded,
        "noop": verbs.noop,
        "warm": caching.warm,
        "plain": plain.plain,
        "upstream": upstream.flags,
    }


USUAL = ("simulated", "scaled", "sixteen", "recorded", "noop", "warm")  # the others take hours
