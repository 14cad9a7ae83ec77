"""Pack a patched tree of Python alone into a wheel, as upstream's release does; prove its patches in it."""

from __future__ import annotations

import hashlib
import resource
import shutil
import time
import zipfile
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sglwheel import files, process, series
from sglwheel.build import fingerprint
from sglwheel.build.buildtree import BuildTree, Result
from sglwheel.build.built import BuiltWheel
from sglwheel.errors import BuildError, PatchError
from sglwheel.git import Git
from sglwheel.patching import proof_holds
from sglwheel.patching.proofs import ProofResult, applied, require
from sglwheel.toolchain import uvtool

if TYPE_CHECKING:
    from sglwheel.files import Layout
    from sglwheel.patching import Base, PatchedTree
    from sglwheel.recipe import PythonRecipe
    from sglwheel.series import Patch, Series
    from sglwheel.toolchain.packing import PackingEnv

_LIBRARIES = (".so", ".dylib", ".dll", ".pyd", ".a", ".o")


def pack(
    recipe: PythonRecipe, patched: PatchedTree, checkout: Base, env: PackingEnv, layout: Layout
) -> BuiltWheel:
    """Make the raw wheel, or return the one that a finished tree holds.

    Raises BuildError, and PatchError for a patch whose effect the wheel does not show.
    """
    brought = _bring(recipe, checkout)
    inputs = {
        "version": 1,
        "source": {"tree": patched.tree, "directory": recipe.source.directory},
        "brought": {name: hashlib.sha256(data).hexdigest() for name, data in brought.items()},
        "toolchain": env.identity,
        "public-version": str(recipe.build.version),
    }
    digest = fingerprint.digest(inputs)
    tree = BuildTree(layout.work / recipe.id / f"build-{digest[:12]}")
    log = layout.work / recipe.id / "logs" / f"{tree.path.name}.log"
    epoch = int(checkout.date.timestamp())
    packing = fingerprint.digest({"epoch": epoch})
    with files.locked(tree.lock, failure=BuildError, what=f"build tree {layout.relative(tree.path)}"):
        result = tree.finished(packing)
        reused = result is not None
        if result is None:
            files.cache_directory(layout.work)
            started, cpu = time.monotonic(), _children()
            tree.write("inputs.json", inputs)
            _lay_out(tree, patched, recipe, brought, checkout.date)
            wheel = _run(tree, recipe, env, epoch, log)
            stack = series.load(layout, recipe.source.series, directory=recipe.source.directory)
            _prove(wheel, stack, patched, recipe, log)
            result = Result(
                packing=packing,
                wheel=wheel.name,
                sha256=files.sha256(wheel),
                seconds=time.monotonic() - started,
                cpu_seconds=_children()[0] - cpu[0],
                peak_bytes=_children()[1],
                steps=1,
            )
            tree.finish(result)
    return BuiltWheel.of(tree, result, fingerprint=digest, log=log, reused=reused)


def _bring(recipe: PythonRecipe, checkout: Base) -> dict[str, bytes]:
    """The files that upstream's release copies from the repository's top. Raises BuildError."""
    git = Git(checkout.repository)
    found: dict[str, bytes] = {}
    for name in recipe.build.bring:
        done = git.run("cat-file", "blob", f"{checkout.commit}:{name}", failure=BuildError, accept=(0, 128))
        if done.returncode:
            raise BuildError(
                f"commit {checkout.commit.short} has no file {name}",
                where={"recipe": recipe.id, "key": "build.bring"},
                next=f"edit recipes/{recipe.id}.toml",
            )
        found[Path(name).name] = done.output
    return found


def _lay_out(
    tree: BuildTree, patched: PatchedTree, recipe: PythonRecipe, brought: Mapping[str, bytes], date: datetime
) -> None:
    """A copy of the patched tree, as a repository: setuptools-scm packs the files that git knows.

    Without one it would leave out every data file that pyproject.toml does not name.
    """
    shutil.rmtree(tree.source, ignore_errors=True)
    tree.copy_source(patched.path)
    for name, data in brought.items():
        (tree.source / recipe.source.directory / name).write_bytes(data)
    git = Git.init(tree.source, bare=False, failure=BuildError)
    git.run("add", "--all", "--force", failure=BuildError)
    git.run("commit", "--quiet", "--message", "patched", env=Git.identity_env(date), failure=BuildError)


def _run(tree: BuildTree, recipe: PythonRecipe, env: PackingEnv, epoch: int, log: Path) -> Path:
    shutil.rmtree(tree.raw, ignore_errors=True)
    done = process.stream(
        [
            *(uvtool.uv_binary(), "build", "--wheel", "--no-build-isolation", "--python", env.python),
            *("--no-config", "--no-cache", "--offline", "--out-dir", tree.raw),
            tree.source / recipe.source.directory,
        ],
        failure=BuildError,
        log=log,
        env={
            **env.environment,
            "SOURCE_DATE_EPOCH": str(epoch),
            "SETUPTOOLS_SCM_PRETEND_VERSION": str(recipe.build.version),
            "GIT_CONFIG_GLOBAL": "/dev/null",
            "GIT_CONFIG_NOSYSTEM": "1",
        },
    )
    wheels = sorted(tree.raw.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        raise BuildError(
            f"setuptools made no wheel ({process.describe_status(done.returncode)})",
            where={"project": recipe.source.directory, "says": done.stdout.strip()[-1500:]},
            log=log,
        )
    return wheels[0]


def _prove(wheel: Path, stack: Series, patched: PatchedTree, recipe: PythonRecipe, log: Path) -> None:
    """Hold the wheel against the patched tree: what a patch changed must be packed as changed."""
    with zipfile.ZipFile(wheel) as archive:
        names = frozenset(archive.namelist())
        libraries = sorted(name for name in names if name.endswith(_LIBRARIES))
        if libraries:
            raise BuildError(
                f"a recipe of kind python made a wheel with {len(libraries)} libraries",
                where={"first": libraries[0], "wheel": str(wheel)},
                next='compile it with a recipe of kind "kernels"',
            )
        results = [
            result
            for patch in applied(stack, patched)
            for result in _proofs(patch, archive, names, patched, recipe)
        ]
    require(results, stack, log=log)


def _proofs(
    patch: Patch,
    archive: zipfile.ZipFile,
    names: frozenset[str],
    patched: PatchedTree,
    recipe: PythonRecipe,
) -> list[ProofResult]:
    def inside(path: str) -> str:
        return path.removeprefix(f"{recipe.source.directory}/")

    results: list[ProofResult] = []
    for file in patch.files:
        if inside(file) in names:
            same = archive.read(inside(file)) == (patched.path / file).read_bytes()
            results.append(ProofResult(patch.name, f"file {file}", same, "in the wheel with other content"))
    for proof in patch.proves:
        if proof.static and inside(proof.path) in names:
            holds = proof_holds(proof, archive.read(inside(proof.path)))
            results.append(ProofResult(patch.name, str(proof), holds, "not so in the wheel"))
        elif not proof.static and proof.kind != "imports":
            raise PatchError(
                f"{patch.name}: `{proof}` is decided by CMake, and nothing of {recipe.id} is compiled",
                where={"file": str(patch.path)},
                next="prove it with `file … contains …` or `imports …`",
            )
    return results


def _children() -> tuple[float, int]:
    """CPU seconds and the largest memory of processes that ended."""
    usage: Any = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024
