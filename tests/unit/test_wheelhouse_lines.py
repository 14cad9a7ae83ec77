"""The printed lines, as people see them: golden, and safe for every path."""

from __future__ import annotations

import json
import shlex
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from sglwheel.files import Layout
from sglwheel.wheelhouse import Lines, publish
from sglwheel.wheelhouse.record import Record
from wheelworld import make_kernel, reports


@pytest.fixture
def record(tmp_path: Path) -> Record:
    return publish(*reports(make_kernel(tmp_path / "dist")), Layout(tmp_path)).record


@pytest.mark.parametrize("location", ["https://wheels.example/sgl", "/srv/wheel house", "$WHEELHOUSE"])
def test_golden(record: Record, location: str, golden: Callable[[str, str], None]) -> None:
    shown = Lines(record.model_copy(update={"sha256": "5" * 64}), location).to_json()
    text = "".join(f"--- {name}\n{value}\n" for name, value in shown.items())
    golden(f"lines/{location.strip('$/').replace('/', '_').replace(' ', '_').replace(':', '')}.txt", text)


@pytest.mark.parametrize("location", ["/a b", "/it's", '/"q"', "/$(touch x)", "/a;b", "/~x", "https://h/ü"])
def test_no_location_breaks_out_of_the_line(record: Record, location: str) -> None:
    line = Lines(record, location).uv
    words = shlex.split(line.partition("; uv")[2])
    assert words[words.index("--find-links") + 1] == f"{location}/builds/{record.id}/" + (
        "index.html" if "://" in location else ""
    )


def test_shells_agree_that_the_lines_are_well_formed(record: Record) -> None:
    lines = Lines(record, "/srv/it's")
    for text in (lines.uv, lines.pip, lines.uv_replacing, lines.pip_replacing, lines.hold):
        assert text is not None
        for shell in ("sh", "bash"):
            subprocess.run([shell, "-n", "-c", text], check=True)


def test_the_project_snippet_is_toml(record: Record) -> None:
    value = tomllib.loads(Lines(record, 'C:\\odd "path"').project)
    assert value["tool"]["uv"]["index"][0]["url"].startswith('C:\\odd "path"/builds/')
    assert value["project"]["dependencies"] == [f"sgl-kernel=={record.version}", "torch==2.12.0"]


def test_only_names_that_share_files_are_replaced(record: Record) -> None:
    assert Lines(record.model_copy(update={"name": "sgl-kernel-sample"}), "/x").uv_replacing is None
    newer = Lines(record.model_copy(update={"name": "sglang-kernel"}), "/x").uv_replacing
    assert newer is not None
    assert "uv pip uninstall sgl-kernel sglang-kernel" in newer


def test_everything_is_in_the_json(record: Record) -> None:
    assert json.dumps(Lines(record, "/x").to_json())


def test_a_wheel_of_python_alone_leaves_its_requirements_to_the_node(record: Record) -> None:
    alone = record.model_copy(update={"kind": "python"})
    lines = Lines(alone, "/srv/wheels")
    assert not record.alone and alone.alone
    assert lines.uv.startswith("uv pip install --no-deps --no-index --no-cache --find-links ")
    assert lines.pip.startswith("python -m pip install --no-deps --no-index ")
    assert "with --no-deps\n" in lines.requirements
