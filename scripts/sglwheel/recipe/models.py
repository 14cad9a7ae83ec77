"""The tables of a recipe, and its two kinds: compiled kernels, and Python alone."""

from __future__ import annotations

import abc
import hashlib
import json
from collections.abc import Mapping
from typing import Literal, cast

from packaging.version import Version
from pydantic import Field

from sglwheel.errors import UsageError
from sglwheel.recipe.fields import (
    Arch,
    Array,
    CMakeKey,
    Commit,
    EnvironmentKey,
    GitUrl,
    Identifier,
    Line,
    Operator,
    RelativePath,
    Table,
    ToolVersion,
    TorchVersion,
)
from sglwheel.recipe.node import Node
from sglwheel.types import parse_torch_version


class Source(Table):
    """Where the code comes from."""

    git: GitUrl = Field(description="public upstream; mirrors are mapped outside the recipe")
    commit: Commit = Field(description="full commit id")
    track: str = Field("main", description="branch that rebase and drift follow; a build never reads it")
    directory: RelativePath = Field(description="the project inside the repository")
    series: Identifier = Field(description="patches/<series>/series")
    sparse: dict[str, Array[RelativePath]] = Field(
        default_factory=dict,
        description="further directories of a fetched source, where CMake's files do not name them",
    )


class Torch(Table):
    """The one torch build that the wheel is made for."""

    version: TorchVersion
    cuda: Line
    index_url: GitUrl | None = Field(None, description="index that serves this build, if it is not PyPI")


class Build(Table, abc.ABC):
    """How it is built, as far as every kind says so."""

    python: ToolVersion | None = Field(
        None, description="minor version of the build environment's interpreter; the tool's own if not given"
    )
    architectures: Array[Arch] = Field(
        min_length=1, description="the GPUs that it is for: exactly what every library holds"
    )
    environment: dict[EnvironmentKey, str] = Field(default_factory=dict)
    build_tree_mib: int = Field(
        1024, ge=1, description="disk that sources and build tree need, checked before the build"
    )

    @property
    @abc.abstractmethod
    def tools(self) -> Mapping[str, Version]:
        """Distributions of the build environment beside torch, each at one version."""

    @property
    def toolkit(self) -> Version | None:
        """The CUDA toolkit that compiles it."""
        return None

    @property
    def assembles_toolkit(self) -> bool:
        """Whether that toolkit is put together from wheels."""
        return False


class KernelBuild(Build):
    """How kernels are compiled."""

    cuda_toolkit: ToolVersion = Field(description="13.0: toolkit of nvcc, assembled from PyPI wheels")
    provider: Literal["pypi", "system"] = "pypi"
    cmake_version: ToolVersion = Field(cast(Version, "3.31.10"), validate_default=True)
    ninja_version: ToolVersion = Field(cast(Version, "1.13.0"), validate_default=True)
    scikit_build_core_version: ToolVersion = Field(cast(Version, "0.11.6"), validate_default=True)
    cmake: dict[CMakeKey, bool | int | str] = Field(default_factory=dict)
    compiler_cache: str = Field(
        "local",
        description="off, local (this host's), or the url of a shared one (redis, http, file); "
        "SGLWHEEL_COMPILER_CACHE overrules it",
    )
    host_libraries: Array[Literal["numa"]] = Field(
        (), description="libraries whose headers no Python package brings: the preflight looks for them"
    )
    largest_unit_mib: int = Field(
        2048, ge=1, description="memory that the hungriest translation unit needs, checked before the build"
    )

    @property
    def tools(self) -> Mapping[str, Version]:
        return {
            "cmake": self.cmake_version,
            "ninja": self.ninja_version,
            "scikit-build-core": self.scikit_build_core_version,
        }

    @property
    def toolkit(self) -> Version:
        return self.cuda_toolkit

    @property
    def assembles_toolkit(self) -> bool:
        return self.provider == "pypi"


class PythonBuild(Build):
    """How a project of Python alone is packed, by setuptools."""

    version: ToolVersion = Field(
        description="what setuptools-scm computes in a clone with tags, which a build by commit has not"
    )
    bring: Array[RelativePath] = Field(
        (), description="files at the repository's top that upstream's release copies into the project"
    )
    setuptools_version: ToolVersion = Field(cast(Version, "80.9.0"), validate_default=True)
    setuptools_scm_version: ToolVersion = Field(cast(Version, "9.2.2"), validate_default=True)
    wheel_version: ToolVersion = Field(cast(Version, "0.45.1"), validate_default=True)

    @property
    def tools(self) -> Mapping[str, Version]:
        return {
            "setuptools": self.setuptools_version,
            "setuptools-scm": self.setuptools_scm_version,
            "wheel": self.wheel_version,
        }


class Wheel(Table):
    """What the finished wheel must look like."""

    build: int = Field(
        ge=1, le=99_999_999, description="raised by a person when the recipe or series changes"
    )
    max_size_mib: int = Field(ge=1)


class KernelWheel(Wheel):
    """What a wheel of compiled kernels must look like."""

    operators: Array[Operator] = ()
    absent_operators: Array[Operator] = Field(
        (),
        description="what this pin no longer has: a wheel that registers one was built from something else",
    )
    exclude: Array[RelativePath] = Field((), description="globs of files that do not belong into the wheel")


class Smoke(Table):
    """What must work in a fresh environment."""

    imports: Array[str] = Field(min_length=1)
    gpu: Literal["optional", "required"] = "optional"


class PythonSmoke(Table):
    """What must work in a fresh environment that has torch, but not what else the project requires."""

    imports: Array[str] = Field(
        min_length=1, description="a module that needs what is not installed is skipped, and says so"
    )
    alone: Array[str] = Field(
        (), description="modules that must load without their parent packages, which import half the world"
    )


class Recipe(Table):
    """One wheel, described: `recipes/<id>.toml`. What every kind has, and each answers in its own way."""

    schema_: Literal[1] = Field(alias="schema")
    id: str = Field(exclude=True, default="")
    summary: str = Field(min_length=1)
    source: Source
    torch: Torch
    build: Build
    wheel: Wheel
    smoke: Smoke | PythonSmoke
    node: Node | None = None

    @property
    def digest(self) -> str:
        """SHA-256 over every value that the wheel is made from, independent of layout and comments."""
        # How a node runs the wheel is no input of it: better advice must not change published bytes.
        made = self.model_dump(mode="json", by_alias=True, exclude={"node"})
        text = json.dumps(made, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def pure(self) -> bool:
        """Whether the wheel is of Python alone: no library in it, nothing fetched for it by CMake."""
        return True

    @property
    def options(self) -> Mapping[str, bool | int | str]:
        """CMake's cache entries that the recipe sets."""
        return {}

    @property
    def operators(self) -> tuple[str, ...]:
        """Operators that the wheel must register with torch."""
        return ()

    @property
    def absent_operators(self) -> tuple[str, ...]:
        """Operators that this pin no longer has."""
        return ()

    @property
    def node_imports(self) -> tuple[str, ...]:
        """What can be imported beside torch once the wheel is installed by its printed line."""
        return ()

    @property
    def excluded(self) -> tuple[str, ...]:
        """Globs of files that are left out of the wheel."""
        return ()

    def with_torch(self, version: str) -> Recipe:
        """The same recipe against another torch. Raises UsageError for what is not an exact version."""
        try:
            parsed = parse_torch_version(version)
        except ValueError as error:
            raise UsageError(str(error), where={"option": "--torch"}, next="sglwheel torch list") from None
        return self.model_copy(update={"torch": self.torch.model_copy(update={"version": parsed})})

    def with_provider(self, provider: Literal["pypi", "system"]) -> Recipe:
        """The same recipe with the CUDA toolkit from elsewhere. Raises UsageError where there is none."""
        raise UsageError(
            f"--provider {provider}: nothing of {self.id} is compiled, so there is no CUDA toolkit"
        )


class KernelRecipe(Recipe):
    """CUDA kernels, compiled by CMake and nvcc."""

    # Not in the digest: recipes that do not say their kind are of this one.
    kind: Literal["kernels"] = Field("kernels", exclude=True)
    build: KernelBuild
    wheel: KernelWheel
    smoke: Smoke

    @property
    def pure(self) -> bool:
        return False

    @property
    def options(self) -> Mapping[str, bool | int | str]:
        return self.build.cmake

    @property
    def operators(self) -> tuple[str, ...]:
        return self.wheel.operators

    @property
    def absent_operators(self) -> tuple[str, ...]:
        return self.wheel.absent_operators

    @property
    def node_imports(self) -> tuple[str, ...]:
        return self.smoke.imports

    @property
    def excluded(self) -> tuple[str, ...]:
        return self.wheel.exclude

    def with_provider(self, provider: Literal["pypi", "system"]) -> Recipe:
        return self.model_copy(update={"build": self.build.model_copy(update={"provider": provider})})


class PythonRecipe(Recipe):
    """Python alone, packed by setuptools: a wheel for any platform, made for one torch and some GPUs."""

    kind: Literal["python"]
    build: PythonBuild
    smoke: PythonSmoke


# Every kind by the word that a recipe says it with.
KINDS: Mapping[str, type[Recipe]] = {"kernels": KernelRecipe, "python": PythonRecipe}
