"""What each translation unit is expected to take: measured by earlier builds, else from the shipped table."""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

_MIB = 1 << 20
_KEPT = 8  # measurements of one unit that count, newest last


@dataclass(frozen=True)
class Cost:
    """What compiling a unit takes: `seconds` on a quiet host; `peak` in bytes for its whole process tree.

    `measured` by an earlier build; a `guess` is what most units of its language take.
    """

    seconds: float
    peak: int
    measured: bool = False
    guess: bool = False


class Costs:
    """Expected cost by object file.

    `history` holds one JSON line for each compile of this recipe; lines of the same `flavour` (a digest of
    flags and compilers) count before those of others, and those before the shipped table.
    """

    def __init__(self, history: Path | None = None, *, flavour: str = "") -> None:
        table = tomllib.loads((resources.files("sglwheel.build") / "data" / "units.toml").read_text("utf-8"))
        self._stems = {stem: _entry(entry) for stem, entry in table["units"].items()}
        self._defaults = {
            kind: replace(_entry(entry), guess=True) for kind, entry in table["default"].items()
        }
        self._measured = _read_history(history, flavour) if history is not None else {}
        self._flavour = flavour

    @property
    def stems(self) -> tuple[str, ...]:
        """The shipped table's units, in the order in which ninja starts them."""
        return tuple(self._stems)

    def expect(self, unit: str) -> Cost:
        """The cost of `unit`, an object file's path as ninja prints it (`…/csrc/gemm/x.cu.o`)."""
        measured = self._measured.get(unit_key(unit))
        if measured is not None:
            return measured
        name = unit.rsplit("/", 1)[-1]
        stem = name.split(".", 1)[0]
        if stem in self._stems:
            return self._stems[stem]
        return self._defaults["cuda" if ".cu." in name else "cxx"]

    def line(self, unit: str, *, code: int, seconds: float, cpu: float, peak: int) -> str:
        """The line of `history` for one compile."""
        record = {"unit": unit, "code": code, "seconds": seconds, "cpu": cpu, "peak": peak}
        return json.dumps(record | ({"flavour": self._flavour} if self._flavour else {})) + "\n"


def amount(value: Any) -> float:
    """A number of a kept note. Raises ValueError and TypeError for what was never measured."""
    number = float(value)
    if not 0 <= number < math.inf:
        raise ValueError(f"not an amount: {value}")
    return number


def unit_key(unit: str) -> str:
    """What is the same of a unit in every tree: CMake puts the absolute path of fetched sources into it."""
    return re.sub(r"\.dir/.*?/(?=dependencies/)", ".dir/", unit)


def too_large(units: Iterable[str], costs: Costs, limit: int) -> list[tuple[str, Cost]]:
    """Units that are known to need more than `limit` bytes by themselves, largest first."""
    expected = ((unit, costs.expect(unit)) for unit in units)
    found = [(unit, cost) for unit, cost in expected if cost.peak > limit and not cost.guess]
    return sorted(found, key=lambda item: -item[1].peak)


def _entry(entry: dict[str, float]) -> Cost:
    return Cost(float(entry["seconds"]), int(entry["peak-mib"]) * _MIB)


def _read_history(path: Path, flavour: str) -> dict[str, Cost]:
    """Costs by unit; a line torn by a crash is skipped."""
    try:
        lines = path.read_text("utf-8", "replace").splitlines()
    except OSError:
        return {}
    records: dict[str, dict[bool, list[Cost]]] = {}
    for line in lines:
        try:
            record: dict[str, Any] = json.loads(line)
            if record["code"] == 0:
                # A compiler has one thread that works: CPU time is what it takes where nothing competes.
                seconds = min(amount(record["seconds"]), amount(record["cpu"]))
                cost = Cost(seconds, int(amount(record["peak"])), measured=True)
                same = record.get("flavour", "") == flavour
                records.setdefault(unit_key(str(record["unit"])), {}).setdefault(same, []).append(cost)
        except (ValueError, KeyError, TypeError):
            continue
    return {unit: _merge(kinds.get(True) or kinds[False]) for unit, kinds in records.items()}


def _merge(costs: list[Cost]) -> Cost:
    """Memory as it was last; time as on the quietest of the last occasions.

    CPU seconds, too, grow by half and more where hardware threads and caches are shared with other work.
    """
    recent = costs[-_KEPT:]
    return Cost(min(cost.seconds for cost in recent), recent[-1].peak, measured=True)
