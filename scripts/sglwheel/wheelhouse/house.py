"""The wheelhouse on disk: where things lie, the lock, and the journal that makes a change all or nothing.

A release *is* its directory `builds/<id>/`, which appears by one rename. Everything else (the flat links,
the catalogue, `simple/`, the page) is derived from it, and a journal names the releases in flight, so that
whoever takes the lock next finishes what a killed process began.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from sglwheel import files
from sglwheel.errors import WheelhouseError
from sglwheel.wheelhouse.links import link, same
from sglwheel.wheelhouse.record import Record, Release, now

_LOCK_PATIENCE_S = 600.0
_SERIAL = re.compile(r'"serial":(\d+)')
_PUBLISHED = re.compile(r'"when":"([0-9TZ:-]+)","what":"published"')
# What clocks of builders may differ by without anybody minding.
_CLOCKS_DIFFER = timedelta(hours=24)


class Wheelhouse:
    """A directory of releases. Methods that change it need the lock."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()

    def demand(self) -> None:
        """Raises WheelhouseError where nothing was ever published."""
        if not self.builds.is_dir():
            raise WheelhouseError(
                "no wheelhouse here",
                where={"directory": str(self.root)},
                next="name the right one (sglwheel wheelhouse --root), or mount it",
            )

    @property
    def builds(self) -> Path:
        return self.root / "builds"

    @property
    def catalogue(self) -> Path:
        """All records in one file: what scripts read, and our cache of `builds/*/release.json`."""
        return self.root / "releases.json"

    @property
    def stamp(self) -> Path:
        """Says by what the derived files were written."""
        return self._state / "stamp"

    @property
    def notes(self) -> Path:
        """What derived files should hash to."""
        return self._state / "derived.jsonl"

    @property
    def quarantine(self) -> Path:
        """Where repairing puts what it does not understand."""
        return self._state / "quarantine"

    @property
    def _state(self) -> Path:
        return self.root / ".state"

    @property
    def _journal(self) -> Path:
        return self._state / "journal.json"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Be the only process that changes this wheelhouse."""
        try:
            self._state.mkdir(parents=True, exist_ok=True)
            self.builds.mkdir(exist_ok=True)
        except OSError as error:
            raise _unusable(self.root, error) from error
        with files.locked(
            self._state / "lock",
            failure=WheelhouseError,
            what="the wheelhouse",
            timeout=_LOCK_PATIENCE_S,
            next="wait for the other publisher, or end it: its lock goes with it",
        ):
            try:
                yield
            except OSError as error:
                raise _unusable(self.root, error) from error

    @contextmanager
    def transaction(self, *ids: str) -> Iterator[None]:
        """Name the releases that are about to change, so that an interruption is noticed and healed."""
        known = self.in_flight()
        files.write_atomic(self._journal, json.dumps(sorted({*known, *ids})))
        yield
        self._journal.unlink()

    def in_flight(self) -> list[str]:
        """Releases of this transaction, and of those that somebody's death interrupted."""
        try:
            value = json.loads(self._journal.read_text())
        except (OSError, ValueError):
            return []
        return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []

    def read(self, id: str) -> Record:
        """The record of one release, from the release itself. Raises WheelhouseError."""
        return self.read_text(id)[0]

    def read_text(self, id: str) -> tuple[Record, bytes]:
        """The record of one release and the text that holds it. Raises WheelhouseError."""
        path = self.builds / id / "release.json"
        try:
            text = files.read(path)
        except OSError as error:
            raise WheelhouseError(
                f"no such release: {id}", where={"file": str(path)}, next="sglwheel wheelhouse list"
            ) from error
        record = Record.parse(text, where=path)
        if record.id != id:
            raise WheelhouseError(
                f"a release's record speaks of another release: {record.id}",
                where={"file": str(path)},
                next="sglwheel wheelhouse verify --repair",
            )
        return record, text

    def write(self, record: Record) -> None:
        files.write_atomic(self.builds / record.id / "release.json", record.to_json())

    def release(self, id: str) -> Release:
        return Release(self.root, self.read(id))

    def find(self, text: str) -> Release:
        """The one release that `text` names: an id, a file name, a version, a hash, or a unique part of one.

        Raises WheelhouseError with what comes near.
        """
        records = self.records()
        wanted = text.strip().rpartition("/")[2].removesuffix(".whl").replace("+", "_")
        if wanted in records:
            return self.release(wanted)
        exact = [
            id
            for id, record in records.items()
            if text == record.version or text == f"{record.name}=={record.version}"
        ]
        found = exact or [
            id
            for id, record in records.items()
            if wanted in id or (len(text) >= 8 and record.sha256.startswith(text.removeprefix("sha256:")))
        ]
        if len(found) == 1:
            return self.release(found[0])
        shown = "\n".join(sorted(found, reverse=True)[:8]) or "none"
        raise WheelhouseError(
            f"{text!r} names {len(found) or 'no'} release{'s' if len(found) != 1 else ''}",
            where={"wheelhouse": str(self.root), "found": shown},
            next="sglwheel wheelhouse list",
        )

    def ids(self) -> list[str]:
        """Every release on disk, also yanked ones; a look at one directory.

        A stray file or a link out of here is no release: `verify` speaks of it, and it stops nobody.
        """
        try:
            with os.scandir(self.builds) as entries:
                return sorted(
                    entry.name
                    for entry in entries
                    if not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False)
                )
        except FileNotFoundError:
            return []
        except OSError as error:
            raise _unusable(self.root, error) from error

    def next_serial(self) -> int:
        """Needs the lock. Raises WheelhouseError when this host's clock lags behind what was published."""
        try:
            listed = self.catalogue.read_text("utf-8")
        except (OSError, UnicodeDecodeError):
            listed = ""
        self._agree_on_time(listed)
        known = [int(number) for number in _SERIAL.findall(listed)]
        flight = [id for id in self.in_flight() if (self.builds / id).is_dir()]
        return 1 + max([*known, *(self.read(id).serial for id in flight)], default=0)

    @staticmethod
    def _agree_on_time(listed: str) -> None:
        # A release that seems old from its first day on is what gc removes.
        newest = max(_PUBLISHED.findall(listed), default="")
        here = now()
        if newest > (here + _CLOCKS_DIFFER).strftime("%Y-%m-%dT%H:%M:%SZ"):
            raise WheelhouseError(
                "this host's clock is in the past",
                where={"clock": here.strftime("%Y-%m-%d %H:%M:%S UTC"), "newest release": newest},
                next="set the clock (timedatectl), then publish again; nothing was published",
            )

    def records(self) -> dict[str, Record]:
        """All records: from the catalogue, except where journal or directory say that it is behind."""
        ids = self.ids()
        cached = self.cached()
        for id in self.in_flight():
            cached.pop(id, None)
        return {id: cached[id] if id in cached else self.read(id) for id in ids}

    def matching(self, line: str, public: str, build: str) -> list[Record]:
        """Records of a line's one generation, without parsing the whole catalogue."""
        try:
            listed = self.catalogue.read_text("utf-8").splitlines()
        except (OSError, UnicodeDecodeError):
            return list(self.records().values())
        needles = (f'"line":{json.dumps(line)}', f'"version":"{public}+', f'.{build}"')
        found = [item.rstrip(",") for item in listed if all(needle in item for needle in needles)]
        return [Record.parse(item, where=self.catalogue) for item in found]

    def cached(self) -> dict[str, Record]:
        """What the catalogue says, which may be old or damaged."""
        try:
            data = json.loads(self.catalogue.read_bytes())
            records = [Record.model_validate(item) for item in data["releases"]]
        except (OSError, ValueError, KeyError, TypeError):
            # Derived, so a damaged one is only slow.
            return {}
        return {record.id: record for record in records}

    def flat(self, record: Record) -> Path:
        """The wheel's name in the flat directory that `--find-links` reads."""
        return self.root / record.filename

    def expose(self, record: Record) -> None:
        """Make the flat directory show the wheel exactly when resolvers may find it. The caller syncs."""
        flat = self.flat(record)
        try:
            if record.removed:
                home = self.builds / record.id
                for suffix in ("", ".metadata", ".sig"):
                    (home / f"{record.filename}{suffix}").unlink(missing_ok=True)
            if not record.available:
                flat.unlink(missing_ok=True)
            elif not same(flat, self.builds / record.id / record.filename):
                link(self.builds / record.id / record.filename, flat)
        except OSError as error:
            raise _unusable(self.root, error) from error

    @contextmanager
    def staging(self, id: str) -> Iterator[Path]:
        """A directory that nobody sees; it goes away unless it is moved into place."""
        try:
            self.builds.mkdir(parents=True, exist_ok=True)
            temporary = self.builds / f".{id}.{os.getpid()}.{os.urandom(4).hex()}"
            temporary.mkdir()
        except OSError as error:
            raise _unusable(self.root, error) from error
        try:
            yield temporary
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _unusable(root: Path, error: OSError) -> WheelhouseError:
    return WheelhouseError(
        f"the wheelhouse cannot be used: {error.strerror or error}",
        where={"directory": str(root), **({"file": str(error.filename)} if error.filename else {})},
        next="see that it is there, writable and has room, then run the same command again",
    )


unusable = _unusable
