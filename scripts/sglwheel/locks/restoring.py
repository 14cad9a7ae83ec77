"""Files that are changed together or not at all."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from sglwheel import files


@contextmanager
def restored(paths: Sequence[Path], aside: Path) -> Iterator[None]:
    """Have files as they were when the block fails, however it does; `aside` is a directory for second names.

    The block replaces them whole, as `write_atomic` does. Taking back is renaming: it works on a full disk.
    """
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    try:
        held = {path: aside / path.name for path in paths if path.is_file()}
        for path, second in held.items():
            files.link(path, second)
        try:
            yield
        except BaseException:
            for path in paths:
                if path not in held:
                    path.unlink(missing_ok=True)
                elif not path.is_file() or not path.samefile(held[path]):
                    _back(held[path], path)
            raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _back(second: Path, path: Path) -> None:
    try:
        second.replace(path)
    except OSError:
        # Another file system: there it is a copy.
        files.write_atomic(path, second.read_bytes())
