"""FetchContent declarations: what a CMake project fetches, and what it reads of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sglwheel.errors import SourceError
from sglwheel.source.fetchcontent.cmake import UNKNOWN

_NAME = re.compile(r"[a-z0-9_][a-z0-9_.+-]*")
_KEYWORDS = frozenset(
    {
        "BINARY_DIR", "CVS_REPOSITORY", "DOWNLOAD_COMMAND", "DOWNLOAD_DIR", "DOWNLOAD_EXTRACT_TIMESTAMP",
        "DOWNLOAD_NAME", "DOWNLOAD_NO_EXTRACT", "DOWNLOAD_NO_PROGRESS", "EXCLUDE_FROM_ALL",
        "FIND_PACKAGE_ARGS", "GIT_CONFIG", "GIT_PROGRESS", "GIT_REMOTE_NAME",
        "GIT_REMOTE_UPDATE_STRATEGY", "GIT_REPOSITORY", "GIT_SHALLOW", "GIT_SUBMODULES",
        "GIT_SUBMODULES_RECURSE", "GIT_TAG", "HG_REPOSITORY", "HG_TAG", "HTTP_HEADER",
        "INACTIVITY_TIMEOUT", "LOG_DOWNLOAD", "OVERRIDE_FIND_PACKAGE", "PATCH_COMMAND", "PREFIX", "QUIET",
        "SOURCE_DIR", "SOURCE_SUBDIR", "SUBBUILD_DIR", "SVN_REPOSITORY", "SVN_REVISION", "SYSTEM",
        "TIMEOUT", "TLS_CAINFO", "TLS_VERIFY", "UPDATE_COMMAND", "UPDATE_DISCONNECTED", "URL", "URL_HASH",
        "URL_MD5", "USES_TERMINAL_DOWNLOAD",
    }
)  # fmt: skip


@dataclass(frozen=True)
class Declaration:
    """One `FetchContent_Declare`, with its name in lower case as CMake has it."""

    name: str
    kind: str
    urls: tuple[str, ...]
    requested: str
    """GIT_TAG, or `SHA256=<hex>` of a URL; empty where nothing is pinned."""
    submodules: tuple[str, ...] | None
    """GIT_SUBMODULES; None where the build says nothing."""
    subdirectory: str
    where: str

    @property
    def url(self) -> str:
        return self.urls[0]


@dataclass(frozen=True)
class Plan:
    """Every source that a configure run may populate, and what it reads of each."""

    declarations: tuple[Declaration, ...]
    references: Mapping[str, frozenset[str]]
    """Paths inside each source; globs are cut to their directory, `.` is the source itself."""
    projects: frozenset[str]
    """Sources whose own CMakeLists.txt takes part."""


class Tree(Protocol):
    """Files of a project, wherever they lie."""

    def read(self, path: str) -> str | None:
        """A file's text; None if there is none."""


@dataclass(frozen=True)
class LocalTree:
    """A directory."""

    root: Path

    def read(self, path: str) -> str | None:
        file = self.root / path
        return file.read_text("utf-8", "replace") if file.is_file() else None


def parse_declaration(values: list[str], where: str) -> Declaration:
    """Read the arguments of `FetchContent_Declare`. Raises SourceError for what cannot be fetched ahead."""
    name = values[0].lower()
    if not _NAME.fullmatch(name):
        raise SourceError(f"{values[0]!r} cannot be the name of a source", where={"file": where})
    fields: dict[str, list[str]] = {}
    current: list[str] = []
    for value in values[1:]:
        if value in _KEYWORDS:
            current = fields.setdefault(value, [])
        else:
            current.append(value)
    problem = None
    if "PATCH_COMMAND" in fields or "DOWNLOAD_COMMAND" in fields:
        problem = "runs a command of its own after the download, which a source that we hand over skips"
    elif "GIT_REPOSITORY" not in fields and not fields.get("URL"):
        problem = "has neither GIT_REPOSITORY nor URL"
    elif any(
        UNKNOWN in item
        for key in ("GIT_REPOSITORY", "GIT_TAG", "URL", "URL_HASH")
        for item in fields.get(key, ())
    ):
        problem = "has an address that is known to CMake alone"
    if problem:
        raise SourceError(
            f"{values[0]} {problem}",
            where={"file": where},
            next="decide it under [build.cmake], or with a patch",
        )
    submodules = tuple(fields["GIT_SUBMODULES"]) if "GIT_SUBMODULES" in fields else None
    subdirectory = "".join(fields.get("SOURCE_SUBDIR", []))
    if fields.get("GIT_REPOSITORY"):
        tag = "".join(fields.get("GIT_TAG", [])) or "master"
        return Declaration(name, "git", (fields["GIT_REPOSITORY"][0],), tag, submodules, subdirectory, where)
    digest = "".join(fields.get("URL_HASH", []))
    if not digest and fields.get("URL_MD5"):
        digest = f"MD5={fields['URL_MD5'][0]}"
    return Declaration(name, "url", tuple(fields["URL"]), digest, None, subdirectory, where)
