"""Copy a wheelhouse to another directory or a bucket: what changed only, indexes last, resumable.

obstore speaks S3, GCS, Azure and directories with one tongue. What a publisher does meanwhile is left for the
next run: indexes are taken as they were when their wheels were listed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sglwheel import programs
from sglwheel.buckets import open_bucket, open_directory
from sglwheel.errors import WheelhouseError
from sglwheel.wheelhouse import linerecord
from sglwheel.wheelhouse.house import Wheelhouse
from sglwheel.wheelhouse.links import link, same
from sglwheel.wheelhouse.record import Record

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_MANIFEST = "mirror.json"
# After so many files the manifest is written: an interrupted run repeats less than that.
_STRIDE = 64
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".json": "application/json",
    ".txt": "text/plain; charset=utf-8",
}


@dataclass
class Mirrored:
    """What a run did, or would do."""

    copied: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    unchanged: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class _Item:
    path: str
    sha256: str
    size: int
    # A wheel is read when its turn comes; everything else is a snapshot.
    source: Path | bytes


def mirror(
    house: Wheelhouse,
    target: str,
    *,
    dry_run: bool = False,
    workers: int = 8,
    progress: Callable[[int, int], None] | None = None,
) -> Mirrored:
    """Bring `target` (a directory, or a url such as s3://bucket/prefix) up to date.

    Credentials and endpoints come from the usual environment variables (AWS_ENDPOINT, AWS_ACCESS_KEY_ID, …).
    Nothing is removed but wheels that were removed here. Raises WheelhouseError.
    """
    house.demand()
    store = _open(target)
    with _told(target):
        known = _manifest(store)
        present = _listing(store)
    seen = _Snapshot.of(house)
    done = Mirrored()
    needed = [item for item in seen.releases if not _there(item, known, present)]
    indexes = [item for item in seen.derived if not _there(item, known, present)]
    done.unchanged = len(seen.releases) + len(seen.derived) - len(needed) - len(indexes)
    gone = [
        f"builds/{record.id}/{record.filename}{suffix}"
        for record in seen.records
        if record.removed
        for suffix in ("", ".metadata", ".sig")
        if f"builds/{record.id}/{record.filename}{suffix}" in present
    ]
    total = len(needed) + len(indexes)
    if dry_run:
        done.copied, done.removed = [item.path for item in [*needed, *indexes]], gone
        done.bytes = sum(item.size for item in [*needed, *indexes])
        return done
    with _told(target), ThreadPoolExecutor(workers) as pool:
        for start in range(0, len(needed), _STRIDE):
            batch = needed[start : start + _STRIDE]
            for item in pool.map(lambda item: _put(store, item), batch):
                _note(done, known, item)
            if progress:
                progress(len(done.copied), total)
            _write_manifest(store, known)
        # In order, the page last: at every moment what an index names is there.
        for item in indexes:
            _note(done, known, _put(store, item))
        for path in gone:
            store.delete(path)
            known.pop(path, None)
            done.removed.append(path)
        _write_manifest(store, known)
    if "://" not in target:
        _name(Path(target), seen)
    if progress:
        progress(total, total)
    return done


@dataclass(frozen=True)
class _Snapshot:
    """A wheelhouse as it was at one moment."""

    records: list[Record]
    releases: list[_Item]
    # In the order in which they may appear.
    derived: list[_Item]
    # Where else a wheel is shown → where it lies.
    names: dict[str, str]

    @classmethod
    def of(cls, house: Wheelhouse) -> _Snapshot:
        with house.locked():
            records = sorted(house.records().values(), key=Record.order)
            names = _second_names(house, records)
            derived = [*_below(house.root / "simple"), *_below(house.root / "lines")]
            derived = [path for path in derived if path.suffix != ".whl"]
            last = (*programs.ALL, "releases.json", "releases.json.sig", "index.html")
            derived += [house.root / name for name in last if (house.root / name).is_file()]
            late = [_item(house.root, path, path.read_bytes()) for path in derived]
        items = []
        for record in records:
            for path in _below(house.builds / record.id):
                if path.name == record.filename:
                    items.append(_Item(str(path.relative_to(house.root)), record.sha256, record.size, path))
                else:
                    items.append(_item(house.root, path, path.read_bytes()))
        return cls(records, items, late, names)


def _second_names(house: Wheelhouse, records: Iterable[Record]) -> dict[str, str]:
    homes = {record.id: f"builds/{record.id}/{record.filename}" for record in records}
    names = {record.filename: homes[record.id] for record in records if record.available}
    for line in linerecord.load_all(house).values():
        for home in map(homes.__getitem__, line.members):
            names[f"lines/{line.name}/{home.rpartition('/')[2]}"] = home
    return names


def _below(directory: Path) -> Iterator[Path]:
    if directory.is_dir():
        for path in sorted(directory.rglob("*")):
            if path.is_file() and not path.is_symlink() and not path.name.startswith("."):
                yield path


def _item(root: Path, path: Path, data: bytes) -> _Item:
    return _Item(str(path.relative_to(root)), hashlib.sha256(data).hexdigest(), len(data), data)


def _there(item: _Item, known: dict[str, str], present: dict[str, int]) -> bool:
    return known.get(item.path) == item.sha256 and present.get(item.path) == item.size


def _put(store: ObjectStore, item: _Item) -> _Item:
    from obstore.store import LocalStore

    attributes: Any = None
    if not isinstance(store, LocalStore):
        suffix = Path(item.path).suffix
        forever = suffix == ".whl"
        attributes = {
            "Content-Type": _TYPES.get(suffix, "application/octet-stream"),
            "Cache-Control": "public, max-age=31536000, immutable" if forever else "no-cache",
        }
    store.put(item.path, item.source, attributes=attributes)
    return item


def _note(done: Mirrored, known: dict[str, str], item: _Item) -> None:
    known[item.path] = item.sha256
    done.copied.append(item.path)
    done.bytes += item.size


def _name(target: Path, seen: _Snapshot) -> None:
    """Give a directory the names that clients read there; a bucket's pages link to builds/."""
    for name, home in seen.names.items():
        if not same(target / name, target / home):
            link(target / home, target / name)
    ours = {record.filename for record in seen.records}
    for path in [*target.glob("*.whl"), *target.glob("lines/*/*.whl")]:
        if path.name in ours and path.relative_to(target).as_posix() not in seen.names:
            path.unlink()


def _manifest(store: ObjectStore) -> dict[str, str]:
    try:
        value = json.loads(bytes(store.get(_MANIFEST).bytes()))
    except (FileNotFoundError, ValueError):
        return {}
    return {str(path): str(sha256) for path, sha256 in value.items()} if isinstance(value, dict) else {}


def _write_manifest(store: ObjectStore, known: dict[str, str]) -> None:
    store.put(_MANIFEST, json.dumps(known, indent=0, sort_keys=True).encode())


def _listing(store: ObjectStore) -> dict[str, int]:
    return {item["path"]: item["size"] for batch in store.list(chunk_size=1000) for item in batch}


def _open(target: str) -> ObjectStore:
    if "://" in target:
        return open_bucket(target, what="mirroring", failure=WheelhouseError)
    return open_directory(Path(target).absolute(), what="mirroring", failure=WheelhouseError)


@contextmanager
def _told(target: str) -> Iterator[None]:
    """Say failures of the store in words; what was copied stays, and the next run goes on."""
    from obstore.exceptions import BaseError

    try:
        yield
    except (BaseError, OSError, ValueError) as error:
        said = (str(error).splitlines() or [type(error).__name__])[0]
        raise WheelhouseError(
            f"the mirror cannot be written: {said}",
            where={"target": target},
            next="run the same command again: it goes on where it stopped",
        ) from error
