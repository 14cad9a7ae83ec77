"""Whether anything changed since a run ended well, found out before anything heavy is imported.

Every stage skips what its inputs do not ask for, but to know its inputs it has to load them. Most runs change
nothing at all: those are recognised by the stat of every file that a run reads or leaves, the environment and
the command line. In doubt (an input that moved while the run went on, one that cannot be watched) there is no
note, and the stages decide.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import sysconfig
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from sglwheel import files
from sglwheel.files import Layout

# What says where and on which screen we run, not what is built.
_ELSEWHERE = re.compile(
    r"_|PWD|OLDPWD|SHLVL|COLUMNS|LINES|(COLOR)?TERM(_\w+)?|TMUX\w*|STY|WINDOWID|SSH_\w+|XDG_SESSION_\w+|DISPLAY"
    r"|PYTEST_\w+|NOX_\w+"
)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_EXACT_VERSION = re.compile(r"\d+(\.\d+)+(\.dev\d{8})?")
_IGNORED = "__pycache__"
_KEPT = 16  # notes of other command lines and environments

Stat = list[int] | None
State = dict[str, Stat]


@dataclass(frozen=True)
class Note:
    """What a run that ended well had to say."""

    summary: tuple[str, ...]
    facts: Mapping[str, Any]
    when: str


class Watch:
    """The note of one command line: make it before the run, `keep` it after.

    `options` are the command line's, by name. `overrides` maps fetched sources to what replaces them.
    `bundle` is what a run takes everything from: while it is unchanged, doing nothing reads nothing of it.
    """

    def __init__(
        self,
        layout: Layout,
        recipe: str,
        options: Mapping[str, Any],
        overrides: Mapping[str, str],
        bundle: Path | None = None,
    ) -> None:
        self._layout = layout
        self._inputs = _inputs(layout)
        place = bundle.absolute() if bundle is not None else None
        self._inputs += [place] if place is not None else []
        self._watchable = options.get("torch") is None or _EXACT_VERSION.fullmatch(str(options["torch"]))
        for text in overrides.values():
            paths = _override(text)
            self._inputs += paths
            self._watchable = self._watchable and (bool(paths) or _COMMIT.fullmatch(text))
        environment = {key: value for key, value in os.environ.items() if not _ELSEWHERE.fullmatch(key)}
        words = [sys.executable, recipe, dict(options), dict(overrides), place, environment, _packages()]
        key = hashlib.sha256(json.dumps(words, sort_keys=True, default=str).encode()).hexdigest()
        self._path = layout.work / recipe / "up-to-date" / f"{key[:20]}.json"

    @cached_property
    def _before(self) -> State:
        return state(self._inputs)

    def note(self) -> Note | None:
        """The last run's note, if all that it read and left is as it was; else None."""
        before = self._before
        if not self._watchable:
            return None
        try:
            kept = json.loads(self._path.read_text("utf-8"))
            if kept["inputs"] != before or state(map(Path, kept["watched"])) != kept["outputs"]:
                return None
            return Note(tuple(kept["summary"]), kept["facts"], kept["when"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def keep(self, watched: Sequence[Path], summary: Sequence[str], facts: Mapping[str, Any]) -> None:
        """Keep a note of a run that ended well and left `watched`, unless its inputs changed meanwhile."""
        if not self._watchable or state(self._inputs) != self._before:
            return
        document = {
            "inputs": self._before,
            "watched": [str(path) for path in watched],
            "outputs": state(watched),
            "summary": list(summary),
            "facts": facts,
            "when": time.strftime("%Y-%m-%d %H:%M:%S"),
        }
        files.write_atomic(self._path, json.dumps(document, default=str))
        others = sorted(self._path.parent.glob("*.json"), key=lambda path: -path.stat().st_mtime_ns)
        for path in others[_KEPT:]:
            path.unlink(missing_ok=True)


def state(paths: Iterable[Path]) -> State:
    """Mode, size, time and inode of files, and of all in directories; None for what is not there."""
    found: State = {}
    for path in paths:
        top = os.fspath(path)
        facts = _stat(top)
        if not os.path.isdir(top):  # noqa: PTH112 - thousands of files on the way to doing nothing
            found[top] = facts
            continue
        for folder, folders, names in os.walk(top):
            folders[:] = [name for name in folders if name != _IGNORED]
            for name in names:
                file = f"{folder}/{name}"
                found[file] = _stat(file)
    return found


def _stat(path: str) -> Stat:
    try:
        facts = os.stat(path)  # noqa: PTH116 - see above
    except OSError:
        return None
    return [facts.st_mode, facts.st_size, facts.st_mtime_ns, facts.st_ino]


def _inputs(layout: Layout) -> list[Path]:
    """What every run reads of this checkout and this host, before it knows what its recipe says."""
    found = [layout.recipes, layout.patches, Path(__file__).parent, layout.root / ".sglwheel.toml"]
    for name in ("SGLWHEEL_CONFIG", "SGLWHEEL_MIRRORS"):
        text = os.environ.get(name, "").strip()
        if text and "=" not in text:
            found.append(files.expanded(text))
    # Whether there is a GPU decides what the smoke test does.
    return [*found, Path("/dev/nvidiactl")]


def _override(text: str) -> list[Path]:
    """What of an override may change by itself: a directory, or the refs of a repository."""
    place, at, revision = text.rpartition("@")
    if files.expanded(text).is_dir():
        return [files.expanded(text)]
    if not at or not files.expanded(place).is_dir():
        return []
    base = files.expanded(place)
    if _COMMIT.fullmatch(revision):
        return [base / "HEAD"]
    return [folder / name for folder in (base, base / ".git") for name in ("HEAD", "packed-refs", "refs")]


def _packages() -> list[str]:
    """The tool's own environment, by the names of what is installed."""
    site = sysconfig.get_path("purelib")
    try:
        return sorted(name for name in os.listdir(site) if name.endswith(".dist-info"))  # noqa: PTH208
    except OSError:
        return []
