"""Hold a wheelhouse against what it promises: every byte, every link, nothing missing, nothing strange."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sglwheel import files, programs
from sglwheel.errors import WheelhouseError
from sglwheel.wheelhouse import index, linerecord, listings, noted, results, subindexes
from sglwheel.wheelhouse.house import Wheelhouse
from sglwheel.wheelhouse.mending import mend
from sglwheel.wheelhouse.noted import Notes
from sglwheel.wheelhouse.record import Record
from sglwheel.wheelhouse.settle import settle

# Hashing releases the GIL; more readers than this only make a disk seek.
_READERS = 4
# Releases that a reader takes at once: handing over each cost more than looking at it.
_BATCH = 16


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
    house.demand()
    with house.locked():
        look = _Look(house)
        findings = look.all(progress)
        if repair and findings:
            for finding in findings:
                mend(house, look.records, finding.rule, house.root / finding.file)
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
        self.notes = Notes()
        # What is wrong with a file that is derived from the releases.
        self.unlike = "is not what the releases say"
        # Wheels that were read, so that their other names need not be: id → device and inode.
        self.read: dict[str, tuple[int, int]] = {}

    def all(self, progress: Callable[[int, int], None] | None) -> list[Finding]:
        self.records, self.read, self.bytes_read = {}, {}, 0
        self.notes = Notes.read(self.house.notes)
        if not index.stamped(self.house):
            # As after an update of the tool: nobody touched it.
            self.unlike = "is not what this version of the tool writes"
        found = list(self._strangers())
        ids = self.house.ids()
        batches = [ids[start : start + _BATCH] for start in range(0, len(ids), _BATCH)]
        done = 0
        with ThreadPoolExecutor(_READERS) as pool:
            for batch in pool.map(lambda batch: [self._release(id) for id in batch], batches):
                for record, findings in batch:
                    found += findings
                    if record:
                        self.records[record.id] = record
                        self.bytes_read += record.size
                done += len(batch)
                if progress:
                    progress(done, len(ids))
        found += self._flat()
        if len(self.records) == len(ids):
            found += self._derived()
        return found

    def _finding(self, rule: str, path: Path | str, detail: str) -> Finding:
        return Finding(rule, os.path.relpath(path, self.house.root), detail)

    def _symlink(self, path: str) -> Finding:
        target = Path(path).readlink()
        return self._finding("symlink", path, f"points to {target}: links would be followed out of here")

    def _strangers(self) -> Iterator[Finding]:
        root = self.house.root
        for entry in _entries(root):
            if entry.is_symlink():
                yield self._symlink(entry.path)
        for path in [*root.glob("lines/**/*"), *root.glob("simple/**/*")]:
            if path.is_symlink():
                yield self._symlink(str(path))
        for entry in _entries(self.house.builds):
            if entry.is_symlink():
                yield self._symlink(entry.path)
            elif entry.name.startswith("."):
                yield self._finding("leftover", entry.path, "a publisher died here")
            elif not entry.is_dir():
                yield self._finding("orphan", entry.path, "not a release")
        if self.house.in_flight():
            yield Finding("interrupted", ".state/journal.json", ", ".join(self.house.in_flight()))

    def _release(self, id: str) -> tuple[Record | None, list[Finding]]:
        try:
            record, text = self.house.read_text(id)
        except WheelhouseError as error:
            return None, [self._finding("record", self.house.builds / id / "release.json", error.what)]
        if id in self.notes and self.notes[id].key != noted.key(text, index.stamp()):
            # Of an earlier record, or of templates that changed.
            del self.notes[id]
        return record, list(self._contents(id, record))

    def _contents(self, id: str, record: Record) -> Iterator[Finding]:
        # Plain text: paths as objects cost as much as reading these small files.
        home = f"{self.house.builds}/{id}"
        entries = {entry.name: entry for entry in _entries(home)}
        expected = {"release.json", "index.html", "simple", "requirements.txt"}
        if not record.removed:
            wheel = record.filename
            expected |= {wheel, f"{wheel}.metadata", f"{wheel}.sig"}
            if wheel in entries:
                self.read[id] = _identity(entries[wheel])
            yield from self._bytes(f"{home}/{wheel}", record.sha256, "wheel")
            yield from self._bytes(f"{home}/{wheel}.metadata", record.metadata_sha256, "metadata")
        for kind in results.KINDS:
            name = results.name(record, kind)
            expected.add(name)
            if name in entries or kind in results.PUBLISHED:
                yield from self._result(f"{home}/{name}", record)
        yield from self._subindex(home, record)
        for name in entries.keys() - expected:
            yield self._finding("orphan", f"{home}/{name}", "nobody of us wrote it")
        for entry in entries.values():
            if entry.is_symlink():
                yield self._symlink(entry.path)

    def _result(self, path: str, record: Record) -> Iterator[Finding]:
        try:
            good = results.is_about(files.read(path), record)
        except FileNotFoundError:
            yield self._finding("result", path, "missing")
            return
        except OSError:
            good = False
        if not good:
            yield self._finding("result", path, "is not about this wheel")

    def _subindex(self, home: str, record: Record) -> Iterator[Finding]:
        known = self.notes[record.id].files if record.id in self.notes else {}
        as_noted = {name for name, sha256 in known.items() if _is(f"{home}/{name}", sha256)}
        if as_noted >= subindexes.subindex_names(record.project):
            return
        for name, text in subindexes.subindex(record).items():
            if not _is(f"{home}/{name}", files.digest(text)):
                yield self._finding("derived", f"{home}/{name}", self.unlike)

    def _bytes(self, path: str, sha256: str, rule: str) -> Iterator[Finding]:
        try:
            seen = files.sha256(path)
        except OSError as error:
            yield self._finding(rule, path, error.strerror or str(error))
            return
        if seen != sha256:
            yield self._finding(rule, path, f"sha256 is {seen}, published was {sha256}")

    def _flat(self) -> Iterator[Finding]:
        shown = {record.filename: record for record in self.records.values() if record.available}
        for entry in sorted(_entries(self.house.root), key=lambda entry: entry.name):
            if not entry.name.endswith(".whl"):
                continue
            record = shown.pop(entry.name, None)
            if record is None:
                yield self._finding("orphan", entry.path, "no available release has this file")
            elif not entry.is_symlink() and self.read.get(record.id) != _identity(entry):
                yield from self._bytes(entry.path, record.sha256, "flat")
        for name in sorted(shown):
            yield self._finding("flat", self.house.root / name, "missing")

    def _derived(self) -> Iterator[Finding]:
        house = self.house
        try:
            lines = linerecord.load_all(house)
        except WheelhouseError as error:
            yield Finding("line", error.where.get("file", "lines"), error.what)
            lines = {}
        texts: dict[Path, str | bytes] = {house.root / name: programs.packed(name) for name in programs.ALL}
        for name, pointer in lines.items():
            gone = [id for id in pointer.members if id not in self.records or not self.records[id].available]
            home = linerecord.directory(house, name)
            if gone:
                yield self._finding("line", home / "line.json", f"points to {', '.join(gone)}")
                continue
            members = [self.records[id] for id in pointer.members]
            for part, text in index.line_files(name, members).items():
                texts[home / part] = text
            there = {entry.name: entry for entry in _entries(home)}
            for record in members:
                entry = there.get(record.filename)
                if entry is None or self.read.get(record.id) != _identity(entry):
                    yield from self._bytes(f"{home}/{record.filename}", record.sha256, "line")
        wrong = [path for path, wanted in texts.items() if not _says(path, wanted)]
        wrong += self._documents(lines.values())
        for path in wrong:
            yield self._finding("derived", path, self.unlike)

    def _documents(self, lines: Iterable[linerecord.Pointer]) -> Iterator[Path]:
        """Those of the documents with a line for each release that do not say what they should."""
        ordered = sorted(self.records.values(), key=Record.order)
        projects = sorted({record.project for record in ordered})
        for document in listings.documents(self.house.root, projects, lines):
            try:
                there = document.path.read_bytes().decode()
            except (OSError, UnicodeDecodeError):
                yield document.path
                continue
            name = str(document.path.relative_to(self.house.root))
            wanted = self.notes.believing(document, name, there)
            if wanted.whole(record for record in ordered if document.holds(record)) != there:
                yield document.path


def _entries(directory: Path | str) -> list[os.DirEntry[str]]:
    """What lies in a directory, or nothing where there is none."""
    try:
        with os.scandir(directory) as entries:
            return list(entries)
    except FileNotFoundError:
        return []


def _identity(entry: os.DirEntry[str]) -> tuple[int, int]:
    """Device and inode of what lies there itself, not of what it points to."""
    facts = entry.stat(follow_symlinks=False)
    return facts.st_dev, facts.st_ino


def _is(path: str, sha256: str) -> bool:
    try:
        return files.sha256(path) == sha256
    except OSError:
        return False


def _says(path: Path, wanted: str | bytes) -> bool:
    try:
        return path.read_bytes() == (wanted.encode() if isinstance(wanted, str) else wanted)
    except OSError:
        return False
