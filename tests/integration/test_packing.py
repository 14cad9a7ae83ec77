"""Recipes of Python alone: packed by the real setuptools, proven in the wheel, tagged for any platform."""

from __future__ import annotations

import json
import subprocess
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from packaging.version import Version

from patchworld import START, World
from sglwheel import finish, kinds, patching, recipe, series
from sglwheel.build import packing
from sglwheel.errors import BuildError, PatchError, SglwheelError, UsageError
from sglwheel.inspect import Expectation, inspect
from sglwheel.mirrors import Mirrors
from sglwheel.recipe import PythonRecipe
from sglwheel.series.predicateparser import parse
from sglwheel.series.predicates import Facts
from sglwheel.source import Dependencies
from sglwheel.toolchain import uvtool
from sglwheel.toolchain.packing import PackingEnv

pytestmark = pytest.mark.integration
TABLE = "python/tiny/table.py"
SIZES = "SIZES = {\n    9: 64,\n    10: 64,\n}\n"
PYPROJECT = """
[build-system]
requires = ["setuptools", "setuptools-scm"]
build-backend = "setuptools.build_meta"
[project]
name = "tiny"
dynamic = ["version"]
readme = "README.md"
dependencies = ["aiohttp", "torch==2.9.1"]
[tool.setuptools.packages.find]
include = ["tiny*"]
[tool.setuptools_scm]
root = ".."
version_file = "tiny/_version.py"
"""
RECIPE = """
schema = 1
kind = "python"
summary = "a test"
[source]
git = "https://example.invalid/up"
commit = "{commit}"
directory = "python"
series = "s"
[torch]
version = "2.12.0"
cuda = "cu130"
[build]
version = "1.2.3"
architectures = ["12.0a"]
bring = {bring}
[wheel]
build = 4
max-size-mib = 1
[smoke]
imports = ["tiny"]
"""


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> PackingEnv:
    """An environment with setuptools at the versions that recipes default to, and no torch."""
    root = tmp_path_factory.mktemp("env")
    target = python_recipe("1" * 40)
    tools = [f"{name}=={version}" for name, version in target.build.tools.items()]
    for words in (["venv", root / "venv"], ["pip", "install", "-q", "-p", root / "venv", *tools]):
        subprocess.run([uvtool.uv_binary(), *words], check=True, capture_output=True)
    torch: Any = SimpleNamespace(
        version=Version("2.12.0"),
        full_version="2.12.0+cu130",
        cuda="13.0",
        git_version="3" * 40,
        sha256="4" * 64,
        cxx11_abi=True,
        record=None,
    )
    return PackingEnv(
        python=root / "venv/bin/python",
        torch=torch,
        environment={"PATH": f"{root}/venv/bin:/usr/bin:/bin", "HOME": str(root), "LC_ALL": "C.UTF-8"},
        packages=(),
        description={"setuptools": "80.9.0"},
        identity="5" * 64,
        lock=SimpleNamespace(),  # type: ignore[arg-type]
    )


def python_recipe(commit: str, bring: str = '["README.md"]') -> PythonRecipe:
    found = recipe.parse(RECIPE.format(commit=commit, bring=bring).encode(), name="r", path="recipes/r.toml")
    assert isinstance(found, PythonRecipe)
    return found


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    world.commit(
        {
            "README.md": "# tiny, at the top\n",
            "LICENSE": "licence\n",
            "python/pyproject.toml": PYPROJECT,
            "python/tiny/__init__.py": "import aiohttp\n",
            TABLE: SIZES,
            "python/tiny/data/models.json": "{}\n",
        }
    )
    return world


def pack(world: World, env: PackingEnv, **options: str) -> tuple[Any, Any, Any]:
    target = python_recipe(world.git("rev-parse", "HEAD").strip(), **options)
    facts = Facts.of(
        target, cmake=None, cuda=Version("13.0"), torch=Version("2.12.0"), contains=lambda _commit: False
    )
    stack = series.load(world.layout, "s", directory="python")
    checkout: Any = world.checkout()
    patched = patching.apply(checkout, stack, facts, world.layout, target)
    return packing.pack(target, patched, checkout, env, world.layout), patched, target


def add_sm120(world: World, proof: str = f"file {TABLE} contains 12: 64") -> None:
    world.make_patch(
        "sm120",
        {TABLE: SIZES.replace("}", "    12: 64,\n}")},
        trailers=f"Upstream-Status: Pending\nProves: {proof}",
    )


def test_a_patched_wheel_for_any_platform(world: World, env: PackingEnv) -> None:
    add_sm120(world)
    built, patched, target = pack(world, env)
    checkout: Any = SimpleNamespace(commit=patched.base, tree="6" * 40, date=START)
    finished = finish.finish(
        built, target, patched, Dependencies(()), env, checkout, world.layout, tag=finish.pure_tag
    )
    assert finished.path.name == "tiny-1.2.3+cu130.torch2.12.0.sm120a.4-py3-none-any.whl"
    with zipfile.ZipFile(finished.path) as archive:
        assert b"12: 64" in archive.read("tiny/table.py")
        # Not named in pyproject.toml: packed because git knows it, as in upstream's own release.
        assert "tiny/data/models.json" in archive.namelist()
        info = next(name for name in archive.namelist() if name.endswith("/METADATA")).partition("/")[0]
        metadata = archive.read(f"{info}/METADATA").decode()
        assert f"{info}/licenses/LICENSE" in archive.namelist()
        origin = json.loads(archive.read(f"{info}/sglwheel.json"))
        assert origin["recipe"]["kind"] == "python" and origin["toolchain"]["setuptools"] == "80.9.0"
        assert "cuda-toolkit" not in archive.read(f"{info}/sboms/tiny.cdx.json").decode()
    assert "# tiny, at the top" in metadata
    assert "Requires-Dist: torch==2.12.0\n" in metadata and "torch==2.9.1" not in metadata
    found = inspect(finished.path, expect=Expectation.of(target))
    assert [finding for finding in found.findings if finding.severity == "error"] == []
    first = finished.path.read_bytes()
    assert pack(world, env)[0].reused
    (built.tree / "result.json").unlink()
    again, _, _ = pack(world, env)
    assert not again.reused
    finished = finish.finish(
        again, target, patched, Dependencies(()), env, checkout, world.layout, tag=finish.pure_tag
    )
    assert finished.path.read_bytes() == first


def test_a_patch_that_the_wheel_does_not_show(world: World, env: PackingEnv) -> None:
    world.commit({"python/tiny/_version.py": "version = 'none'\n"})
    world.make_patch(
        "version",
        {"python/tiny/_version.py": "version = 'mine'\n"},
        trailers="Upstream-Status: Pending\nProves: file python/tiny/_version.py contains 'mine'",
    )
    with pytest.raises(PatchError, match="proves nothing") as caught:
        pack(world, env)  # setuptools-scm writes that file anew
    assert "not so in the wheel" in caught.value.where["patches/s/version.patch"]
    assert not list(world.layout.work.glob("r/build-*/result.json"))


def test_what_only_cmake_could_prove(world: World, env: PackingEnv) -> None:
    add_sm120(world, proof="target-absent flash_ops")
    with pytest.raises(PatchError, match="decided by CMake") as caught:
        pack(world, env)
    assert caught.value.exit_code == 4


@pytest.mark.parametrize(
    ("files", "options", "message"),
    [
        ({"python/tiny/fast.so": "binary\n"}, {}, "with 1 libraries"),
        ({}, {"bring": '["NOTICE"]'}, "has no file NOTICE"),
        ({"python/pyproject.toml": "[project\n"}, {}, "setuptools made no wheel"),
    ],
)
def test_what_cannot_be_packed(
    world: World, env: PackingEnv, files: dict[str, str], options: dict[str, str], message: str
) -> None:
    if files:
        world.commit(files)
    with pytest.raises(BuildError, match=message):
        pack(world, env, **options)


def test_conditions_on_cmake_are_not_met_where_there_is_none() -> None:
    facts = Facts.of(
        python_recipe("1" * 40),
        cmake=None,
        cuda=Version("13.0"),
        torch=Version("2.12.0"),
        contains=lambda _commit: False,
    )
    verdict = parse("cmake < 3.31").evaluate(facts)
    assert not verdict.needed and verdict.because == "cmake takes no part in this build"
    assert parse("architectures has 12.0a").evaluate(facts).needed


def test_what_only_kernels_have_is_refused(world: World) -> None:
    target = python_recipe("1" * 40)
    with pytest.raises(UsageError, match="no CUDA toolkit"):
        target.with_provider("system")
    with pytest.raises(UsageError, match="fetches no sources"):
        kinds.of(target, world.layout, Mirrors({}), overrides={"cutlass": "/x"})
    assert isinstance(kinds.of(target, world.layout, Mirrors({})), kinds.PythonAlone)
    assert target.with_torch("2.11.0").torch.version == Version("2.11.0")


def test_a_compiled_wheel_is_not_taken_for_one_of_python_alone(tmp_path: Path) -> None:
    raw = finish.Raw("tiny-1.dist-info", "py3", "none", {"tiny/x.so": b"\x7fELF"})
    with pytest.raises(SglwheelError, match=r"not of Python alone: tiny/x\.so"):
        finish.pure_tag(raw)
    assert finish.pure_tag(finish.Raw("tiny-1.dist-info", "py3", "none", {})) == "py3-none-any"
