"""ccache in front of the launcher: which one, how it is set up, and where a team's shared one lies.

A hit costs neither a compiler nor admission. Why ccache and not sccache: docs/compiler-cache.md.
"""

from __future__ import annotations

import json
import os
import shutil
import sysconfig
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from sglwheel import files
from sglwheel.errors import UsageError
from sglwheel.mirrors import redacted

if TYPE_CHECKING:
    from sglwheel.build.buildtree import BuildTree
    from sglwheel.files import Layout
    from sglwheel.recipe import KernelRecipe
    from sglwheel.toolchain import BuildEnv

VARIABLE = "SGLWHEEL_COMPILER_CACHE"
# What the ccache that we bring speaks, and buckets, which we serve to it.
SCHEMES = ("redis", "redis+unix", "http", "file", "s3")
# Part of every key: raised when the same words would no longer mean the same object.
_FORM = "1"
# A whole SM120 wheel takes 30 MB; kept are a few hundred builds.
_MAX_SIZE = "10G"
_CONNECT_MS, _OPERATION_MS = 1000, 5000
# What decides what an object holds. Of the host's compiler the driver, which every release of it changes.
_CUDA = ("bin/nvcc", "bin/nvcc.profile", "bin/cudafe++", "bin/ptxas", "bin/fatbinary", "nvvm/bin/cicc")


@dataclass(frozen=True)
class Choice:
    """Whether compilers are cached, and where besides this host: an url of `SCHEMES`, or None."""

    on: bool
    shared: str | None = None

    @classmethod
    def of(cls, recipe: KernelRecipe, environment: Mapping[str, str] = os.environ) -> Choice:
        """`SGLWHEEL_COMPILER_CACHE` (off, local or an url), else the recipe's. Raises UsageError."""
        text, where = environment.get(VARIABLE, "").strip(), {"environment": VARIABLE}
        if not text:
            text, where = recipe.build.compiler_cache, {"recipe": "build.compiler-cache"}
        if text in ("off", "local"):
            return cls(text == "local")
        parts = urlsplit(text)
        if parts.scheme not in SCHEMES or not (parts.netloc or parts.path):
            raise UsageError(
                f"not a compiler cache: {redacted(text)!r}",
                where=where,
                next=f"off, local, or an url of {', '.join(SCHEMES)}",
            )
        if any(character.isspace() for character in text):
            raise UsageError("a compiler cache's url has no spaces", where=where)
        return cls(True, text)


@dataclass(frozen=True)
class CompilerCache:
    """The cache as one build tree uses it; `identity` stands for the compilers."""

    program: Path
    store: Path
    tree: Path
    identity: str
    links: Mapping[str, str]

    @classmethod
    def of(
        cls, layout: Layout, tree: BuildTree, env: BuildEnv, prefixes: Mapping[Path, str]
    ) -> CompilerCache | None:
        """Set it up; None where this tool's installation has no ccache. `prefixes` are the toolchain's."""
        program = _program()
        if program is None:
            return None
        store = layout.cache / "compiler-cache"
        return cls(program, store, tree.path, identity(env), _link(tree.path / "roots", prefixes))

    def unwritable(self) -> str | None:
        """What keeps the store from being made and written, or None."""
        try:
            files.cache_directory(self.store)
            for directory in (self.store / "ccache", self.store / "tmp"):
                directory.mkdir(parents=True, exist_ok=True)
                with tempfile.TemporaryFile(dir=directory) as probe:
                    probe.write(b"x")
        except OSError as error:
            return error.strerror or str(error)
        return None

    @property
    def log(self) -> Path:
        """What ccache says of each unit."""
        return self.tree / "cache.log"

    @property
    def configuration(self) -> Path:
        return self.tree / "ccache.conf"

    @property
    def commands(self) -> Path:
        """CMake's list of how each unit is compiled."""
        return self.tree / "cmake" / "compile_commands.json"

    def units(self) -> list[dict[str, str]]:
        """What `commands` holds of each unit: directory, command, file, and output as ninja calls it."""
        try:
            listed: list[dict[str, str]] = json.loads(self.commands.read_text("utf-8"))
        except (OSError, ValueError):
            return []
        # CMake 4 writes outputs as absolute paths.
        base = f"{self.tree / 'cmake'}/"
        return [item | {"output": item["output"].removeprefix(base)} for item in listed if "output" in item]

    def objects(self) -> dict[str, list[str]]:
        """Objects by the path of their source inside the tree; upstream may compile one twice."""
        found: dict[str, list[str]] = {}
        for item in self.units():
            found.setdefault(self.inside(os.path.normpath(item["file"])), []).append(item["output"])
        return found

    def inside(self, text: str) -> str:
        """A text with the paths of this tree and its toolchain as they are in any other tree."""
        for path, name in self.links.items():
            text = text.replace(path, f"roots/{name}")
        return text.replace(f"{self.tree}/", "").replace(str(self.tree), ".")

    def begin(self, shared: str | None, *, read_only: bool = False) -> None:
        """Write the configuration, which every ccache reads when it starts: also to turn `shared` off."""
        values = {
            "cache_dir": self.store / "ccache",
            "temporary_dir": self.store / "tmp",
            "max_size": _MAX_SIZE,
            "base_dir": self.tree,
            "hash_dir": "false",
            "compiler_check": f"string:{self.identity}",
            # Preprocessing alone takes a fifth of a small unit; the list of dependencies says as much.
            "depend_mode": "true",
            # A tree's files are as old as its commit, but were copied a moment ago; nobody edits them.
            "sloppiness": "include_file_ctime,include_file_mtime",
            "stats_log": self.log,
        }
        if shared is not None:
            attributes = f"connect-timeout={_CONNECT_MS} operation-timeout={_OPERATION_MS}"
            values["remote_storage"] = f"{shared} {attributes}{' read-only' if read_only else ''}"
        text = "".join(f"{key} = {value}\n" for key, value in values.items())
        # Passwords stand in urls.
        files.write_atomic(self.configuration, text, mode=0o600)

    def environment(self) -> dict[str, str]:
        """What `data/cached.py` and ccache want to know."""
        return {
            "SGLWHEEL_CCACHE": str(self.program),
            "SGLWHEEL_LINKS": json.dumps(self.links),
            "CCACHE_CONFIGPATH": str(self.configuration),
        }


def identity(env: BuildEnv) -> str:
    """One hash over the compilers' own bytes: no path, and nothing that changes no object."""
    programs = [env.cuda_home / name for name in _CUDA]
    found = [shutil.which(env.environment.get(key, "")) for key in ("CC", "CXX")]
    programs += [Path(name) for name in found if name]
    facts = [_FORM, env.cxx, *(files.sha256_once(path) if path.is_file() else "" for path in programs)]
    return files.digest("\n".join(facts))


def _link(directory: Path, prefixes: Mapping[Path, str]) -> dict[str, str]:
    """Make a link in the tree for each directory of the toolchain; path → name, longest path first."""
    directory.mkdir(exist_ok=True)
    for path, name in prefixes.items():
        link = directory / name
        if not link.is_symlink() or link.readlink() != path:
            link.unlink(missing_ok=True)
            link.symlink_to(path)
    return {str(path): name for path, name in sorted(prefixes.items(), key=lambda item: -len(str(item[0])))}


def _program() -> Path | None:
    own = Path(sysconfig.get_path("scripts")) / "ccache"
    return own if own.is_file() else None


def arguments(command: Sequence[str]) -> list[str]:
    """A compile command without what `data/cached.py` keeps from ccache, too: maps of this host's paths."""
    maps = ("-ffile-prefix-map=", "-Xcompiler=-ffile-prefix-map=")
    return [word for word in command if not word.startswith(maps)]
