"""A wheelhouse with many releases, for whoever measures one."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sglwheel.files import Layout
from sglwheel.wheelhouse import Release, Wheelhouse, publish
from sglwheel.wheelhouse.settle import settle
from wheelworld import make_kernel, reports

PROVENANCE = {
    "recipe": {"id": "cu130"},
    "upstream": {"commit": "6" * 40},
    "flags": {"architectures": ["12.0a"]},
    "patched": {"patches": [{"name": name, "state": "applied"} for name in ("one", "two", "three")]},
}
# What stays when everything that can be derived goes.
_GIVEN = (".whl", ".whl.metadata", ".inspection.json", ".smoke.json", ".provenance.json", "release.json")


def put(base: Path, number: int, size: int) -> Release:
    """Publish wheel `number`, of about `size` incompressible bytes, into `base`/wheelhouse."""
    torch = f"2.{9 + number % 4}.0"
    wheel = make_kernel(
        base / "dist",
        f"0.3.21+cu130.torch{torch}.sm120a.{number}",
        torch=torch,
        provenance=PROVENANCE,
        content=f"x = {os.urandom(size // 2).hex()!r}\n",
    )
    finished = reports(wheel, gpu=number % 3 > 0, requires=f"torch=={torch}")
    try:
        return publish(*finished, Layout(base))
    finally:
        wheel.unlink()


def fill(base: Path, releases: int, size: int) -> Wheelhouse:
    """Publish without indexes and without waiting for the disk: filling is not what is measured."""
    house = Wheelhouse(base / "wheelhouse")
    there = len(house.ids())
    with _unindexed():
        for number in range(there + 1, releases + 1):
            put(base, number, size)
    os.sync()
    return house


def bare(house: Wheelhouse, aside: Path | None = None) -> None:
    """Leave of a wheelhouse only the releases themselves; the rest is moved to `aside`, or deleted.

    It matters which: for minutes ext4 gives nobody the inode of a file that was just deleted, but looks at
    all of them for each new file (`recently_deleted` in fs/ext4/ialloc.c).
    """
    if aside is not None:
        aside.mkdir(parents=True)
    derived = [path for path in house.root.iterdir() if path != house.builds]
    for home in house.builds.iterdir():
        derived += [path for path in home.iterdir() if path.is_dir() or not path.name.endswith(_GIVEN)]
    for path in derived:
        if aside is not None:
            path.rename(aside / ",".join(path.relative_to(house.root).parts))
        elif path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    os.sync()


def index(house: Wheelhouse) -> None:
    """Derive everything."""
    with house.locked(), house.transaction():
        settle(house, fresh=True)


@contextlib.contextmanager
def _unindexed() -> Iterator[None]:
    module: Any = importlib.import_module("sglwheel.wheelhouse.publish")
    kept = module.settle, Wheelhouse.next_serial, os.fsync
    serials = itertools.count(1)
    module.settle = lambda house: [house.expose(house.read(id)) for id in house.in_flight()]
    Wheelhouse.next_serial = lambda _: next(serials)  # type: ignore[method-assign]
    os.fsync = lambda _: None
    try:
        yield
    finally:
        module.settle, Wheelhouse.next_serial, os.fsync = kept  # type: ignore[method-assign]
