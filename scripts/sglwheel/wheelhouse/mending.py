"""What `verify --repair` does beyond making derived files again; it deletes nothing."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from sglwheel import files
from sglwheel.wheelhouse.house import Wheelhouse
from sglwheel.wheelhouse.links import copy_synced
from sglwheel.wheelhouse.record import Record


def mend(house: Wheelhouse, records: Mapping[str, Record], rule: str, path: Path) -> None:
    """Put right what a finding of `rule` speaks of, as far as settling afresh will not. Needs the lock."""
    if rule in ("orphan", "leftover", "symlink"):
        _quarantine(house, path)
    elif rule == "wheel":
        _restore(house, records[path.parent.name], path)
    elif rule == "flat" or (rule == "line" and path.suffix == ".whl"):
        # A broken copy goes; settling links the wheel again.
        _quarantine(house, path)
    elif rule == "record":
        _record(house, path)


def _quarantine(house: Wheelhouse, path: Path) -> None:
    if path.exists() or path.is_symlink():
        target = house.quarantine / path.relative_to(house.root)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(path, target.with_name(f"{target.name}.{len(list(target.parent.iterdir()))}"))


def _restore(house: Wheelhouse, record: Record, path: Path) -> None:
    """Bring a damaged wheel back from a copy of it that is whole."""
    for copy in [house.flat(record), *house.root.glob(f"lines/*/{record.filename}")]:
        if copy.is_file() and not copy.is_symlink() and files.sha256(copy) == record.sha256:
            temporary = path.with_name(f".{path.name}.restored")
            copy_synced(copy, temporary)
            _quarantine(house, path)
            temporary.replace(path)
            return


def _record(house: Wheelhouse, path: Path) -> None:
    """Bring a damaged record back from the catalogue, if the wheel that it speaks of is there."""
    for record in house.cached().values():
        wheel = path.parent / record.filename
        if record.id == path.parent.name and wheel.is_file() and files.sha256(wheel) == record.sha256:
            files.write_atomic(path, record.to_json())
