"""Moving pointers: `lines/cu130/` is what a fleet follows, and moves only to a complete set."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from sglwheel import files
from sglwheel.errors import WheelhouseError
from sglwheel.wheelhouse import index
from sglwheel.wheelhouse.house import Wheelhouse
from sglwheel.wheelhouse.linerecord import (
    NAME,
    Cell,
    Generation,
    Move,
    Pointer,
    Why,
    directory,
    generation,
    load,
    load_all,
    save,
)
from sglwheel.wheelhouse.links import link
from sglwheel.wheelhouse.record import Record, now

# Not `-next`: that is how people call a recipe, and two recipes then moved one pointer.
_CANDIDATES = ".candidates"


def advance(house: Wheelhouse, changed: Sequence[Record]) -> list[Pointer]:
    """Move the lines of releases that just came or were promoted, where their set is now complete.

    Every recipe's line has two pointers: `<line>` for releases, `<line>.candidates` for candidates as well.
    A line that a person rolled back stays where it is. Needs the lock.
    """
    moved = []
    # What just changed is the only thing that can have completed a set.
    whole = len(changed) >= len(house.ids())
    groups: dict[str, dict[Generation, list[Record]]] = {}
    for record in changed:
        if record.line and NAME.fullmatch(record.line) and record.available:
            groups.setdefault(record.line, {}).setdefault(generation(record), []).append(record)
    for line, generations in sorted(groups.items()):
        for name, takes in ((line, "release"), (f"{line}{_CANDIDATES}", "candidate")):
            pointer = load(house, name) or Pointer.model_validate({"name": name, "takes": takes})
            target = None if pointer.held else _newest(house, pointer, line, generations, whole=whole)
            if target and target != pointer.members:
                moved.append(move(house, pointer, target, "complete"))
    return moved


def _newest(
    house: Wheelhouse,
    pointer: Pointer,
    line: str,
    generations: Mapping[Generation, Sequence[Record]],
    *,
    whole: bool,
) -> tuple[str, ...] | None:
    """The newest generation, not older than the pointer's, that fills every promised cell.

    A line without a promise yet promises what its first release is.
    """
    current = max((generation(house.read(id)) for id in pointer.members), default=None)
    for candidate in sorted(generations, reverse=True):
        if current is not None and candidate < current:
            return None
        group = generations[candidate] if whole else house.matching(line, *map(str, candidate))
        found = _complete(pointer, line, candidate, group)
        if found:
            return found
    return None


def _complete(
    pointer: Pointer, line: str, wanted: Generation, records: Iterable[Record]
) -> tuple[str, ...] | None:
    """What of a generation the pointer takes, if every promised cell is among it."""
    cells = {
        Cell.of(record): record
        for record in sorted(records, key=Record.order)
        if record.line == line
        and record.available
        and (pointer.takes == "candidate" or record.status == "release")
        and generation(record) == wanted
    }
    promised = pointer.promise or tuple(cells)[:1]
    if not cells or any(cell not in cells for cell in promised):
        return None
    return tuple(sorted(record.id for record in cells.values()))


def promise(house: Wheelhouse, name: str, cells: Sequence[Cell]) -> Pointer:
    """Say what a line must have before it moves. Needs the lock."""
    pointer = (load(house, name) or Pointer(name=name)).model_copy(update={"promise": tuple(cells)})
    save(house, pointer)
    return pointer


def point(house: Wheelhouse, name: str, ids: Sequence[str]) -> Pointer:
    """Point a line at these releases by hand, and let it move by itself again. Needs the lock."""
    _usable(house, ids)
    pointer = (load(house, name) or Pointer(name=name)).model_copy(update={"held": False})
    return move(house, pointer, tuple(sorted(ids)), "set")


def rollback(house: Wheelhouse, name: str) -> Pointer:
    """Point a line at what it pointed to before, and hold it there. Needs the lock."""
    pointer = load(house, name)
    if pointer is None:
        known = ", ".join(load_all(house)) or "none"
        raise WheelhouseError(
            f"no such line: {name}", where={"lines": known}, next="sglwheel wheelhouse list"
        )
    target = _before(house, pointer)
    if not target:
        now_at = ", ".join(pointer.members) or "nothing"
        raise WheelhouseError(f"{name} has nothing to go back to", where={"now": now_at})
    return move(house, pointer.model_copy(update={"held": True}), target, "rollback")


def retreat(house: Wheelhouse, pointer: Pointer) -> Pointer:
    """Leave a set of which a member was just yanked: for the one before, or for nothing. Needs the lock."""
    return move(house, pointer, _before(house, pointer), "rollback")


def _before(house: Wheelhouse, pointer: Pointer) -> tuple[str, ...]:
    """The set before the pointer's: another generation, with what came to it since."""
    # Rolling back twice goes back two steps, not forth again: rollbacks are no steps.
    steps = [item.members for item in pointer.history if item.why != "rollback"]
    here = _generations(house, pointer.members)
    while steps and _generations(house, steps[-1]) != here:
        steps.pop()
    for members in reversed(steps):
        there = _generations(house, members)
        if there and there != here and all(house.read(id).available for id in members):
            return _grown(house, pointer, members) if len(there) == 1 else members
    return ()


def _generations(house: Wheelhouse, ids: Iterable[str]) -> set[Generation]:
    return {generation(house.read(id)) for id in ids}


def _grown(house: Wheelhouse, pointer: Pointer, members: tuple[str, ...]) -> tuple[str, ...]:
    first = house.read(members[0])
    version, build = generation(first)
    line = first.line or ""
    return (
        _complete(pointer, line, (version, build), house.matching(line, str(version), str(build))) or members
    )


def move(house: Wheelhouse, pointer: Pointer, members: tuple[str, ...], why: Why) -> Pointer:
    """Write the pointer and its directory: new wheels are there before old ones go."""
    when: datetime = now(item.when for item in pointer.history)
    moved = pointer.model_copy(
        update={"history": (*pointer.history, Move(when=when, members=members, why=why))}
    )
    if not moved.promise:
        moved = moved.model_copy(update={"promise": tuple(Cell.of(house.read(id)) for id in members)})
    save(house, moved)
    render(house, moved)
    return moved


def heal(house: Wheelhouse, *, whole: bool = False) -> dict[str, Pointer]:
    """Every line, after bringing in step those that an interruption left behind, or all of them."""
    pointers = load_all(house)
    for pointer in pointers.values():
        home = directory(house, pointer.name)
        if whole:
            render(house, pointer)
            continue
        shown = {path.name for path in home.glob("*.whl")}
        if (
            shown != {house.read(id).filename for id in pointer.members}
            or not (home / "index.html").is_file()
        ):
            render(house, pointer)
    return pointers


def render(house: Wheelhouse, pointer: Pointer) -> None:
    """Bring `lines/<name>/` in step with its record: a find-links directory, page and simple index."""
    home = directory(house, pointer.name)
    records = [house.read(id) for id in pointer.members]
    for record in records:
        link(house.builds / record.id / record.filename, home / record.filename)
    for name, text in index.line_files(pointer.name, records).items():
        files.write_atomic(home / name, text)
    names = {record.filename for record in records}
    for path in home.glob("*.whl"):
        if path.name not in names:
            path.unlink()
    files.sync_directory(home)


def _usable(house: Wheelhouse, ids: Iterable[str]) -> None:
    gone = [record.id for record in map(house.read, ids) if not record.available]
    if gone:
        raise WheelhouseError(
            f"a line cannot point to what was yanked or removed: {', '.join(gone)}",
            next="sglwheel wheelhouse list",
        )
