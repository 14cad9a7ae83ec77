"""A patched tree as a plain directory: the same modes and times everywhere, and a list to hold it against."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from sglwheel import files

# Tests and builds run Python in the tree; its caches are no change.
_IGNORED = ("__pycache__", ".pytest_cache")

_Entries = dict[str, tuple[int, int, int]]


def keep(made: Path, final: Path, time: int) -> Path | None:
    """Make the directory `final` of `made`, every file with the time `time` (ns).

    Returns where the tree is now that was there before, if any. The same tree gets the same times wherever
    and whenever it is made: a build tree stays up to date.
    """
    entries, aside = _normalise(made, time), None
    if final.exists():
        # Somebody's edits: out of the way, but not gone.
        aside = final.with_name(f"{final.name}.modified")
        shutil.rmtree(aside, ignore_errors=True)
        final.rename(aside)
    files.write_atomic(_manifest(final), json.dumps(entries) + "\n")
    made.rename(final)
    return aside


def clean(path: Path) -> bool:
    """Whether a kept tree is as it was made."""
    return _manifest(path).is_file() and path.is_dir() and _entries(path) == _expected(_manifest(path))


def edited(path: Path) -> tuple[str, ...]:
    """Files of a kept tree that somebody changed, added or removed since it was made."""
    if not _manifest(path).is_file():
        return ()
    expected, actual = _expected(_manifest(path)), _entries(path)
    names = expected.keys() | actual.keys()
    return tuple(sorted(name for name in names if expected.get(name) != actual.get(name)))


def _manifest(final: Path) -> Path:
    return final.parent / "patched" / f"{final.name}.files.json"


def _normalise(root: Path, time: int) -> _Entries:
    """Make modes and times independent of umask and clock; list the files."""
    for folder, _, names in os.walk(root):
        Path(folder).chmod(0o755)
        for name in names:
            path = Path(folder, name)
            if not path.is_symlink():
                path.chmod(0o755 if path.stat().st_mode & 0o100 else 0o644)
            os.utime(path, ns=(time, time), follow_symlinks=False)
    return _entries(root)


def _entries(root: Path) -> _Entries:
    found: _Entries = {}
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in _IGNORED]
        for name in names:
            path = os.path.join(folder, name)  # noqa: PTH118 - a thousand files on the way to doing nothing
            status = os.lstat(path)
            found[os.path.relpath(path, root)] = (status.st_mode, status.st_size, status.st_mtime_ns)
    return found


def _expected(manifest: Path) -> _Entries:
    try:
        return {
            name: (mode, size, time) for name, (mode, size, time) in json.loads(manifest.read_text()).items()
        }
    except (OSError, ValueError):
        return {}
