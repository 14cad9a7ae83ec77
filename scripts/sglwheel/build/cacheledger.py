"""Why a unit missed the cache: what of its inputs differs from when this host last had it.

ccache keeps hashes and cannot say. So beside its store lies, for each recipe, what every unit was compiled
from: the compilers' identity, its arguments, and a digest of every file that it read.
"""

from __future__ import annotations

import json
import os
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sglwheel import console, files
from sglwheel.build.cachewatch import CacheWatch
from sglwheel.build.compilercache import CompilerCache, arguments

_SHOWN = 3


@dataclass(frozen=True)
class Inputs:
    """What one unit is compiled from; paths inside the tree and the toolchain are relative to the tree."""

    source: str
    arguments: tuple[str, ...]
    needs: tuple[str, ...]


@dataclass(frozen=True)
class Snapshot:
    """All units of a build: object → inputs, and a digest of each file's content."""

    compilers: str
    units: Mapping[str, Inputs]
    contents: Mapping[str, str]

    @classmethod
    def of(cls, cache: CompilerCache, dependencies: str) -> Snapshot:
        """Read what `ninja -t deps` printed, and every file that it names."""
        needs = _dependencies(dependencies)
        units: dict[str, Inputs] = {}
        contents: dict[str, str] = {}
        for item in cache.units():
            unit = item["output"]
            if unit not in needs:
                continue
            base = item["directory"]
            found = []
            for path in needs[unit]:
                absolute = os.path.normpath(os.path.join(base, path))  # noqa: PTH118 - hundreds of thousands
                name = cache.inside(absolute)
                found.append(name)
                if name not in contents:
                    contents[name] = _content(Path(absolute))
            words = tuple(cache.inside(word) for word in arguments(shlex.split(item["command"])))
            units[unit] = Inputs(cache.inside(os.path.normpath(item["file"])), words, tuple(found))
        return cls(cache.identity, units, contents)

    def why(self, unit: str, before: Snapshot | None) -> str:
        """What differs for `unit` from an earlier build."""
        now = self.units.get(unit)
        then = before.units.get(unit) if before is not None else None
        if now is None:
            return "not known to CMake"
        if before is None or then is None:
            return "never compiled with this cache"
        if before.compilers != self.compilers:
            return "another compiler"
        if now.arguments != then.arguments:
            return f"other options: {_changes(then.arguments, now.arguments)}"
        changed = [
            name
            for name in dict.fromkeys((*then.needs, *now.needs))
            if before.contents.get(name) != self.contents.get(name)
        ]
        if changed:
            more = f" and {len(changed) - _SHOWN} more" if len(changed) > _SHOWN else ""
            return f"changed: {', '.join(changed[:_SHOWN])}{more}"
        return "the same as before: the entry is gone"

    def merged(self, before: Snapshot | None) -> Snapshot:
        """With those units of an earlier build that this one does not have."""
        if before is None or before.compilers != self.compilers:
            return self
        return Snapshot(self.compilers, {**before.units, **self.units}, {**before.contents, **self.contents})


@dataclass(frozen=True)
class Report:
    """What the cache did for one run; `why` says for each missed unit what differs from before."""

    hits: int
    shared_hits: int
    misses: int
    not_cached: Mapping[str, int]
    why: Mapping[str, str]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def render(self) -> list[str]:
        """A line, and one more for each reason that units missed for."""
        others = [f"{count} not cached ({reason})" for reason, count in sorted(self.not_cached.items())]
        shared = f" ({self.shared_hits} from the shared one)" if self.shared_hits else ""
        counts = [f"{self.hits + self.shared_hits} hits{shared}", f"{self.misses} misses", *others]
        return [f"compiler cache: {', '.join(counts)}", *(f"  {line}" for line in reasons(self.why.values()))]


def account(watch: CacheWatch, recipe: str, dependencies: str) -> Report:
    """Say what the cache did in a run that ended well, and remember what its units were made of.

    `dependencies` is what `ninja -t deps` printed.
    """
    cache = watch.cache
    assert cache is not None
    watch.follow()
    kept = cache.store / "units" / f"{recipe}.json"
    before, now = read(kept), Snapshot.of(cache, dependencies)
    units = cache.objects()
    why: dict[str, str] = {}
    for answer in watch.answers:
        if answer.outcome == "miss":
            why |= {unit: now.why(unit, before) for unit in units.get(answer.path, [answer.path])}
    counts = watch.counts()
    try:
        write(kept, now.merged(before))
    except OSError as error:
        # The objects are there; only a later miss cannot be explained.
        console.warn(f"{kept} cannot be written ({error.strerror}): later builds cannot say why they missed")
    known = ("hit", "shared", "miss")
    return Report(
        counts["hit"],
        counts["shared"],
        counts["miss"],
        {reason: count for reason, count in counts.items() if reason not in known},
        why,
    )


def read(path: Path) -> Snapshot | None:
    """A kept snapshot; None when there is none, or a torn one."""
    try:
        data: dict[str, Any] = json.loads(path.read_text("utf-8"))
        names = data["names"]
        units = {
            unit: Inputs(source, tuple(words), tuple(names[index] for index in needs))
            for unit, (source, words, needs) in data["units"].items()
        }
        return Snapshot(data["compilers"], units, dict(zip(names, data["contents"], strict=True)))
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return None


def write(path: Path, snapshot: Snapshot) -> None:
    """Keep a snapshot; names stand once, as many units read the same headers."""
    needed = sorted({name for inputs in snapshot.units.values() for name in inputs.needs})
    index = {name: number for number, name in enumerate(needed)}
    data = {
        "compilers": snapshot.compilers,
        "names": needed,
        "contents": [snapshot.contents.get(name, "") for name in needed],
        "units": {
            unit: [inputs.source, inputs.arguments, [index[name] for name in inputs.needs]]
            for unit, inputs in snapshot.units.items()
        },
    }
    files.write_atomic(path, json.dumps(data, separators=(",", ":")))


def reasons(why: Iterable[str]) -> list[str]:
    """`12 units: another compiler`, the commonest first."""
    counted = Counter(why).most_common()
    return [f"{count} unit{'s' if count != 1 else ''}: {reason}" for reason, count in counted]


def _dependencies(text: str) -> dict[str, list[str]]:
    """`ninja -t deps`: a line for the object, indented ones for what it was made of."""
    found: dict[str, list[str]] = {}
    current: list[str] = []
    for line in text.splitlines():
        if line.startswith(" "):
            current.append(line.strip())
        elif line:
            current = found.setdefault(line.split(": #deps", 1)[0], [])
    return found


def _content(path: Path) -> str:
    try:
        return files.sha256_once(path)[:16]
    except OSError:
        return ""


def _changes(before: Sequence[str], after: Sequence[str]) -> str:
    gone = [f"without {word}" for word in before if word not in after]
    new = [f"with {word}" for word in after if word not in before]
    every = [*gone, *new] or ["in another order"]
    return ", ".join(every[:_SHOWN]) + (f" and {len(every) - _SHOWN} more" if len(every) > _SHOWN else "")
