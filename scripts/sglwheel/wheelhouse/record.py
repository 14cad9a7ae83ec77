"""What the wheelhouse knows of each release: one small file, read back as a frozen value."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
from packaging.utils import canonicalize_name
from packaging.version import VERSION_PATTERN, Version
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from sglwheel.errors import WheelhouseError
from sglwheel.wheelhouse.wheelfile import WheelFile, release_id

Status = Literal["candidate", "release"]
# To parse it costs as much as all else in a record.
_VERSION = re.compile(rf"\s*{VERSION_PATTERN}\s*", re.VERBOSE | re.IGNORECASE)
_Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Event(_Table):
    """One line of a release's life."""

    when: AwareDatetime
    what: Literal["published", "promoted", "yanked", "unyanked", "removed", "restored"]
    detail: str = ""


class Record(_Table):
    """`builds/<id>/release.json`: the facts of a release and where it stands in its life."""

    schema_: Literal[1] = Field(1, alias="schema")
    # The order of publishing; clocks of several builders are not one.
    serial: int = 0
    filename: str
    name: str
    version: str
    tag: str
    sha256: _Digest
    size: int
    metadata_sha256: _Digest
    # Over the wheel's RECORD: a node can compute it again from what is installed.
    contents_sha256: str = ""
    requires_python: str | None = None
    requires_dist: tuple[str, ...] = ()
    requires_torch: str | None = None
    marked: tuple[str, ...] = ()
    kind: str = "kernels"
    recipe: str | None = None
    line: str | None = None
    cuda: str | None = None
    architectures: tuple[str, ...] = ()
    upstream: str | None = None
    patches: tuple[tuple[str, str], ...] = ()
    checks: tuple[tuple[str, str], ...] = ()
    built_with: tuple[tuple[str, str], ...] = ()
    status: Status = "candidate"
    yanked: str | None = None
    removed: bool = False
    events: tuple[Event, ...] = ()

    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True)

    @pydantic.model_validator(mode="after")
    def _names(self) -> Record:
        # The file name becomes paths and links, so a record edited by hand must not smuggle in another.
        if "/" in self.filename or "\\" in self.filename or not self.filename.endswith(".whl"):
            raise ValueError(f"filename {self.filename!r} is not a wheel's")
        if not _VERSION.fullmatch(self.version):
            raise ValueError(f"version {self.version!r} is not one")
        return self

    @property
    def id(self) -> str:
        return release_id(self.filename)

    @property
    def project(self) -> str:
        """The normalized name, as PEP 503 has it in urls."""
        return str(canonicalize_name(self.name))

    @property
    def published(self) -> datetime:
        return self.events[0].when if self.events else datetime.fromtimestamp(0, UTC)

    @property
    def available(self) -> bool:
        """Whether resolvers may find it without being told its exact name."""
        return self.yanked is None and not self.removed

    @property
    def shown(self) -> str:
        """The one word that people read first."""
        return "yanked" if self.yanked is not None else self.status

    @property
    def promoted(self) -> bool:
        """Whether a GPU report came after publishing, in a file of its own."""
        return any(event.what == "promoted" for event in self.events)

    @property
    def public(self) -> str:
        """The version without its local part: what SGLang asks for."""
        return self.version.partition("+")[0]

    @property
    def local(self) -> str:
        return self.version.partition("+")[2]

    @property
    def platform(self) -> str:
        """`x86_64`."""
        tag = self.tag.rpartition("-")[2].partition(".")[0]
        return next((machine for machine in ("x86_64", "aarch64") if tag.endswith(machine)), tag)

    @property
    def alone(self) -> bool:
        """Whether it is of Python alone, and so installed without its requirements."""
        return self.kind == "python"

    @property
    def parsed(self) -> Version:
        return Version(self.version)

    def order(self) -> tuple[int, str]:
        """Oldest first, the same on every host."""
        return self.serial, self.filename

    def with_event(self, what: str, detail: str = "", **changes: Any) -> Record:
        """The record after something happened to the release."""
        when = now(event.when for event in self.events)
        event = Event(when=when, what=what, detail=detail)  # type: ignore[arg-type]
        return self.model_copy(update={**changes, "events": (*self.events, event)})

    def to_json(self) -> str:
        return self.model_dump_json(by_alias=True, indent=1) + "\n"

    @classmethod
    def parse(cls, text: str | bytes, *, where: Path) -> Record:
        """Raises WheelhouseError for what somebody's editor left behind."""
        try:
            return cls.model_validate_json(text)
        except pydantic.ValidationError as error:
            first = error.errors(include_url=False)[0]
            said = first["msg"].removeprefix("Value error, ")
            raise WheelhouseError(
                f"a release's record is damaged: {': '.join([*map(str, first['loc']), said])}",
                where={"file": str(where)},
                next="sglwheel wheelhouse verify --repair",
            ) from None

    @classmethod
    def of(
        cls,
        wheel: WheelFile,
        *,
        metadata_sha256: str,
        gpu_checked: bool,
        requires_torch: str | None,
        marked: tuple[str, ...] = (),
        checks: tuple[tuple[str, str], ...] = (),
        extra: Mapping[str, Any] | None = None,
    ) -> Record:
        """The record of a wheel that is being published. An overridden source never makes a release."""
        record = cls(
            filename=wheel.filename,
            name=wheel.name,
            version=str(wheel.version),
            tag=wheel.tag,
            sha256=wheel.sha256,
            size=wheel.size,
            metadata_sha256=metadata_sha256,
            contents_sha256=wheel.contents_sha256,
            requires_python=wheel.requires_python,
            requires_dist=wheel.requires_dist,
            requires_torch=requires_torch,
            marked=marked,
            checks=checks,
            status="release" if gpu_checked and not marked else "candidate",
            **(extra or {}),
        )
        return record.with_event("published", record.status)


def rivals(record: Record) -> tuple[str, ...]:
    """Other distributions that own the same files; a node must not have both."""
    both = {"sgl-kernel", "sglang-kernel"}
    return tuple(sorted(both - {record.project})) if record.project in both else ()


def now(after: Iterable[datetime] = ()) -> datetime:
    """The time to write down: whole seconds, and never before what was written down already."""
    return max([datetime.now(UTC).replace(microsecond=0), *after])


@dataclass(frozen=True)
class Release:
    """A published wheel: where it lies, what it is, and the line that installs it."""

    root: Path
    record: Record

    @property
    def id(self) -> str:
        return self.record.id

    @property
    def directory(self) -> Path:
        return self.root / "builds" / self.record.id

    @property
    def path(self) -> Path:
        """The wheel itself."""
        return self.directory / self.record.filename

    @property
    def status(self) -> Status:
        return self.record.status

    @property
    def sha256(self) -> str:
        return self.record.sha256

    @property
    def install_line(self) -> str:
        """What a node runs."""
        from sglwheel.wheelhouse.lines import Lines

        return Lines(self.record, str(self.root.absolute())).uv
