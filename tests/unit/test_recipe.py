"""Recipes: every mistake at once, with its address, frozen in golden files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from packaging.version import Version

from sglwheel import console, recipe
from sglwheel.errors import UsageError
from sglwheel.files import Layout

ROOT = Path(__file__).parents[2]
CASES = sorted((ROOT / "tests/golden/recipe").glob("*.toml"))

GOOD = b"""
schema = 1
summary = "a wheel"
[source]
git = "https://example.org/repo"
commit = "6ffc74efd7d23627c0245efb61af7f62cde4a970"
directory = "kernel"
series = "s"
[torch]
version = "2.12.0"
cuda = "cu130"
[build]
cuda-toolkit = "13.0"
architectures = ["12.0a"]
[build.cmake]
FP4 = true
[wheel]
build = 1
max-size-mib = 9
[smoke]
imports = ["kernel"]
"""


def render(error: UsageError, capsys: pytest.CaptureFixture[str]) -> str:
    console.report(error)
    return capsys.readouterr().err


@pytest.mark.parametrize("case", CASES, ids=[case.stem for case in CASES])
def test_mistakes_are_told_at_once(
    case: Path, golden: Callable[[str, str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UsageError) as caught:
        recipe.parse(case.read_bytes(), name=case.stem, path=f"recipes/{case.name}")
    assert caught.value.exit_code == 2
    golden(f"recipe/{case.stem}.txt", render(caught.value, capsys))


def test_there_are_cases() -> None:
    assert len(CASES) >= 10


def test_a_good_recipe_is_frozen_and_typed() -> None:
    parsed = recipe.parse(GOOD, name="good", path="recipes/good.toml")
    assert parsed.torch.version == Version("2.12.0")
    assert [arch.sm for arch in parsed.build.architectures] == ["sm_120a"]
    assert parsed.id == "good"
    with pytest.raises(Exception, match="frozen"):
        parsed.summary = "other"


def test_digest_ignores_comments_and_order_but_no_value() -> None:
    one = recipe.parse(GOOD, name="good", path="p")
    commented = recipe.parse(b"# hello\n" + GOOD, name="good", path="p")
    other = recipe.parse(GOOD.replace(b"FP4 = true", b"FP4 = false"), name="good", path="p")
    assert one.digest == commented.digest != other.digest


def test_with_torch_changes_only_torch() -> None:
    one = recipe.parse(GOOD, name="good", path="p")
    two = one.with_torch("2.11.0")
    assert two.torch.version == Version("2.11.0")
    assert two.build == one.build
    with pytest.raises(UsageError, match="local part"):
        one.with_torch("2.11.0+cu130")


def test_unknown_recipe_suggests_a_near_one(tmp_path: Path) -> None:
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes/cu130.toml").write_bytes(GOOD)
    with pytest.raises(UsageError, match="did you mean 'cu130'"):
        recipe.load(Layout(tmp_path), "cu13O")


@pytest.mark.parametrize("name", ["../recipes/cu130", "/etc/passwd", "", "a b"])
def test_a_recipe_name_is_not_a_path(tmp_path: Path, name: str) -> None:
    (tmp_path / "recipes").mkdir()
    with pytest.raises(UsageError, match="no recipe"):
        recipe.load(Layout(tmp_path), name)


def test_a_kind_is_one_that_exists_and_has_its_own_keys() -> None:
    with pytest.raises(UsageError) as caught:
        recipe.parse(b'kind = "rust"\n' + GOOD, name="r", path="recipes/r.toml")
    assert caught.value.where == {"kind": 'must be "kernels" or "python"'}
    with pytest.raises(UsageError) as caught:
        recipe.parse(b'kind = "python"\n' + GOOD, name="r", path="recipes/r.toml")
    assert caught.value.where["build.version"] == "missing"
    assert caught.value.where["build.cuda-toolkit"].startswith("unknown key")


@pytest.mark.parametrize("name", recipe.names(Layout(ROOT)))
def test_shipped_recipes_load(name: str) -> None:
    assert recipe.load(Layout(ROOT), name).id == name


def test_shipped_schema_is_current() -> None:
    shipped = (ROOT / "docs/recipe.schema.json").read_text()
    assert shipped == recipe.json_schema(), "run `sglwheel schema > docs/recipe.schema.json`"
    kinds = [json.loads(shipped)["$defs"][model.__name__] for model in recipe.KINDS.values()]
    assert all(kind["additionalProperties"] is False for kind in kinds)
