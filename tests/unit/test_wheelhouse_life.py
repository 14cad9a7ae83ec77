"""Promote, yank, lines and their way back."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from pypi_simple import ProjectPage

from sglwheel.errors import WheelhouseError
from sglwheel.files import Layout
from sglwheel.wheelhouse import Release, Wheelhouse, linerecord, pointers, publish
from sglwheel.wheelhouse.life import GpuReport, promote, unyank, yank
from sglwheel.wheelhouse.verify import verify
from wheelworld import digest, make_kernel, reports

PROVENANCE = {"recipe": {"id": "cu130"}, "flags": {"architectures": ["12.0a"]}}


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Wheelhouse:
    # What survives a power loss is not the subject here, and syncing takes most of the time.
    monkeypatch.setattr(os, "fsync", lambda _: None)
    return Wheelhouse(tmp_path / "wheelhouse")


def put(
    house: Wheelhouse, tmp_path: Path, build: int, *, gpu: bool = True, torch: str = "2.12.0", **more: str
) -> Release:
    version = f"{more.get('public', '0.3.21')}+cu130.torch{torch}.sm120a.{build}"
    tag = more.get("tag", "cp310-abi3-linux_x86_64")
    provenance = {**PROVENANCE, "recipe": {"id": more.get("recipe", "cu130")}}
    wheel = make_kernel(tmp_path / "dist", version, torch=torch, tag=tag, provenance=provenance)
    return publish(*reports(wheel, gpu=gpu, requires=f"torch=={torch}"), Layout(tmp_path), root=house.root)


def gpu_report(release: Release) -> GpuReport:
    return GpuReport(release.sha256, True, True, {"checks": [{"name": "gpu", "status": "passed"}]})


def flat(house: Wheelhouse) -> set[str]:
    return {path.name for path in house.root.glob("*.whl")}


def members(house: Wheelhouse, name: str) -> list[str]:
    pointer = linerecord.load(house, name)
    wheels = {path.name for path in (house.root / "lines" / name).glob("*.whl")}
    assert wheels == {house.read(id).filename for id in (pointer.members if pointer else ())}
    return [id.rpartition("sm120a.")[2].partition("-")[0] for id in (pointer.members if pointer else ())]


def test_a_candidate_is_promoted_by_a_gpu_report_about_its_own_bytes(
    house: Wheelhouse, tmp_path: Path
) -> None:
    release = put(house, tmp_path, 1, gpu=False)
    good = gpu_report(release)
    for bad, message in (
        (replace(good, wheel_sha256="0" * 64), "about another wheel"),
        (replace(good, gpu_checked=False), "no GPU took part"),
        (replace(good, ok=False), "has failures"),
    ):
        with pytest.raises(WheelhouseError, match=message):
            promote(house, release.id, bad)
    assert members(house, "cu130") == []
    assert members(house, "cu130.candidates") == ["1"]
    promoted = promote(house, "0.3.21+cu130.torch2.12.0.sm120a.1", good)
    assert promoted.status == "release"
    assert dict(promoted.record.checks)["gpu"] == "passed"
    assert json.loads((release.directory / f"{release.record.filename}.gpu.json").read_text())["wheel_sha256"]
    assert members(house, "cu130") == ["1"], "the line follows at once"
    assert release.path.read_bytes() == promoted.path.read_bytes()


def test_an_overridden_source_is_never_promoted(house: Wheelhouse, tmp_path: Path) -> None:
    finished, inspection, smoke = reports(make_kernel(tmp_path / "dist"))
    marked = replace(finished, marked=("overridden: repo-x",))
    release = publish(marked, inspection, smoke, Layout(tmp_path), root=house.root)
    with pytest.raises(WheelhouseError, match="changed source"):
        promote(house, release.id, gpu_report(release))


def test_a_report_that_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    for text in ("", "[]", "{}", '{"wheel_sha256": "x"}'):
        path.write_text(text)
        with pytest.raises(WheelhouseError, match="not a GPU report"):
            GpuReport.load(path)


def test_a_yanked_release_leaves_resolvers_but_not_those_who_pinned_it(
    house: Wheelhouse, tmp_path: Path
) -> None:
    put(house, tmp_path, 1)
    release = put(house, tmp_path, 2, gpu=False)
    before = digest(release.path)
    with pytest.raises(WheelhouseError, match=r"cu130\.candidates points to it"):
        yank(house, release.id, "wrong")
    yanked = yank(house, release.id, 'NaN with "fp8" & <2 GPUs>', force=True)
    assert yanked.record.yanked == 'NaN with "fp8" & <2 GPUs>'
    assert release.record.filename not in flat(house)
    assert members(house, "cu130.candidates") == ["1"], "the line went back by itself"
    assert digest(release.path) == before
    page = ProjectPage.from_html(
        "sgl-kernel", (house.root / "simple/sgl-kernel/index.html").read_text(), "https://x/"
    )
    assert [package.yanked_reason for package in page.packages] == [None, 'NaN with "fp8" & <2 GPUs>']
    top = ProjectPage.from_html("sgl-kernel", (house.root / "index.html").read_text(), "https://x/")
    assert sum(package.url.partition("#")[0].endswith(".whl") for package in top.packages) == 1
    own = ProjectPage.from_html("sgl-kernel", (release.directory / "index.html").read_text(), "https://x/")
    wheels = [package for package in own.packages if package.url.partition("#")[0].endswith(".whl")]
    assert [package.filename for package in wheels] == [release.record.filename]
    with pytest.raises(WheelhouseError, match="cannot point to what was yanked"), house.locked():
        pointers.point(house, "cu130", [release.id])
    unyank(house, release.id)
    assert release.record.filename in flat(house)


def test_a_yank_needs_a_reason(house: Wheelhouse, tmp_path: Path) -> None:
    release = put(house, tmp_path, 1)
    with pytest.raises(WheelhouseError, match="needs a reason"):
        yank(house, release.id, " ")
    with pytest.raises(WheelhouseError, match="is not yanked"):
        unyank(house, release.id)


def test_a_line_moves_only_when_its_set_is_complete(house: Wheelhouse, tmp_path: Path) -> None:
    first = put(house, tmp_path, 1)
    other = put(house, tmp_path, 1, torch="2.11.0")
    assert members(house, "cu130") == ["1", "1"]
    with house.locked():
        pointers.promise(house, "cu130", [linerecord.Cell.of(first.record), linerecord.Cell.of(other.record)])
    put(house, tmp_path, 2)
    assert members(house, "cu130") == ["1", "1"], "torch 2.11.0 is still missing"
    candidate = put(house, tmp_path, 2, torch="2.11.0", gpu=False)
    assert members(house, "cu130") == ["1", "1"], "and a candidate does not count"
    promote(house, candidate.id, gpu_report(candidate))
    assert members(house, "cu130") == ["2", "2"]
    put(house, tmp_path, 10)
    put(house, tmp_path, 10, torch="2.11.0")
    assert members(house, "cu130") == ["10", "10"], "numbers compare as numbers"
    put(house, tmp_path, 9)
    put(house, tmp_path, 9, torch="2.11.0")
    assert members(house, "cu130") == ["10", "10"], "never backwards by itself"


def test_another_version_of_the_tool_writes_every_page_again(house: Wheelhouse, tmp_path: Path) -> None:
    put(house, tmp_path, 1)
    (house.root / "lines/cu130/index.html").write_text("old words")
    house.stamp.write_text("an older tool")
    assert [(item.rule, item.detail) for item in verify(house).findings] == [
        ("derived", "is not what this version of the tool writes")
    ]
    put(house, tmp_path, 2, torch="2.11.0", public="0.3.20")
    assert verify(house).findings == ()


def test_a_line_goes_back_to_the_whole_generation_before(house: Wheelhouse, tmp_path: Path) -> None:
    for torch in ("2.11.0", "2.12.0"):
        for build in (1, 2, 3):
            release = put(house, tmp_path, build, torch=torch)
    assert members(house, "cu130") == ["3", "3"]
    yank(house, release.id, "wrong", force=True)
    assert members(house, "cu130") == ["2", "2"], "both of them, though they came one by one"


def test_rollback_goes_back_and_holds(house: Wheelhouse, tmp_path: Path) -> None:
    for build in (1, 2, 3):
        put(house, tmp_path, build)
    with house.locked():
        assert pointers.rollback(house, "cu130").held
        assert members(house, "cu130") == ["2"]
        pointers.rollback(house, "cu130")
        assert members(house, "cu130") == ["1"]
        with pytest.raises(WheelhouseError, match="nothing to go back to"):
            pointers.rollback(house, "cu130")
    four = put(house, tmp_path, 4)
    assert members(house, "cu130") == ["1"], "held"
    with house.locked():
        pointers.point(house, "cu130", [four.id])
    assert members(house, "cu130") == ["4"]
    put(house, tmp_path, 5)
    assert members(house, "cu130") == ["5"], "it moves by itself again"
    with pytest.raises(WheelhouseError, match="no such line: cu999"), house.locked():
        pointers.rollback(house, "cu999")


@pytest.mark.parametrize("other", ["cu130-next", "cu130_x", "next"])
def test_no_recipe_moves_the_line_of_another(house: Wheelhouse, tmp_path: Path, other: str) -> None:
    put(house, tmp_path, 1, gpu=False)
    put(house, tmp_path, 7, public="0.4.6", recipe=other)
    put(house, tmp_path, 2, gpu=False)
    assert members(house, "cu130") == []
    assert members(house, "cu130.candidates") == ["2"]
    assert members(house, other) == members(house, f"{other}.candidates") == ["7"]


def test_an_interrupted_move_is_finished_by_the_next_change(house: Wheelhouse, tmp_path: Path) -> None:
    put(house, tmp_path, 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pointers, "render", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            put(house, tmp_path, 2)
    put(house, tmp_path, 3, torch="2.11.0")
    assert members(house, "cu130.candidates") == ["2"] or members(house, "cu130.candidates") == ["3"]


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".git", "A"])
def test_a_hostile_line_name_is_refused(house: Wheelhouse, name: str) -> None:
    with pytest.raises(WheelhouseError, match="not a line's name"):
        linerecord.load(house, name)


def test_find_takes_what_people_paste(house: Wheelhouse, tmp_path: Path) -> None:
    release = put(house, tmp_path, 1)
    put(house, tmp_path, 12)
    for text in (
        release.id,
        release.record.filename,
        f"wheelhouse/{release.record.filename}",
        release.record.version,
        f"sgl-kernel=={release.record.version}",
        release.sha256[:12],
        f"sha256:{release.sha256}",
        "sm120a.12",
    ):
        assert house.find(text).id.endswith("x86_64")
    with pytest.raises(WheelhouseError, match="names 2 releases"):
        house.find("sm120a")
    with pytest.raises(WheelhouseError, match="names no release"):
        house.find("nothing")
