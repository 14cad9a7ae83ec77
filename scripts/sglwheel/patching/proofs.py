"""Proofs that need a configured build tree: what CMake decided, read from the files that it writes."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any

from sglwheel import files
from sglwheel.errors import PatchError
from sglwheel.files import Layout
from sglwheel.git import Git
from sglwheel.patching import Base, PatchedTree, trials
from sglwheel.patching.worktree import Worktree, am
from sglwheel.recipe import Recipe
from sglwheel.series import Patch, Proof, Series

_CACHE = re.compile(r"(?P<name>[^/#\s][^:]*):(?P<type>[A-Z]+)=(?P<value>.*)")
# CMakeLists files that asked for the File API's codemodel get it here.
_REPLY = Path(".cmake/api/v1/reply")
_TRUE = frozenset({"1", "ON", "YES", "TRUE", "Y"})
_FALSE = frozenset({"0", "OFF", "NO", "FALSE", "N", "IGNORE", "NOTFOUND", ""})


@dataclass(frozen=True)
class ProofResult:
    """What a proof found; `holds` is None for what only a later stage can tell (`imports`)."""

    patch: str
    proof: str
    holds: bool | None
    detail: str


def applied(series: Series, patched: PatchedTree) -> tuple[Patch, ...]:
    """The patches whose effect must show in `patched`."""
    states = {state.name: state.state for state in patched.patches}
    return tuple(patch for patch in series.patches if states.get(patch.name) in ("applied", "applied-3way"))


@contextmanager
def without(
    patch: Patch, series: Series, patched: PatchedTree, checkout: Base, layout: Layout, recipe: Recipe
) -> Iterator[Path]:
    """The tree that a patch was applied to, as long as the block lasts. Raises PatchError."""
    work = layout.work / recipe.id
    with (
        files.locked(work / "src.lock", failure=PatchError, what=f"the source tree of {recipe.id}"),
        Worktree(Git(checkout.repository), checkout.commit, work, (recipe.source.directory,)) as tree,
    ):
        # Not the commit that applying it began with: who cleans a store takes what no branch leads to.
        for earlier in takewhile(lambda one: one.name != patch.name, applied(series, patched)):
            state, why, _ = am(tree, earlier, lambda: trials.bases(tree.git, series))
            if state not in ("applied", "applied-3way"):
                raise PatchError(f"{earlier.name}, which {patch.name} comes after, does not apply: {why}")
        (tree.path / ".git").unlink()
        yield tree.path


def check_configured(patches: Sequence[Patch], build_dir: Path, recipe: Recipe) -> tuple[ProofResult, ...]:
    """Evaluate every proof of `patches` that a configured `build_dir` decides.

    Needs the reply of a File API query `codemodel-v2` and compile_commands.json; raises PatchError without.
    """
    tree = _Configured(build_dir)
    return tuple(
        ProofResult(patch.name, str(proof), *_evaluate(proof, tree, recipe))
        for patch in patches
        for proof in patch.proves
        if not proof.static
    )


def evaluate(patch: Patch, proof: Proof, build_dir: Path, recipe: Recipe) -> ProofResult:
    """One proof in a configured `build_dir`, also of a tree without the patch. Raises PatchError."""
    return ProofResult(patch.name, str(proof), *_evaluate(proof, _Configured(build_dir), recipe))


def require(results: Iterable[ProofResult], series: Series, *, log: Path | None = None) -> None:
    """Raise PatchError that names every patch which proves nothing."""
    failed = [result for result in results if result.holds is False]
    if not failed:
        return
    names = list(dict.fromkeys(result.patch for result in failed))
    where: dict[str, str] = {}
    for name in names:
        lines = [f"`{item.proof}`: {item.detail}" for item in failed if item.patch == name]
        where[f"patches/{series.name}/{name}.patch"] = "\n".join(lines)
    raise PatchError(
        f"{'a patch proves' if len(names) == 1 else f'{len(names)} patches prove'} nothing: "
        "applied, but the configured build does not show the effect",
        where=where,
        next="sglwheel patch <recipe> --edit, or correct the Proves trailer",
        log=log,
    )


def _evaluate(proof: Proof, tree: _Configured, recipe: Recipe) -> tuple[bool | None, str]:
    match proof.kind:
        case "configures":
            return tree.configured, "CMake finished" if tree.configured else "CMake did not finish"
        case "target-absent":
            target = proof.argument
            present = target in tree.targets
            return not present, f"target {target} {'exists' if present else 'does not exist'}"
        case "cache":
            name, _, expected = proof.argument.partition("=")
            value = tree.cache.get(name)
            if value is None:
                return False, f"{name} is not in CMake's cache"
            return _same(value, expected), f"{name} is {value!r}"
        case "gencodes":
            return _gencodes(tree, recipe)
        case _:
            return None, "decided by the smoke test"


def _same(actual: str, expected: str) -> bool:
    """CMake's words for true are one value, those for false another."""
    return actual == expected or any(
        actual.upper() in words and expected.upper() in words for words in (_TRUE, _FALSE)
    )


def _gencodes(tree: _Configured, recipe: Recipe) -> tuple[bool, str]:
    expected = {arch.sm for arch in recipe.build.architectures}
    expected |= {arch.compute for arch in recipe.build.architectures if arch.ptx}
    units = list(tree.cuda_units())
    if not units:
        return False, "the build compiles no CUDA file"
    wrong = [(file, codes) for file, codes in units if codes != expected]
    wanted = ", ".join(sorted(expected))
    if not wrong:
        return True, f"{len(units)} CUDA files, each for exactly {wanted}"
    file, codes = wrong[0]
    found = ", ".join(sorted(codes)) or "no -gencode at all"
    return False, f"{len(wrong)} of {len(units)} CUDA files differ from {wanted}: {file} has {found}"


class _Configured:
    """The files that CMake leaves in a build tree, each read at first use."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._targets: frozenset[str] | None = None
        self._cache: dict[str, str] | None = None

    @property
    def configured(self) -> bool:
        """CMake writes the build system last, after everything else went well."""
        return any((self._path / name).is_file() for name in ("build.ninja", "Makefile"))

    @property
    def targets(self) -> frozenset[str]:
        if self._targets is None:
            reply = self._path / _REPLY
            # The name sorts by time; an older index may lie beside it.
            index = max(reply.glob("index-*.json"), default=None)
            if index is None:
                raise self._missing(reply / "index-*.json")
            objects = self._json(index)["objects"]
            names = [item["jsonFile"] for item in objects if item["kind"] == "codemodel"]
            if not names:
                raise self._missing(reply / "codemodel-v2-*.json")
            model = self._json(reply / names[0])
            self._targets = frozenset(
                target["name"] for item in model["configurations"] for target in item["targets"]
            )
        return self._targets

    @property
    def cache(self) -> dict[str, str]:
        if self._cache is None:
            path = self._path / "CMakeCache.txt"
            if not path.is_file():
                raise self._missing(path)
            lines = path.read_text("utf-8", "replace").splitlines()
            found = filter(None, map(_CACHE.fullmatch, lines))
            self._cache = {match["name"].strip('"'): match["value"] for match in found}
        return self._cache

    def cuda_units(self) -> Iterable[tuple[str, set[str]]]:
        """Every CUDA file that is compiled, with the codes that it is compiled for: sm_120a, compute_120a."""
        path = self._path / "compile_commands.json"
        if not path.is_file():
            raise self._missing(path)
        for entry in self._json(path):
            words = entry.get("arguments") or shlex.split(entry["command"])
            if is_cuda(entry["file"], words):
                yield entry["file"], gencodes(words)

    def _json(self, path: Path) -> Any:
        try:
            return json.loads(path.read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise PatchError(f"cannot read what CMake wrote: {error}", where={"file": str(path)}) from None

    def _missing(self, path: Path) -> PatchError:
        return PatchError(
            "no proof without what CMake writes: the build tree is not configured as it should be",
            where={"missing": str(path)},
        )


def is_cuda(file: str, words: Sequence[str]) -> bool:
    """Whether a compile command compiles CUDA: by suffix, or told so with `-x cu`."""
    told = any(pair in (("-x", "cu"), ("--x", "cu")) for pair in pairwise(words))
    return file.endswith(".cu") or told or "-xcu" in words or "--x=cu" in words


def gencodes(words: Sequence[str]) -> set[str]:
    """The codes that a compiler's command line asks for, in all spellings that nvcc knows."""
    found: set[str] = set()
    for at, word in enumerate(words):
        option, equals, value = word.partition("=")
        if option in ("-gencode", "--generate-code", "-arch", "--gpu-architecture"):
            text = value if equals else "".join(words[at + 1 : at + 2])
            if option in ("-gencode", "--generate-code"):
                code = re.search(r"code=\[?([^\]]+)", text)
                found |= set(code[1].replace('"', "").split(",")) if code else set()
            else:
                found.add(text)
    return found
