"""Recipes: what to build, parsed once into frozen values."""

from __future__ import annotations

import difflib
import hashlib
import json
import re
import tomllib
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, TypeVar, cast, get_args
from urllib.parse import urlsplit

import pydantic
from packaging.version import InvalidVersion, Version
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer

from sglwheel.errors import UsageError
from sglwheel.files import Layout
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
_IDENTIFIER = re.compile(r"[a-z0-9][a-z0-9._-]*")


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
    if not _IDENTIFIER.fullmatch(text) or ".." in text:
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
EnvironmentKey = Annotated[str, AfterValidator(_environment_key)]
CMakeKey = Annotated[str, AfterValidator(_cmake_key)]


class _Table(BaseModel):
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        arbitrary_types_allowed=True,
        alias_generator=lambda name: name.replace("_", "-"),
        populate_by_name=True,
    )


class Source(_Table):
    """Where the code comes from."""

    git: Annotated[str, AfterValidator(_git_url)] = Field(
        description="public upstream; mirrors are mapped outside the recipe"
    )
    commit: Commit = Field(description="full commit id")
    track: str = Field("main", description="branch that rebase and drift follow; a build never reads it")
    directory: RelativePath = Field(description="the kernel project inside the repository")
    series: Identifier = Field(description="patches/<series>/series")
    sparse: dict[str, Array[RelativePath]] = Field(
        default_factory=dict,
        description="further directories of a fetched source, where CMake's files do not name them",
    )


class Torch(_Table):
    """The one torch build that the wheel is compiled against."""

    version: TorchVersion
    cuda: Line
    index_url: Annotated[str, AfterValidator(_git_url)] | None = Field(
        None, description="index that serves this build, if it is not PyPI"
    )


class Build(_Table):
    """How it is built."""

    cuda_toolkit: ToolVersion = Field(description="13.0: toolkit of nvcc, assembled from PyPI wheels")
    provider: Literal["pypi", "system"] = "pypi"
    python: ToolVersion | None = Field(
        None, description="minor version of the build environment's interpreter; the tool's own if not given"
    )
    architectures: Array[Arch] = Field(min_length=1, description="exactly what every library holds")
    cmake_version: ToolVersion = Field(cast(Version, "3.31.10"), validate_default=True)
    ninja_version: ToolVersion = Field(cast(Version, "1.13.0"), validate_default=True)
    scikit_build_core_version: ToolVersion = Field(cast(Version, "0.11.6"), validate_default=True)
    cmake: dict[CMakeKey, bool | int | str] = Field(default_factory=dict)
    environment: dict[EnvironmentKey, str] = Field(default_factory=dict)
    host_libraries: Array[Literal["numa"]] = Field(
        (), description="libraries whose headers no Python package brings: the preflight looks for them"
    )
    largest_unit_mib: int = Field(
        2048, ge=1, description="memory that the hungriest translation unit needs, checked before the build"
    )
    build_tree_mib: int = Field(
        1024, ge=1, description="disk that sources and build tree need, checked before the build"
    )


class Wheel(_Table):
    """What the finished wheel must look like."""

    operators: Array[Operator] = ()
    absent_operators: Array[Operator] = Field(
        (),
        description="what this pin no longer has: a wheel that registers one was built from something else",
    )
    build: int = Field(
        ge=1, le=99_999_999, description="raised by a person when the recipe or series changes"
    )
    exclude: Array[RelativePath] = Field((), description="globs of files that do not belong into the wheel")
    max_size_mib: int = Field(ge=1)


class Smoke(_Table):
    """What must work in a fresh environment."""

    imports: Array[str] = Field(min_length=1)
    gpu: Literal["optional", "required"] = "optional"


class Recipe(_Table):
    """One wheel, described: `recipes/<id>.toml`."""

    schema_: Literal[1] = Field(alias="schema")
    id: str = Field(exclude=True, default="")
    summary: str = Field(min_length=1)
    source: Source
    torch: Torch
    build: Build
    wheel: Wheel
    smoke: Smoke

    @property
    def digest(self) -> str:
        """SHA-256 over every value, independent of layout and comments."""
        text = json.dumps(self.model_dump(mode="json", by_alias=True), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def with_torch(self, version: str) -> Recipe:
        """The same recipe against another torch. Raises UsageError for what is not an exact version."""
        try:
            parsed = parse_torch_version(version)
        except ValueError as error:
            raise UsageError(str(error), where={"option": "--torch"}, next="sglwheel torch list") from None
        return self.model_copy(update={"torch": self.torch.model_copy(update={"version": parsed})})

    def with_provider(self, provider: Literal["pypi", "system"]) -> Recipe:
        """The same recipe with the CUDA toolkit from elsewhere."""
        return self.model_copy(update={"build": self.build.model_copy(update={"provider": provider})})


def names(layout: Layout) -> list[str]:
    """Ids of all recipes, sorted. `pylock.*.toml` beside them are the toolchain's locks."""
    return sorted(path.stem for path in layout.recipes.glob("*.toml") if not path.name.startswith("pylock."))


def load(layout: Layout, name: str) -> Recipe:
    """Read `recipes/<name>.toml`.

    Raises UsageError with every mistake at once: its dotted address, and a suggestion where one is near.
    """
    path = layout.recipes / f"{name}.toml"
    if not _IDENTIFIER.fullmatch(name) or not path.is_file():
        known = names(layout)
        near = difflib.get_close_matches(name, known, n=1)
        raise UsageError(
            f"no recipe {name!r}" + (f": did you mean {near[0]!r}?" if near else ""),
            where={"looked in": layout.relative(layout.recipes), "known": ", ".join(known) or "none"},
        )
    return parse(path.read_bytes(), name=name, path=layout.relative(path))


def parse(text: bytes, *, name: str, path: str) -> Recipe:
    """Parse a recipe's text; `path` is what errors call it."""
    try:
        data = tomllib.loads(text.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{path} is not UTF-8", where={"byte": str(error.start)}, next=f"edit {path}"
        ) from None
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path} is not TOML: {error}", next=f"edit {path}") from None
    try:
        recipe = Recipe.model_validate({**data, "id": name} if "id" not in data else data)
    except pydantic.ValidationError as error:
        items = error.errors(include_url=False)
        # An array whose items are all wrong is not empty as well.
        bad_items = {tuple(item["loc"][:-1]) for item in items if isinstance(item["loc"][-1], int)}
        mistakes = [
            _mistake(item)
            for item in items
            if item["type"] != "too_short" or tuple(item["loc"]) not in bad_items
        ]
        if "id" in data:
            mistakes.append(("id", "unknown key: the file's name is the id"))
        raise _all(path, mistakes) from None
    if "id" in data:
        raise _all(path, [("id", "unknown key: the file's name is the id")])
    if len(set(recipe.build.architectures)) != len(recipe.build.architectures):
        raise _all(path, [("build.architectures", "an architecture stands twice")])
    return recipe


def json_schema() -> str:
    """The JSON schema that editors read through the `#:schema` line; regenerated by `sglwheel schema`."""
    schema = Recipe.model_json_schema(by_alias=True)
    schema["properties"].pop("id", None)
    return json.dumps(schema, indent=2, sort_keys=True) + "\n"


def _all(path: str, mistakes: list[tuple[str, str]]) -> UsageError:
    count = len(mistakes)
    return UsageError(
        f"{path} has {count} mistake{'s' if count != 1 else ''}", where=dict(mistakes), next=f"edit {path}"
    )


def _mistake(item: Any) -> tuple[str, str]:
    location = [part for part in item["loc"] if part != "[key]"]
    address = ".".join(str(part) for part in location)
    kind = item["type"]
    if kind == "extra_forbidden":
        near = difflib.get_close_matches(str(location[-1]), _keys(location[:-1]), n=1)
        return address, "unknown key" + (f": did you mean {near[0]!r}?" if near else "")
    if kind == "missing":
        return address, "missing"
    given = _toml_type(item["input"])
    expected = {
        "string_type": "a string",
        "bool_type": "a boolean",
        "int_type": "an integer",
        "tuple_type": "an array",
        "dict_type": "a table",
        "model_type": "a table",
    }
    context = item.get("ctx", {})
    if kind in expected:
        return address, f"must be {expected[kind]}, is {given}"
    if kind == "greater_than_equal":
        return address, f"must be at least {context['ge']}"
    if kind == "less_than_equal":
        return address, f"must be at most {context['le']}"
    if kind == "literal_error":
        return address, f"must be {context['expected'].replace(chr(39), chr(34))}"
    if kind in ("too_short", "string_too_short"):
        return address, "must not be empty"
    return address, str(item["msg"]).removeprefix("Value error, ")


def _keys(location: list[Any]) -> list[str]:
    model: Any = Recipe
    for part in location:
        field = next((f for f in model.model_fields.values() if (f.alias or "") == part), None)
        if field is None:
            return []
        candidates = [field.annotation, *get_args(field.annotation)]
        model = next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), None)
        if model is None:
            return []
    return [field.alias or name for name, field in model.model_fields.items() if name != "id"]


def _toml_type(value: Any) -> str:
    kinds = {
        str: "a string",
        bool: "a boolean",
        int: "an integer",
        float: "a float",
        list: "an array",
        dict: "a table",
    }
    return kinds.get(type(value), type(value).__name__)
