"""Bring a wheelhouse in step with its releases: indexes, then lines, then the page that links to both."""

from __future__ import annotations

from sglwheel.wheelhouse import index, linerecord, nodeprogram, pointers, signing
from sglwheel.wheelhouse.house import Wheelhouse
from sglwheel.wheelhouse.noted import Notes


def settle(house: Wheelhouse, *, fresh: bool = False) -> None:
    """Finish the transaction, and whatever an interrupted one left. Needs the lock.

    `fresh` reads and writes everything instead of what changed.
    """
    notes = Notes()
    shelf = index.derive(house, notes, fresh=fresh)
    for pointer in pointers.heal(house, whole=not house.stamp.is_file()).values():
        if any(not house.read(id).available for id in pointer.members):
            pointers.retreat(house, pointer)
    pointers.advance(house, shelf.records)
    nodeprogram.write(house.root)
    signing.resign(house, shelf.records)
    index.write_page(house, shelf, linerecord.load_all(house).values(), notes, fresh=fresh)
