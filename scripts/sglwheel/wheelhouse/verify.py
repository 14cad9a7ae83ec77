"""Hold a wheelhouse against what it promises: every byte, every link, nothing missing, nothing strange."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sglwheel import files, programs
from sglwheel.errors import WheelhouseError
from sglwheel.wheelhouse import index, noted, pointers
from sglwheel.wheelhouse.house import Wheelhouse
from sglwheel.wheelhouse.links import copy_synced
from sglwheel.wheelhouse.record import Record
from sglwheel.wheelhouse.settle import settle

# Hashing releases the GIL; more readers than this only make a disk seek.
_READERS = 4
_RESULTS = ("inspection", "smoke", "provenance", "gpu")


@dataclass(frozen=True)
class Finding:
    """Something that is not as it should be, and whether `repair` put it right."""

    rule: str
    file: str
    detail: str
    repaired: bool = False


@dataclass(frozen=True)
class Verification:
    """What a look at everything found."""

    releases: int
    bytes_read: int
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        return all(finding.repaired for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "ok": self.ok, "findings": [vars(finding) for finding in self.findings]}


def verify(
    house: Wheelhouse, *, repair: bool = False, progress: Callable[[int, int], None] | None = None
) -> Verification:
    """Check every hash, link, record and derived file.

    `repair` makes derived files again, restores a wheel or record from its other copy, and puts what does not
    belong into `.state/quarantine/`: it deletes nothing. Raises WheelhouseError where there is no wheelhouse.
    """
    if not house.builds.is_dir():
        raise WheelhouseError("no wheelhouse here", where={"directory": str(house.root)})
    with house.locked():
        look = _Look(house)
        findings = look.all(progress)
        if repair and findings:
            for finding in findings:
                look.mend(finding)
            with house.transaction():
                settle(house, fresh=True)
            again = {(finding.rule, finding.file) for finding in look.all(None)}
            findings = [replace(item, repaired=(item.rule, item.file) not in again) for item in findings]
    return Verification(len(look.records), look.bytes_read, tuple(findings))


class _Look:
    def __init__(self, house: Wheelhouse) -> None:
        self.house = house
        self.records: dict[str, Record] = {}
        self.bytes_read = 0
        self.notes: noted.Notes = {}

    def all(self, progress: Callable[[int, int], None] | None) -> list[Finding]:
        self.records, self.bytes_read = {}, 0
        self.notes = noted.read(self.house.notes)
        found = list(self._strangers())
        ids = self.house.ids()
        with ThreadPoolExecutor(_READERS) as pool:
            for done, (record, findings) in enumerate(pool.map(self._release, ids), start=1):
                found += findings
                if record:
                    self.records[record.id] = record
                    self.bytes_read += record.size
                if progress:
                    progress(done, len(ids))
        found += self._flat()
        if len(self.records) == len(ids):
            found += self._derived()
        return found

    def _finding(self, rule: str, path: Path, detail: str) -> Finding:
        return Finding(rule, str(path.relative_to(self.house.root)), detail)

    def _symlink(self, path: Path) -> Finding:
        return self._finding(
            "symlink", path, f"points to {path.readlink()}: links would be followed out of here"
        )

    def _strangers(self) -> Iterator[Finding]:
        root = self.house.root
        for path in [*root.iterdir(), *root.glob("lines/*")]:
            if path.is_symlink():
                yield self._symlink(path)
        for path in self.house.builds.iterdir():
            if path.is_symlink():
                yield self._symlink(path)
            elif path.name.startswith("."):
                yield self._finding("leftover", path, "a publisher died here")
            elif not path.is_dir():
                yield self._finding("orphan", path, "not a release")
        if self.house.in_flight():
            yield Finding("interrupted", ".state/journal.json", ", ".join(self.house.in_flight()))

    def _release(self, id: str) -> tuple[Record | None, list[Finding]]:
        home = self.house.builds / id
        try:
            record = self.house.read(id)
        except WheelhouseError as error:
            return None, [self._finding("record", home / "release.json", error.what)]
        return record, list(self._contents(home, record))

    def _contents(self, home: Path, record: Record) -> Iterator[Finding]:
        wheel = home / record.filename
        expected = {
            "release.json",
            "index.html",
            "simple",
            "requirements.txt",
            *(f"{record.filename}.{kind}.json" for kind in _RESULTS),
        }
        if not record.removed:
            expected |= {record.filename, f"{record.filename}.metadata", f"{record.filename}.sig"}
            yield from self._bytes(wheel, record.sha256, "wheel")
            yield from self._bytes(home / f"{record.filename}.metadata", record.metadata_sha256, "metadata")
        for kind in _RESULTS:
            path = home / f"{record.filename}.{kind}.json"
            try:
                about = json.loads(path.read_bytes())["wheel_sha256"]
            except FileNotFoundError:
                if kind != "gpu":
                    yield self._finding("result", path, "missing")
                continue
            except (OSError, ValueError, KeyError, TypeError):
                about = None
            if about != record.sha256:
                yield self._finding("result", path, "is not about this wheel")
        yield from self._subindex(home, record)
        with os.scandir(home) as entries:
            for entry in entries:
                if entry.is_symlink():
                    yield self._symlink(home / entry.name)
                elif entry.name not in expected:
                    yield self._finding("orphan", home / entry.name, "nobody of us wrote it")

    def _subindex(self, home: Path, record: Record) -> Iterator[Finding]:
        key, hashes = self.notes.get(record.id, ("", {}))
        if key != noted.key(record, index.stamp()):
            hashes = {}
        if hashes and all(self._is(home / name, sha256) for name, sha256 in hashes.items()):
            return
        for name, text in index.subindex(record).items():
            if not self._is(home / name, files.digest(text)):
                yield self._finding("derived", home / name, "is not what the releases say")

    @staticmethod
    def _is(path: Path, sha256: str) -> bool:
        try:
            return files.sha256(path) == sha256
        except OSError:
            return False

    def _bytes(self, path: Path, sha256: str, rule: str) -> Iterator[Finding]:
        try:
            seen = files.sha256(path)
        except OSError as error:
            yield self._finding(rule, path, error.strerror or str(error))
            return
        if seen != sha256:
            yield self._finding(rule, path, f"sha256 is {seen}, published was {sha256}")

    def _flat(self) -> Iterator[Finding]:
        shown = {record.filename: record for record in self.records.values() if record.available}
        for path in sorted(self.house.root.glob("*.whl")):
            record = shown.pop(path.name, None)
            if record is None:
                yield self._finding("orphan", path, "no available release has this file")
            elif not path.is_symlink():
                home = self.house.builds / record.id / record.filename
                if not (home.is_file() and path.samefile(home)):
                    yield from self._bytes(path, record.sha256, "flat")
        for name in sorted(shown):
            yield self._finding("flat", self.house.root / name, "missing")

    def _derived(self) -> Iterator[Finding]:
        house = self.house
        ordered = sorted(self.records.values(), key=Record.order)
        try:
            lines = pointers.load_all(house)
        except WheelhouseError as error:
            yield Finding("line", error.where.get("file", "lines"), error.what)
            lines = {}
        texts: dict[Path, str | bytes] = {house.root / name: programs.packed(name) for name in programs.ALL}
        texts |= {
            document.path: text for document, text in index.whole_documents(house, ordered, lines.values())
        }
        for name, pointer in lines.items():
            gone = [id for id in pointer.members if id not in self.records or not self.records[id].available]
            home = pointers.directory(house, name)
            if gone:
                yield self._finding("line", home / "line.json", f"points to {', '.join(gone)}")
                continue
            members = [self.records[id] for id in pointer.members]
            for part, text in index.line_files(name, members).items():
                texts[home / part] = text
            for record in members:
                yield from self._bytes(home / record.filename, record.sha256, "line")
        for path, wanted in texts.items():
            try:
                same = path.read_bytes() == (wanted.encode() if isinstance(wanted, str) else wanted)
            except OSError:
                same = False
            if not same:
                yield self._finding("derived", path, "is not what the releases say")

    def mend(self, finding: Finding) -> None:
        """What making derived files again does not put right."""
        path = self.house.root / finding.file
        if finding.rule in ("orphan", "leftover", "symlink"):
            self._quarantine(path)
        elif finding.rule == "wheel":
            self._restore(path)
        elif finding.rule == "flat":
            # A broken copy goes; settling links the wheel again.
            self._quarantine(path)
        elif finding.rule == "record":
            self._record(path)
        elif finding.rule == "line" and path.suffix == ".whl":
            self._quarantine(path)

    def _quarantine(self, path: Path) -> None:
        if path.exists() or path.is_symlink():
            target = self.house.quarantine / path.relative_to(self.house.root)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(path, target.with_name(f"{target.name}.{len(list(target.parent.iterdir()))}"))

    def _restore(self, path: Path) -> None:
        """Bring a damaged wheel back from a copy of it that is whole."""
        record = self.records[path.parent.name]
        for copy in [self.house.flat(record), *self.house.root.glob(f"lines/*/{record.filename}")]:
            if copy.is_file() and not copy.is_symlink() and files.sha256(copy) == record.sha256:
                temporary = path.with_name(f".{path.name}.restored")
                copy_synced(copy, temporary)
                self._quarantine(path)
                temporary.replace(path)
                return

    def _record(self, path: Path) -> None:
        """Bring a damaged record back from the catalogue, if the wheel that it speaks of is there."""
        for record in self.house.cached().values():
            wheel = path.parent / record.filename
            if record.id == path.parent.name and wheel.is_file() and files.sha256(wheel) == record.sha256:
                files.write_atomic(path, record.to_json())
