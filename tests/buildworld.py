"""A tiny C++ kernel project and the values that a build takes, for tests that run the real tools."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from packaging.version import Version

from sglwheel import build, finish, recipe
from sglwheel.build.budget import Allowance
from sglwheel.files import Layout

DATE = datetime(2026, 3, 6, 12, 0, tzinfo=UTC)
COMMIT = "1" * 40
TREE = "2" * 40

RECIPE = f"""
schema = 1
summary = "tiny"
[source]
git = "https://example.invalid/tiny"
commit = "{COMMIT}"
directory = "kernel"
series = "tiny"
[torch]
version = "2.12.0"
cuda = "cu130"
[build]
cuda-toolkit = "13.0"
architectures = ["12.0a"]
[build.cmake]
TINY_OPTION = true
[wheel]
build = 1
exclude = ["lib/**"]
max-size-mib = 1
[smoke]
imports = ["tiny"]
"""
PYPROJECT = """
[build-system]
requires = ["scikit-build-core>=0.11", "torch>=99"]
build-backend = "scikit_build_core.build"
[project]
name = "tiny-kernel"
version = "0.1.0"
readme = "README.md"
license = { file = "LICENSE" }
dependencies = ["numpy", "torch>=2.8"]
[project.urls]
Homepage = "https://example.invalid/"
[tool.scikit-build]
cmake.build-type = "Release"
wheel.py-api = "cp310"
wheel.license-files = []
wheel.packages = ["python/tiny"]
"""
CMAKE = """
cmake_minimum_required(VERSION 3.26)
project(tiny LANGUAGES CXX)
option(TINY_OPTION "" OFF)
if(NOT TINY_OPTION)
    message(FATAL_ERROR "TINY_OPTION must be ON")
endif()
file(GLOB units CONFIGURE_DEPENDS units/*.cpp)
add_library(tiny MODULE ${units})
set_target_properties(tiny PROPERTIES PREFIX "" SUFFIX ".abi3.so")
add_library(stray STATIC stray.cpp)
install(TARGETS tiny LIBRARY DESTINATION tiny)
install(TARGETS stray ARCHIVE DESTINATION lib)
"""


@dataclass
class World:
    """One project, one recipe, one layout; change `files` before the first build."""

    root: Path
    files: dict[str, str] = field(default_factory=dict)
    tree: str = TREE
    text: str = RECIPE
    sources: tuple[Any, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.files = {
            "LICENSE": "Tiny licence\n\n  second paragraph\n",
            "README.md": "# Tiny ünïcode\n",
            "pyproject.toml": PYPROJECT,
            "CMakeLists.txt": CMAKE,
            "python/tiny/__init__.py": "",
            "stray.cpp": "int stray() { return 1; }\n",
            **{
                f"units/{name}.cpp": f'extern "C" const char *{name}() {{ return __FILE__; }}\n'
                for name in ("one", "two", "three")
            },
        } | self.files

    @property
    def layout(self) -> Layout:
        return Layout(self.root)

    @property
    def recipe(self) -> recipe.Recipe:
        return recipe.parse(self.text.encode(), name="tiny", path="recipes/tiny.toml")

    @property
    def env(self) -> Any:
        python = Path(sys.executable)
        return SimpleNamespace(
            python=python,
            bin=python.parent,
            torch=SimpleNamespace(
                version=Version("2.12.0"),
                full_version="2.12.0+cu130",
                cuda="13.0",
                git_version="3" * 40,
                path=Path("/nowhere/torch"),
                sha256="4" * 64,
                cxx11_abi=True,
                record=None,
            ),
            cuda_home=Path("/nowhere/cuda"),
            nvcc_version=Version("13.0.88"),
            versions=SimpleNamespace(
                cmake=Version("3.31.10"), ninja=Version("1.13.0"), scikit_build_core=Version("0.11.6")
            ),
            environment={"PATH": f"{python.parent}:/usr/bin:/bin", "LANG": "C.UTF-8", **self.environment},
            packages=(SimpleNamespace(name="torch", version=Version("2.12.0"), sha256="4" * 64),),
            provider="pypi",
            cxx="g++ 12.2.0",
            identity="5" * 64,
            description={"provider": "pypi", "nvcc": "13.0.88", "cxx": "g++ 12.2.0", "cmake": "3.31.10"},
            cmake={},
        )

    @property
    def patched(self) -> Any:
        path = self.root / "patched" / self.tree[:12]
        for name, text in self.files.items():
            target = path / "kernel" / name
            if not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(text)
        return SimpleNamespace(path=path, commit=COMMIT, tree=self.tree, base=COMMIT, patches=())

    @property
    def dependencies(self) -> Any:
        overridden = any(source.via == "override" for source in self.sources)
        return SimpleNamespace(sources=self.sources, overridden=overridden)

    @property
    def checkout(self) -> Any:
        return SimpleNamespace(commit=COMMIT, tree=TREE, date=DATE, url="https://example.invalid/tiny")

    def build(self, jobs: int | None = 2) -> build.BuiltWheel:
        return build.build(
            self.recipe,
            self.patched,
            self.dependencies,
            self.env,
            self.layout,
            date=DATE,
            allowance=Allowance(jobs),
        )

    def finish(self, built: build.BuiltWheel) -> finish.FinishedWheel:
        return finish.finish(
            built, self.recipe, self.patched, self.dependencies, self.env, self.checkout, self.layout
        )
