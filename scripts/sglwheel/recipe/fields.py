"""The types of a recipe's values: strings stop here."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Annotated, Any, TypeVar
from urllib.parse import urlsplit

import pydantic
from packaging.version import InvalidVersion, Version
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, PlainSerializer

from sglwheel.types import CommitId, CudaArch, CudaLine, parse_torch_version

# Computed by the tool, or able to load foreign code into compilers and Python: never a recipe's to set.
_RESERVED_ENVIRONMENT = re.compile(
    r"(LD_.*|DYLD_.*|PYTHON.*|PATH|HOME|TMPDIR|CUDA_HOME|CUDA_PATH|CUDACXX|CC|CXX|CUDAHOSTCXX|TORCH_CUDA_ARCH_LIST"
    r"|MAX_JOBS|NINJA_STATUS|MAKEFLAGS|CMAKE_.*|SKBUILD_.*|SOURCE_DATE_EPOCH|UV_.*|PIP_.*|GIT_.*|NVCC_.*"
    r"|CPATH|CPLUS_INCLUDE_PATH|LIBRARY_PATH|BASH_ENV|ENV|SGLWHEEL_.*)"
)
_RESERVED_CMAKE = re.compile(
    r"(FETCHCONTENT_.*|CMAKE_(CUDA|CXX|C)_COMPILER(_LAUNCHER)?|CMAKE_MAKE_PROGRAM|CMAKE_CUDA_ARCHITECTURES"
    r"|CMAKE_BUILD_TYPE|CMAKE_INSTALL_PREFIX|CMAKE_PROJECT_.*INCLUDE.*|CMAKE_TOOLCHAIN_FILE|SKBUILD_.*)"
)
IDENTIFIER = re.compile(r"[a-z0-9][a-z0-9._-]*")


def _via(parse: Callable[[str], Any]) -> BeforeValidator:
    def validate(value: Any) -> Any:
        if not isinstance(value, str):
            raise ValueError(f"must be a string, is {type(value).__name__}")
        return parse(value)

    return BeforeValidator(validate)


def _relative(text: str) -> str:
    path = PurePosixPath(text)
    if not text or path.is_absolute() or ".." in path.parts or "\\" in text or "\0" in text:
        raise ValueError(f"{text!r} must be a relative path inside the repository, without `..`")
    return text


def _identifier(text: str) -> str:
    if not IDENTIFIER.fullmatch(text) or ".." in text:
        raise ValueError(f"{text!r} must be lower-case letters, digits, `.`, `_`, `-`")
    return text


def _git_url(text: str) -> str:
    url = urlsplit(text)
    if url.scheme not in ("https", "file"):
        raise ValueError(f"{text!r}: only https:// and file:// (map others with a mirror)")
    if url.username or url.password:
        raise ValueError("the url holds credentials: leave them to git's credential helper")
    return text


def _version(text: str) -> Version:
    try:
        return Version(text)
    except InvalidVersion:
        raise ValueError(f"{text!r} is not a version") from None


def _environment_key(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", text):
        raise ValueError(f"{text!r} is not an environment variable's name")
    if _RESERVED_ENVIRONMENT.fullmatch(text):
        raise ValueError(f"{text} is ours to set: a recipe cannot")
    return text


def _cmake_key(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.+-]*", text):
        raise ValueError(f"{text!r} is not a CMake variable's name")
    if _RESERVED_CMAKE.fullmatch(text):
        raise ValueError(f"{text} is ours to set: a recipe cannot")
    return text


def _operator(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z_]\w*::[A-Za-z_]\w*(\.\w+)?", text):
        raise ValueError(f"{text!r} is not an operator: write it like sgl_kernel::rmsnorm")
    return text


_T = TypeVar("_T")
# TOML has arrays; frozen values hold tuples.
Array = Annotated[
    tuple[_T, ...], BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value)
]
_text = PlainSerializer(str, return_type=str)
Commit = Annotated[
    CommitId,
    _via(CommitId.parse),
    _text,
    pydantic.WithJsonSchema({"type": "string", "pattern": "^[0-9a-f]{40}$"}),
]
Arch = Annotated[
    CudaArch, _via(CudaArch.parse), _text, pydantic.WithJsonSchema({"type": "string", "examples": ["12.0a"]})
]
Line = Annotated[
    CudaLine,
    _via(CudaLine.parse),
    _text,
    pydantic.WithJsonSchema({"type": "string", "pattern": "^cu\\d{3}$"}),
]
TorchVersion = Annotated[
    Version, _via(parse_torch_version), _text, pydantic.WithJsonSchema({"type": "string"})
]
ToolVersion = Annotated[Version, _via(_version), _text, pydantic.WithJsonSchema({"type": "string"})]
RelativePath = Annotated[str, AfterValidator(_relative)]
Identifier = Annotated[str, AfterValidator(_identifier)]
Operator = Annotated[str, AfterValidator(_operator)]
GitUrl = Annotated[str, AfterValidator(_git_url)]
EnvironmentKey = Annotated[str, AfterValidator(_environment_key)]
CMakeKey = Annotated[str, AfterValidator(_cmake_key)]


class Table(BaseModel):
    """A table of the file: frozen, and an unknown key is an error."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        arbitrary_types_allowed=True,
        alias_generator=lambda name: name.replace("_", "-"),
        populate_by_name=True,
    )
