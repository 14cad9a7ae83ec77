"""Process trees: what they have in memory, and ending one before the kernel ends another."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

_PAGE = os.sysconf("SC_PAGE_SIZE")


def resident(root: int) -> int:
    """Resident bytes of a process with all its descendants; 0 when it is gone.

    Walks down from the root, so the price grows with the tree and not with what else runs on the host.
    """
    return sum(resident_of(process) for process in tree(root))


def tree(root: int) -> Iterator[int]:
    """`root` and its descendants, parents first."""
    stack = [root]
    while stack:
        process = stack.pop()
        yield process
        stack.extend(_children(process))


def end_below(root: int) -> int:
    """Kill every descendant of `root`, but not `root`; return how many there were.

    They are stopped first, from the top: a driver that sees its child die would report an error, and one
    that still ran would start the next child.
    """
    stopped: set[int] = set()
    while True:
        new = [process for process in tree(root) if process != root and process not in stopped]
        if not new:
            break
        for process in new:
            _signal(process, signal.SIGSTOP)
        stopped.update(new)
    for process in stopped:
        kill(process)
    return len(stopped)


def _children(process: int) -> list[int]:
    # CONFIG_PROC_CHILDREN, in every kernel of a distribution. Any thread may have started a child.
    found: list[int] = []
    try:
        for thread in Path(f"/proc/{process}/task").iterdir():
            found += map(int, (thread / "children").read_text().split())
    except OSError:
        pass  # it ended while we looked
    return found


def resident_of(process: int) -> int:
    """Resident bytes of one process by itself; 0 when it is gone."""
    try:
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * _PAGE
    except (OSError, IndexError):
        return 0


def private_of(process: int) -> int:
    """Resident bytes of one process that it shares with no file and no other; 0 when it is gone.

    Summed over processes this is what a memory cgroup would charge; what interpreters share it charges once.
    """
    try:
        resident, shared = Path(f"/proc/{process}/statm").read_text().split()[1:3]
    except (OSError, ValueError):
        return 0
    return (int(resident) - int(shared)) * _PAGE


def kill(process: int) -> None:
    """SIGKILL one process, if it is still there."""
    _signal(process, signal.SIGKILL)


def _signal(process: int, number: int) -> None:
    try:
        os.kill(process, number)
    except (ProcessLookupError, PermissionError):
        return
