"""Finishing a real wheel of the tiny project, read back with the standard tools."""

from __future__ import annotations

import email
import hashlib
import json
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
import uv
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packaging.utils import parse_wheel_filename
from wheel.wheelfile import WheelFile

from buildworld import RECIPE, World
from sglwheel import files
from sglwheel.errors import BuildError

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    root = tmp_path_factory.mktemp("finish")
    store = root / "store" / "repo-x"
    (store / "docs").mkdir(parents=True)
    (store / "LICENSE.txt").write_text("x's licence\n")
    (store / "docs" / "NOTICE").write_text("x's notice\n")
    fetched = SimpleNamespace(
        name="repo-x",
        kind="git",
        url="https://github.com/Example/x.git",
        requested="v1",
        commit="6" * 40,
        sha256=None,
        tree="7" * 40,
        content="8" * 64,
        path=store,
        via="override",
        license_files=(store / "LICENSE.txt", Path("docs/NOTICE")),
    )
    return World(root, sources=(fetched,))


@pytest.fixture(scope="module", autouse=True)
def no_copies() -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sglwheel.source.materialize", lambda dependencies, into: {})
        yield


def test_finished_wheel_says_what_it_is(world: World) -> None:
    built = world.build()
    finished = world.finish(built)
    stem = "tiny_kernel-0.1.0+cu130.torch2.12.0.sm120a.1"
    name, version, _, tags = parse_wheel_filename(finished.path.name)
    assert (name, version) == ("tiny-kernel", finished.version)
    assert finished.path.name == f"{stem}-{finished.tag}.whl"
    assert {str(tag) for tag in tags} == {finished.tag}
    assert finished.tag.startswith("cp310-abi3-manylinux_2_")
    assert finished.requires_torch == "torch==2.12.0"
    assert finished.marked == ("overridden: repo-x",)
    info = f"{stem}.dist-info"
    with WheelFile(finished.path) as wheel:  # reading checks RECORD
        contents = {name: wheel.read(name) for name in wheel.namelist()}
        order = wheel.namelist()
    assert order[-1] == f"{info}/RECORD"
    assert {name for name in contents if not name.startswith(info)} == {
        "tiny/__init__.py",
        "tiny/tiny.abi3.so",
    }
    recorded = {line.split(",")[0] for line in contents[f"{info}/RECORD"].decode().splitlines()}
    assert recorded == set(contents)
    text = contents[f"{info}/METADATA"].decode()
    metadata = email.message_from_string(text)
    assert text.startswith("Metadata-Version: 2.4\n")
    assert metadata["Name"] == "tiny-kernel" and metadata["Version"] == str(finished.version)
    assert metadata.get_all("Requires-Dist") == ["numpy", "torch==2.12.0"]
    assert metadata["Project-URL"] == "Homepage, https://example.invalid/"
    assert "# Tiny ünïcode" in text
    licences = metadata.get_all("License-File")
    assert licences == ["LICENSE", "repo-x/LICENSE.txt", "repo-x/docs/NOTICE"]
    assert contents[f"{info}/licenses/repo-x/LICENSE.txt"] == b"x's licence\n"
    assert f"Tag: {finished.tag}\n" in contents[f"{info}/WHEEL"].decode()
    origin = json.loads(contents[f"{info}/sglwheel.json"])
    assert origin["fingerprint"] == built.fingerprint and origin["overridden"]
    assert origin["torch"]["git-version"] == "3" * 40
    document = contents[f"{info}/sboms/tiny-kernel.cdx.json"].decode()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(document) is None
    components = {item["name"] for item in json.loads(document)["components"]}
    assert components == {"repo-x", "torch", "cuda-toolkit"}
    everything = b"".join(contents.values())
    assert str(world.root).encode() not in everything, "a path of this host is in the wheel"


def test_same_inputs_same_bytes_at_any_time_and_umask(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    built = world.build()
    first = world.finish(built).path
    digest = files.sha256(first)
    first.unlink()
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "999999999")
    script = "import os; os.umask(0o077)"
    subprocess.run([sys.executable, "-c", script], check=True)
    for path in (built.tree / "source").rglob("*"):
        path.chmod(path.stat().st_mode | 0o100)
    second = world.finish(built).path
    assert files.sha256(second) == digest
    assert [path.name for path in second.parent.iterdir()] == [second.name]


def test_several_runs_may_finish_the_same_wheel_at_once(world: World) -> None:
    built = world.build()
    before = world.finish(built)
    expected = before.path.read_bytes()
    with ThreadPoolExecutor(8) as pool:
        finished = list(pool.map(lambda _: world.finish(built), range(64)))
    assert {one.path.read_bytes() for one in finished} == {expected}
    assert list(before.path.parent.iterdir()) == [before.path]


def test_uv_installs_it_and_pip_agrees(world: World, tmp_path: Path) -> None:
    finished = world.finish(world.build())
    target = tmp_path / "site"
    subprocess.run(
        [uv.find_uv_bin(), "pip", "install", "--no-config", "--offline", "--no-deps", "--no-cache",
         "--python", sys.executable, "--target", target, finished.path],
        check=True, capture_output=True,
    )  # fmt: skip
    (info,) = target.glob("*.dist-info")
    assert info.name == f"tiny_kernel-{finished.version}.dist-info"
    library = (target / "tiny" / "tiny.abi3.so").read_bytes()
    assert hashlib.sha256(library).hexdigest() in {
        hashlib.sha256(data).hexdigest() for data in _members(finished.path)
    }


def test_a_wheel_whose_record_lies_is_refused(world: World, tmp_path: Path) -> None:
    built = world.build()
    broken = tmp_path / built.path.name
    with zipfile.ZipFile(built.path) as old, zipfile.ZipFile(broken, "w") as new:
        for item in old.infolist():
            data = old.read(item)
            new.writestr(item, data + b"\n" if item.filename.endswith(".so") else data)
    with pytest.raises(BuildError, match="cannot be read"):
        world.finish(SimpleNamespace(**{**vars(built), "path": broken}))  # type: ignore[arg-type]


def test_nothing_compiled_is_an_error(world: World, tmp_path: Path) -> None:
    built = world.build()
    empty = tmp_path / built.path.name
    with WheelFile(built.path) as old, WheelFile(empty, "w") as new:
        for item in old.infolist():
            if not item.filename.endswith((".so", "/RECORD")):
                new.writestr(item, old.read(item))
    with pytest.raises(BuildError, match="holds no library"):
        world.finish(SimpleNamespace(**{**vars(built), "path": empty}))  # type: ignore[arg-type]


def test_the_version_tells_torch_and_targets(world: World) -> None:
    world.text = RECIPE.replace('architectures = ["12.0a"]', 'architectures = ["12.0a", "9.0a"]')
    try:
        finished = world.finish(world.build())
    finally:
        world.text = RECIPE
    assert str(finished.version) == "0.1.0+cu130.torch2.12.0.sm90a.sm120a.1"


def _members(wheel: Path) -> list[bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return [archive.read(name) for name in archive.namelist()]
