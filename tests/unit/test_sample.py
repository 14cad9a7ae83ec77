"""The sample upstream is the same everywhere: ids are constants, whatever the host is like."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from sglwheel import sample
from sglwheel.errors import SourceError

ROOT = Path(__file__).parents[2]
SAMPLE = ROOT / "recipes" / "sample"
URL = "https://sample.invalid"

PIN = "ee6f303da6fe4afebb067d424f64ee31809a4ef4"
HISTORY = {
    f"{URL}/tinyview.git": [
        "a8f784c03a485ec551a2c73ec49712e7cec2e2a0 tinyview 1.0.0",
    ],
    f"{URL}/tinyfmt.git": [
        "e804296c27bc58a2f4e0f78c4e686357e567a533 tinyfmt 2.0.0",
    ],
    f"{URL}/sample.git": [
        "0452b2af4eb1c3119e45c0e2a7490fd12ae3ce18 NVFP4 and RMSNorm kernels",
        "08eaacf99299874545185c387e1a344fe3a0eba5 Layers that use the kernels",
        "35aa0c296ab5c6323e5821db93af16e7cc20851f docs: say what NVFP4 is",
        "ee6f303da6fe4afebb067d424f64ee31809a4ef4 sample-kernel 0.1.0",
        "6c646bafe9a6dbd366e7eee95074ef0a90bfef78 tests: a larger matrix product",
        "9aa91c64770f1ac14b9b331ca55e115631d75149 FA3 follows its option",
        "cc6f0ad3047a4f4308843f58f34f42fce31eb859 Find CCCL on CUDA 13",
        "276faaa44d082103c37d0badb648378b4e7e8647 sparse_ops: keep what is above a threshold",
        "d795ecddeddbac7723019aec80de604f6f1a7dfb Move sample-kernel to python/sample/kernels/aot",
        "f6181863225a5d8f8c80c38e2f588fe2e8b19844 Rename the distribution to sampled-kernel, 0.2.0",
    ],
    f"{URL}/serving.git": [
        "5126efb28764e770e4bce514d5df03bd83132bb8 Tables for two and four GPUs",
        "ede279067f23ff3e0d16bef104c576a93c9f979d Eight GPUs",
        "c19286d12ce0896b09bc5770bcdb6ac3386bbdf1 Ask the tables instead of indexing them",
    ],
}
TINYJSON_SHA256 = "3c87d8d4528d4744ad25073d01cb88e248249a242de4b156a72957a8d9cc0488"
HOSTILE = """
[user]
  name = Somebody Else
  email = else@example.invalid
[commit]
  gpgSign = true
[core]
  autocrlf = true
  hooksPath = /nonexistent
[init]
  defaultBranch = trunk
  defaultObjectFormat = sha256
[i18n]
  commitEncoding = latin1
[fastimport]
  unpackLimit = 1
"""


def git(repository: Path, *words: str) -> str:
    return subprocess.run(
        ["git", "-C", repository, *words], check=True, capture_output=True, text=True
    ).stdout


def history(repository: Path) -> list[str]:
    return git(repository, "log", "--reverse", "--format=%H %s", "main").splitlines()


@pytest.fixture(scope="module")
def replayed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return sample.replay(SAMPLE, tmp_path_factory.mktemp("sample"))


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / ".gitconfig").write_text(HOSTILE)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / ".gitconfig"))
    monkeypatch.setenv("GIT_AUTHOR_DATE", "2001-01-01T00:00:00Z")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("TZ", "Pacific/Kiritimati")
    time.tzset()
    umask = os.umask(0o077)
    yield
    os.umask(umask)
    monkeypatch.undo()
    time.tzset()


def test_ids_are_constant(replayed: dict[str, Path]) -> None:
    assert {url: history(path) for url, path in replayed.items() if path.is_dir()} == HISTORY


def test_a_hostile_host_changes_nothing(
    hostile: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = sample.replay(SAMPLE, tmp_path / "into")
    monkeypatch.delenv("GIT_DIR")
    assert {url: history(path) for url, path in result.items() if path.is_dir()} == HISTORY
    archive = result[f"{URL}/archives/tinyjson-1.1.0.tar"]
    assert hashlib.sha256(archive.read_bytes()).hexdigest() == TINYJSON_SHA256


def test_repeating_converges(tmp_path: Path) -> None:
    first = sample.replay(SAMPLE, tmp_path)
    git(first[f"{URL}/sample.git"], "update-ref", "refs/heads/main", PIN)
    again = sample.replay(SAMPLE, tmp_path)
    assert {url: history(path) for url, path in again.items() if path.is_dir()} == HISTORY


def test_trees_and_recipe_name_the_replayed_ids(replayed: dict[str, Path]) -> None:
    kernel = SAMPLE / "upstream" / "sample-kernel"

    def tag(path: Path) -> str:
        found = re.search(r"GIT_TAG (\w+)", path.read_text())
        assert found is not None
        return found[1]

    head = {name: history(replayed[f"{URL}/{name}.git"])[-1][:40] for name in ("tinyview", "tinyfmt")}
    assert tag(SAMPLE / "tinyfmt" / "CMakeLists.txt") == head["tinyview"]
    assert tag(kernel / "CMakeLists.txt") == head["tinyfmt"]
    assert f"SHA256={TINYJSON_SHA256}" in (kernel / "cmake" / "dependencies.cmake").read_text()
    recipe = tomllib.loads((SAMPLE.parent / "sample.toml").read_text())
    assert recipe["source"]["commit"] == PIN
    serving = tomllib.loads((SAMPLE.parent / "sample-serving.toml").read_text())
    assert serving["source"]["commit"] == history(replayed[f"{URL}/serving.git"])[1][:40]


def test_any_commit_can_be_fetched_without_blobs(replayed: dict[str, Path], tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet", "clone")
    clone = tmp_path / "clone"
    # The environment's own git: what a build host has.
    git(
        clone,
        "fetch",
        "--quiet",
        "--filter=blob:none",
        "--depth=1",
        replayed[f"{URL}/sample.git"].as_uri(),
        PIN,
    )
    assert git(clone, "rev-parse", "FETCH_HEAD").strip() == PIN


def test_the_series_applies_at_the_pin_and_one_fix_was_merged_verbatim(
    replayed: dict[str, Path], tmp_path: Path
) -> None:
    series = ROOT / "patches" / "sample"
    names = [line for line in (series / "series").read_text().splitlines() if not line.startswith("#")]
    assert sorted(names) == sorted(path.name for path in series.glob("*.patch"))
    git(tmp_path, "clone", "--quiet", str(replayed[f"{URL}/sample.git"]), "work")
    work = tmp_path / "work"
    git(work, "checkout", "--quiet", PIN)
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.invalid", "-c", "commit.gpgSign=false")
    git(work, *identity, "am", "--quiet", *(str(series / name) for name in names))
    assert git(work, "rev-list", "--count", f"{PIN}..HEAD").strip() == str(len(names))

    def patch_id(text: str) -> str:
        done = subprocess.run(
            ["git", "patch-id", "--stable"], input=text, capture_output=True, text=True, check=True
        )
        return done.stdout.split()[0]

    merged = next(
        line[:40] for line in HISTORY[f"{URL}/sample.git"] if line.endswith("FA3 follows its option")
    )
    ours = (series / "fa3-build-guard.patch").read_text()
    assert patch_id(ours) == patch_id(git(work, "show", merged))


def test_an_edit_without_effect_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "a.txt").write_text("text\n")
    (tmp_path / "history.toml").write_text(
        'schema = 1\nauthor = "A <a@example.invalid>"\nbranch = "main"\n'
        '[[repositories]]\nurl = "https://sample.invalid/a.git"\n'
        '[[repositories.commits]]\nmessage = "m"\ndate = 2026-01-01T00:00:00Z\noverlay = "tree"\n'
        '[[repositories.commits.replacements]]\nfile = "a.txt"\nold = "absent"\nnew = ""\n'
    )
    with pytest.raises(SourceError, match="0 times"):
        sample.replay(tmp_path, tmp_path / "into")


def test_a_misspelt_key_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "history.toml").write_text(
        'schema = 1\nauthor = "A <a@b>"\nbranch = "main"\nrepository = []\n'
    )
    with pytest.raises(SourceError, match="repository"):
        sample.load(tmp_path)
