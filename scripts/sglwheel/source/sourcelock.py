"""`recipes/<id>.lock`: what the sources of a recipe turned out to be, and the hashes of its other locks.

`[[source]]` has a table for each fetched source, `[upstream]` the upstream itself, `[lock]` a checksum over
all of the file's values, and the hashes of the `pylock.*.toml` beside it. The checksum finds slips of an
editor; what was changed on purpose is found by comparing with the stores and registries (`lockcheck`).
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import tomlkit

from sglwheel import files
from sglwheel.errors import SourceError, ToolchainError
from sglwheel.files import Layout

_DIGITS = {"commit": 40, "tree": 40, "sha256": 64}
_HEADER = "written by `sglwheel lock` and the first fetch: do not edit"


@dataclass(frozen=True)
class Pin:
    """One fetched source: what the build asks for, and what that was when it was first fetched."""

    name: str
    kind: str
    url: str
    requested: str
    commit: str | None = None
    tree: str | None = None
    sha256: str | None = None

    def merged(self, other: Pin | None) -> Pin:
        """This pin and what `other` knows more: with a Git mirror one learns other ids than without."""
        if other is None:
            return self
        more = {key: value for key, value in asdict(other).items() if getattr(self, key) is None}
        return replace(self, **more)


def path_of(layout: Layout, recipe_id: str) -> Path:
    """Where a recipe's lock lies."""
    return layout.recipes / f"{recipe_id}.lock"


def load(layout: Layout, recipe_id: str, *, edited: bool = False) -> dict[str, Pin]:
    """Read the sources of a lock by name; none if there is no lock. `edited` takes one with a wrong checksum.

    Raises SourceError when it cannot be read, ToolchainError when it was edited.
    """
    path = path_of(layout, recipe_id)
    if not path.is_file():
        return {}
    data = read(layout, recipe_id)
    if not edited:
        _require_sealed(data, layout, recipe_id)
    known = {item.name for item in fields(Pin)}
    tables: list[dict[str, Any]] = data.get("source", [])
    pins = [Pin(**{key: value for key, value in table.items() if key in known}) for table in tables]
    return {pin.name: pin for pin in pins}


def read(layout: Layout, recipe_id: str) -> dict[str, Any]:
    """A lock's values, of the kinds that a lock has; empty if there is no lock. Raises SourceError."""
    path = path_of(layout, recipe_id)
    try:
        data = tomllib.loads(path.read_text("utf-8")) if path.is_file() else {}
        _shaped(data)
    except ValueError as error:
        raise SourceError(
            f"the lock is damaged: {error}",
            where={"file": layout.relative(path)},
            next=f"restore it from git; or delete it, then sglwheel lock {recipe_id} writes it anew",
        ) from None
    return data


def _shaped(data: Mapping[str, Any]) -> None:
    """Raise ValueError, with the address, for values that no lock has."""
    own = _strings(data.get("lock", {}), "lock", but=("files",))
    _strings(own.get("files", {}), "lock.files")
    if "upstream" in data:
        _strings(data["upstream"], "upstream")
    tables = data.get("source", [])
    if not isinstance(tables, list):
        raise ValueError("source is no list of tables")
    names = set[str]()
    for number, table in enumerate(tables):
        where = f"source[{number}]"
        _strings(table, where)
        if missing := [key for key in ("name", "kind", "url", "requested") if key not in table]:
            raise ValueError(f"{where} has no {', '.join(missing)}")
        for key, digits in _DIGITS.items():
            if not re.fullmatch(f"[0-9a-f]{{{digits}}}", table.get(key, "0" * digits)):
                raise ValueError(f"{where}.{key} has not {digits} hexadecimal digits: {table[key]!r}")
        if table["name"] in names:
            raise ValueError(f"{table['name']} is there twice")
        names.add(table["name"])


def _strings(table: Any, where: str, *, but: Sequence[str] = ()) -> Mapping[str, Any]:
    if not isinstance(table, dict):
        raise ValueError(f"{where} is no table")
    for key, value in table.items():
        if key not in but and not isinstance(value, str):
            raise ValueError(f"{where}.{key} is no text: {value!r}")
    return table


def _require_sealed(data: Mapping[str, Any], layout: Layout, recipe_id: str) -> None:
    if not sealed(data):
        file = layout.relative(path_of(layout, recipe_id))
        raise ToolchainError(
            f"{file} was edited: its checksum is of other values",
            where={"file": file, "checksum": checksum(data)},
            next=f"restore it from git, or make it anew: sglwheel lock --upgrade {recipe_id}",
        )


def checksum(data: Mapping[str, Any]) -> str:
    """A hash over every value of a lock but itself; layout and comments do not count."""
    own = {key: value for key, value in data.get("lock", {}).items() if key != "checksum"}
    text = json.dumps({**data, "lock": own}, sort_keys=True, default=str)
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def sealed(data: Mapping[str, Any]) -> bool:
    """Whether a lock's checksum fits; one without is as good as its other proofs."""
    own = data.get("lock", {}).get("checksum")
    return own is None or own == checksum(data)


def locked_file(layout: Layout, recipe_id: str, path: Path) -> str | None:
    """The hash that a lock has for a file beside it."""
    found = read(layout, recipe_id).get("lock", {}).get("files", {}).get(path.name)
    return found if isinstance(found, str) else None


def save(layout: Layout, recipe_id: str, pins: Iterable[Pin], *, edited: bool = False) -> bool:
    """Make the lock's sources `pins`, other tables stay; return whether the file changed.

    `edited` makes one whole whose checksum is wrong; else nobody's edit gets a checksum by being written on.
    """
    tables = [
        {key: value for key, value in asdict(pin).items() if value is not None}
        for pin in sorted(pins, key=lambda pin: pin.name)
    ]
    return _update(layout, recipe_id, {"source": tables}, edited=edited)


def save_upstream(layout: Layout, recipe_id: str, upstream: Mapping[str, str]) -> bool:
    """Say what the upstream's commit is; return whether the file changed."""
    return _update(layout, recipe_id, {"upstream": dict(upstream)})


def save_files(layout: Layout, recipe_id: str, paths: Iterable[Path]) -> bool:
    """Take the hashes of files beside the lock into it; return whether it changed."""
    return _update(layout, recipe_id, {}, {path.name: files.sha256(path) for path in paths})


def _update(
    layout: Layout,
    recipe_id: str,
    tables: Mapping[str, Any],
    hashes: Mapping[str, str] | None = None,
    *,
    edited: bool = False,
) -> bool:
    path = path_of(layout, recipe_id)
    # Two builds of one recipe may resolve at the same time; the lock of the lock is no part of recipes/.
    guard = files.cache_directory(layout.cache) / "locks" / f"{recipe_id}.source.lock"
    with files.locked(guard, failure=SourceError, what=f"the lock of {recipe_id}"):
        before = read(layout, recipe_id)
        if not edited:
            _require_sealed(before, layout, recipe_id)
        old = path.read_text("utf-8") if path.is_file() else ""
        data = {**before, **tables}
        own: dict[str, Any] = dict(data.get("lock", {}))
        own["files"] = dict(sorted({**own.get("files", {}), **(hashes or {})}.items()))
        if not own["files"]:
            del own["files"]
        own["checksum"] = checksum({**data, "lock": own})
        data["lock"] = {"checksum": own.pop("checksum"), **own}
        if data == before:
            return False
        document = tomlkit.document()
        # What people wrote at the top stays.
        for line in dict.fromkeys((f"# {_HEADER}", *_opening(old))):
            document.add(tomlkit.comment(line.removeprefix("#").strip()))
        # Tables of other versions stay, before our own last one.
        for key in dict.fromkeys(("upstream", "source", *data)):
            if key in data and key != "lock":
                document.add(tomlkit.nl())
                document.add(key, tomlkit.item(data[key]))
        document.add(tomlkit.nl())
        document.add("lock", tomlkit.item(data["lock"]))
        files.write_atomic(path, tomlkit.dumps(document))
    return True


def _opening(text: str) -> Iterator[str]:
    """The comments above a lock's first table."""
    for line in itertools.takewhile(lambda line: not line or line.startswith("#"), text.splitlines()):
        if line:
            yield line
