"""Exported sources under `cache/sources/`: made once, read-only, and noticed when somebody edits them."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sglwheel import files
from sglwheel.errors import SourceError
from sglwheel.files import Layout
from sglwheel.mirrors import Mirrors
from sglwheel.source import sparse, unpacked
from sglwheel.source.sparse import Piece, Request
from sglwheel.source.store import GitStore
from sglwheel.types import CommitId

# Part of what names an export: raise it when the same request would give other files.
_FORMAT = 2


@dataclass(frozen=True)
class Kept:
    """An exported directory and the repositories that it is made of, outermost first."""

    path: Path
    pieces: tuple[Piece, ...]
    received: int

    @property
    def content(self) -> str:
        """Identity of exactly what the directory holds."""
        return sparse.identity(self.pieces)


def keep(
    name: str, store: GitStore, commit: CommitId, request: Request, layout: Layout, mirrors: Mirrors
) -> Kept:
    """Have what a request takes of a commit as a directory; if it is there, no process is started."""
    root = files.cache_directory(layout.cache) / "sources"
    text = json.dumps([_FORMAT, store.url, commit, sorted(request.paths), sorted(request.submodules)])
    receipt = root / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"
    kept = _reuse(receipt)
    if kept is None:
        with files.locked(receipt.with_suffix(".lock"), failure=SourceError, what=name):
            kept = _reuse(receipt) or _export(name, store, commit, request, receipt, layout, mirrors)
    return kept


def _reuse(receipt: Path) -> Kept | None:
    """What a receipt says, if the directory is still as it was."""
    try:
        facts: dict[str, Any] = json.loads(receipt.read_text())
        path = receipt.parent / facts["directory"]
        if unpacked.state(path) != facts["state"]:
            return None
        return Kept(path, tuple(Piece(**item) for item in facts["pieces"]), 0)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _export(
    name: str,
    store: GitStore,
    commit: CommitId,
    request: Request,
    receipt: Path,
    layout: Layout,
    mirrors: Mirrors,
) -> Kept:
    with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=receipt.parent) as parent:
        scratch = Path(parent) / "tree"
        pieces, received = sparse.export(store, commit, request, scratch, layout, mirrors)
        _freeze(scratch, store.git.date(commit).timestamp())
        target = receipt.parent / f"{name}-{sparse.identity(pieces)[:16]}"
        # Two requests may take the same files, and somebody may have edited them since.
        with files.locked(target.with_suffix(".lock"), failure=SourceError, what=name):
            if target.is_dir() and unpacked.state(target) != unpacked.state(scratch):
                shutil.rmtree(target)
            if not target.is_dir():
                scratch.rename(target)
    facts = {
        "directory": target.name,
        "state": unpacked.state(target),
        "pieces": [asdict(item) for item in pieces],
    }
    files.write_atomic(receipt, json.dumps(facts, indent=1))
    return Kept(target, pieces, received)


def _freeze(root: Path, moment: float) -> None:
    """Make files read-only, with times that are the same whenever they are exported."""
    for directory, _, names in os.walk(root):
        for name in names:
            path = Path(directory, name)
            if not path.is_symlink():
                path.chmod(0o555 if path.stat().st_mode & 0o100 else 0o444)
            os.utime(path, (moment, moment), follow_symlinks=False)


def edited(name: str, store: GitStore, commit: CommitId, layout: Layout) -> list[tuple[Path, str]]:
    """Files of kept directories that are not what the commit has, read byte by byte, each with why."""
    wrong: list[tuple[Path, str]] = []
    for receipt in sorted((layout.cache / "sources").glob(f"{name}-*.json")):
        try:
            facts: dict[str, Any] = json.loads(receipt.read_text())
            pieces = [Piece(**item) for item in facts["pieces"]]
            root = receipt.parent / facts["directory"]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if not root.is_dir() or (pieces[0].url, pieces[0].commit) != (store.url, commit):
            continue
        # The content is a tree that we wrote into the store: exactly what was taken.
        entries = {entry.path: entry for entry in store.entries(pieces[0].content)}
        inner = tuple(f"{piece.path}/" for piece in pieces[1:])
        for path, (blob, executable) in unpacked.contents(root).items():
            if path.startswith(inner) and inner:
                continue
            entry = entries.pop(path, None)
            if entry is None:
                wrong.append((root / path, "was not taken from the commit"))
            elif entry.object != blob or (entry.mode == "100755") != executable:
                wrong.append((root / path, "differs from the commit"))
        wrong += [(root / path, "is gone") for path in entries]
    return wrong
