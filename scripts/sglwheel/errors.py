"""One exception root, one exit code for each stage that can fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar


class SglwheelError(Exception):
    """A failure that a user can act on: what failed, where, and the next command.

    `where` holds lines such as ``{"file": "recipes/x.toml:3"}``; the command line prints them in order.
    """

    exit_code: ClassVar[int] = 1

    def __init__(
        self,
        what: str,
        *,
        where: dict[str, str] | None = None,
        next: str | None = None,
        log: Path | None = None,
    ) -> None:
        super().__init__(what)
        self.what = what
        self.where = dict(where or {})
        self.next = next
        self.log = log

    def to_json(self) -> dict[str, Any]:
        """The error for scripts: `{"error": {"what", "where", "next", "log", "exit-code"}}`."""
        facts = {"what": self.what, "where": self.where, "next": self.next, "log": self.log}
        return {"error": facts | {"exit-code": self.exit_code}}


class UsageError(SglwheelError):
    """The command line or a recipe is wrong."""

    exit_code = 2


class SourceError(SglwheelError):
    """The upstream or one of its dependencies cannot be had, or is not what its id says."""

    exit_code = 3


class PatchError(SglwheelError):
    """A patch does not apply, is malformed, or proves nothing."""

    exit_code = 4


class ToolchainError(SglwheelError):
    """Torch, the CUDA toolkit, a compiler or a host resource is missing or does not fit."""

    exit_code = 5


class HostLacksError(ToolchainError):
    """This host lacks something that another has: nothing is said of the toolchain that was asked for."""


class BuildError(SglwheelError):
    """Configuring, compiling or packing failed."""

    exit_code = 6


class InspectionError(SglwheelError):
    """The wheel is not what its recipe says, or would not load."""

    exit_code = 7


class SmokeError(SglwheelError):
    """The wheel does not import or does not do what it should."""

    exit_code = 8


class WheelhouseError(SglwheelError):
    """Publishing, or installing what was published, failed."""

    exit_code = 9


class DoctorError(SglwheelError):
    """This host lacks something."""

    exit_code = 10


class Interrupted(SglwheelError):  # noqa: N818  not a fault: the user asked for it
    """The user or the system ended the run; the next run continues."""

    exit_code = 130
