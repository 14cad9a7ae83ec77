"""`recipes/<id>.lock`: what the sources of a recipe turned out to be, and the hashes of its other locks.

`[[source]]` has a table for each fetched source, `[upstream]` the upstream itself, `[lock]` a checksum over
all of the file's values, and the hashes of the `pylock.*.toml` beside it. The checksum finds slips of an
editor; what was changed on purpose is found by comparing with the stores and registries (`lockcheck`).
"""

from __future__ import annotations

import hashlib
import itertools
import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import tomlkit

from sglwheel import files
from sglwheel.errors import SourceError, ToolchainError
from sglwheel.files import Layout

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
    known = {item.name for item in fields(Pin)}
    data = read(layout, recipe_id)
    try:
        tables: list[dict[str, Any]] = data.get("source", [])
        pins = [Pin(**{key: value for key, value in table.items() if key in known}) for table in tables]
    except (TypeError, AttributeError) as error:
        raise _damaged(error, layout, recipe_id) from None
    if not edited and not sealed(data):
        raise ToolchainError(
            f"{layout.relative(path)} was edited: its checksum is of other values",
            where={"file": layout.relative(path), "checksum": checksum(data)},
            next=f"restore it from git, or make it anew: sglwheel lock --upgrade {recipe_id}",
        )
    return {pin.name: pin for pin in pins}


def read(layout: Layout, recipe_id: str) -> dict[str, Any]:
    """A lock's values as they are; empty if there is no lock. Raises SourceError."""
    path = path_of(layout, recipe_id)
    try:
        return tomllib.loads(path.read_text("utf-8")) if path.is_file() else {}
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise _damaged(error, layout, recipe_id) from None


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


def save(layout: Layout, recipe_id: str, pins: Iterable[Pin]) -> bool:
    """Make the lock's sources `pins`, other tables stay; return whether the file changed."""
    tables = [
        {key: value for key, value in asdict(pin).items() if value is not None}
        for pin in sorted(pins, key=lambda pin: pin.name)
    ]
    return _update(layout, recipe_id, {"source": tables})


def save_upstream(layout: Layout, recipe_id: str, upstream: Mapping[str, str]) -> bool:
    """Say what the upstream's commit is; return whether the file changed."""
    return _update(layout, recipe_id, {"upstream": dict(upstream)})


def save_files(layout: Layout, recipe_id: str, paths: Iterable[Path]) -> bool:
    """Take the hashes of files beside the lock into it; return whether it changed."""
    return _update(layout, recipe_id, {}, {path.name: files.sha256(path) for path in paths})


def _update(
    layout: Layout, recipe_id: str, tables: Mapping[str, Any], hashes: Mapping[str, str] | None = None
) -> bool:
    path = path_of(layout, recipe_id)
    # Two builds of one recipe may resolve at the same time; the lock of the lock is no part of recipes/.
    guard = files.cache_directory(layout.cache) / "locks" / f"{recipe_id}.source.lock"
    with files.locked(guard, failure=SourceError, what=f"the lock of {recipe_id}"):
        old = path.read_text("utf-8") if path.is_file() else ""
        before = tomllib.loads(old)
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


def _damaged(error: Exception, layout: Layout, recipe_id: str) -> SourceError:
    return SourceError(
        f"the lock is damaged: {error}",
        where={"file": layout.relative(path_of(layout, recipe_id))},
        next=f"restore it from git, or make it anew: sglwheel lock {recipe_id}",
    )


def _opening(text: str) -> Iterator[str]:
    """The comments above a lock's first table."""
    for line in itertools.takewhile(lambda line: not line or line.startswith("#"), text.splitlines()):
        if line:
            yield line
