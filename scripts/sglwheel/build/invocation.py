"""How scikit-build-core is started: its command line, CMake's definitions, and the clean environment."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sglwheel.build import fingerprint
from sglwheel.build.buildtree import TREE_VARIABLE, BuildTree
from sglwheel.build.progress import NINJA_STATUS
from sglwheel.toolchain import uvtool

if TYPE_CHECKING:
    from sglwheel.recipe import Recipe
    from sglwheel.toolchain import BuildEnv

_BACKEND = Path(__file__).with_name("data") / "backend.py"


@dataclass(frozen=True)
class Invocation:
    """What stays the same over all commands of one build."""

    recipe: Recipe
    env: BuildEnv
    tree: BuildTree
    epoch: int

    def command(self, out: Path, definitions: Mapping[str, str], *more: str) -> Sequence[str | Path]:
        settings = {
            "build-dir": str(self.tree.cmake),
            "build.verbose": "false",
            "wheel.exclude": ";".join(self.recipe.excluded),
            **{f"cmake.define.{key}": value for key, value in definitions.items()},
        }
        project = self.tree.source / self.recipe.source.directory
        if self.env.torch.record:
            # Beside an installed torch everything is there, so a build needs no uv.
            chosen = dict(word.split("=", 1) for word in more if word != "-C")
            chosen = {key: value for key, value in settings.items() if value} | chosen
            return [self.env.python, "-P", _BACKEND, project, out, json.dumps(chosen)]
        return [
            *(uvtool.uv_binary(), "build", "--wheel", "--no-build-isolation", "--python", self.env.python),
            *("--no-config", "--no-cache", "--offline", "--out-dir", out),
            *(word for key, value in settings.items() if value for word in ("-C", f"{key}={value}")),
            *more,
            project,
        ]

    def definitions(self, fetched: Mapping[str, Path]) -> dict[str, str]:
        """CMake's cache entries: the recipe's options, and what the tool decides."""
        programs = (self.tree.cached, self.tree.launcher)
        launcher = ";".join(f"{self.env.python};-I;-S;{path}" for path in programs)
        values = {key: fingerprint.cmake_value(value) for key, value in self.recipe.options.items()}
        values |= {
            "CMAKE_EXPORT_COMPILE_COMMANDS": "ON",
            "CMAKE_C_COMPILER_LAUNCHER": launcher,
            "CMAKE_CXX_COMPILER_LAUNCHER": launcher,
            "CMAKE_CUDA_COMPILER_LAUNCHER": f"{launcher};{self.env.python};-I;-S;{self.tree.reproducible}",
            # Else a library has room for the build host's search paths, as many bytes as they are long.
            "CMAKE_BUILD_WITH_INSTALL_RPATH": "ON",
            "FETCHCONTENT_FULLY_DISCONNECTED": "ON",
            "Torch_DIR": str(self.env.torch.path / "share" / "cmake" / "Torch"),
            **self.env.cmake,
        }
        values |= {f"FETCHCONTENT_SOURCE_DIR_{name.upper()}": str(path) for name, path in fetched.items()}
        return values

    @property
    def prefixes(self) -> dict[Path, str]:
        """The toolchain's directories, and the words that stand for them wherever they lie."""
        found = {self.env.cuda_home: "cuda", self.env.python.parent.parent: "environment"}
        if self.env.torch.record:
            found[self.env.torch.path.parent] = "site-packages"
        interpreter = self.env.python.resolve().parent.parent
        if interpreter != Path("/usr"):
            found.setdefault(interpreter, "python")
        return found

    def environment(self, *, admission: str = "", wide: int = 1) -> dict[str, str]:
        """All of it; ninja starts `wide` launchers at once, the governor at `admission` lets them in."""
        values = {k: v for k, v in self.env.environment.items() if not k.lower().endswith("_proxy")}
        values |= self.recipe.build.environment
        values |= {
            "TORCH_CUDA_ARCH_LIST": ";".join(str(arch) for arch in self.recipe.build.architectures),
            "SOURCE_DATE_EPOCH": str(self.epoch),
            "NINJA_STATUS": NINJA_STATUS,
            "CMAKE_BUILD_PARALLEL_LEVEL": str(wide),
            TREE_VARIABLE: str(self.tree.path),
        }
        if admission:
            values["SGLWHEEL_ADMISSION"] = admission
        # No path of this host in __FILE__: relative to the tree, or to what stands for the toolchain.
        prefixes = self.prefixes | {self.tree.path: "."}
        maps = [f"-ffile-prefix-map={path}={short}" for path, short in prefixes.items()]
        for key in ("CFLAGS", "CXXFLAGS"):
            values[key] = " ".join([values.get(key, ""), *maps]).strip()
        host = " ".join(f"-Xcompiler={flag}" for flag in maps)
        values["CUDAFLAGS"] = f"{values.get('CUDAFLAGS', '')} {host}".strip()
        return values
