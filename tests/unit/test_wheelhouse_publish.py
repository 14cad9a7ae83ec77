"""Publishing: what is refused, what is idempotent, what clients then find."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from packaging.utils import parse_wheel_filename
from pypi_simple import ProjectPage

from sglwheel.errors import WheelhouseError
from sglwheel.files import Layout
from sglwheel.wheelhouse import Release, Wheelhouse, publish
from sglwheel.wheelhouse.settle import settle
from sglwheel.wheelhouse.wheelfile import release_id
from wheelworld import Finished, Report, digest, make_kernel, make_wheel, reports


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path / "checkout")


def put(layout: Layout, wheel: Path, *, gpu: bool = False) -> Release:
    return publish(*reports(wheel, gpu=gpu), layout)


def snapshot(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and ".state" not in path.parts
    }


def test_a_published_wheel_can_be_read_back_everywhere(layout: Layout, tmp_path: Path) -> None:
    wheel = make_kernel(tmp_path / "dist")
    release = put(layout, wheel)
    root = layout.wheelhouse
    assert release.status == "candidate"
    assert release.path.read_bytes() == wheel.read_bytes() == (root / wheel.name).read_bytes()
    assert release.path.samefile(root / wheel.name), "two names, one copy"
    for kind in ("inspection", "smoke", "provenance"):
        result = json.loads((release.directory / f"{wheel.name}.{kind}.json").read_text())
        assert result["wheel_sha256"] == digest(wheel)
    page = (root / "index.html").read_text()
    assert f"sgl_kernel-0.3.21%2Bcu130.torch2.12.0.sm120a.1-py3-none-any.whl#sha256={digest(wheel)}" in page


def test_an_independent_parser_agrees_with_both_index_formats(layout: Layout, tmp_path: Path) -> None:
    wheel = make_kernel(tmp_path / "dist")
    release = put(layout, wheel)
    put(layout, make_kernel(tmp_path / "dist", "0.3.21+cu130.torch2.12.0.sm120a.2"))
    simple = layout.wheelhouse / "simple/sgl-kernel"
    base = "https://example.org/wheels/simple/sgl-kernel/"
    html = ProjectPage.from_html("sgl-kernel", (simple / "index.html").read_text(), base)
    data = ProjectPage.from_json_data(json.loads((simple / "index.json").read_text()), base)
    for page in (html, data):
        assert [package.filename for package in page.packages] == [
            wheel.name,
            wheel.name.replace("120a.1", "120a.2"),
        ]
        first = page.packages[0]
        assert first.digests == {"sha256": digest(wheel)}
        assert first.requires_python == ">=3.10"
        assert first.is_yanked is False
        assert first.metadata_digests == {"sha256": release.record.metadata_sha256}
        assert first.url.startswith(
            f"https://example.org/wheels/builds/{release.id}/sgl_kernel-0.3.21%2Bcu130"
        )
    assert data.packages[0].size == wheel.stat().st_size
    assert data.versions is not None and len(data.versions) == 2
    metadata = release.directory / f"{wheel.name}.metadata"
    assert digest(metadata) == release.record.metadata_sha256


def test_a_gpu_report_makes_a_release_unless_a_source_was_overridden(layout: Layout, tmp_path: Path) -> None:
    assert put(layout, make_kernel(tmp_path / "a"), gpu=True).status == "release"
    finished, inspection, smoke = reports(make_kernel(tmp_path / "b", "0.3.21+b.1"), gpu=True)
    marked = publish(replace(finished, marked=("overridden: repo-x",)), inspection, smoke, layout)
    assert marked.status == "candidate"
    assert marked.record.marked == ("overridden: repo-x",)


def test_the_same_bytes_again_change_nothing(layout: Layout, tmp_path: Path) -> None:
    wheel = make_kernel(tmp_path / "dist")
    put(layout, wheel)
    before = snapshot(layout.wheelhouse)
    put(layout, wheel)
    assert snapshot(layout.wheelhouse) == before


def test_other_bytes_under_a_used_name_are_refused(layout: Layout, tmp_path: Path) -> None:
    put(layout, make_kernel(tmp_path / "one"))
    before = snapshot(layout.wheelhouse)
    with pytest.raises(WheelhouseError, match="already published with other bytes") as caught:
        put(layout, make_kernel(tmp_path / "two", content="changed = True\n"))
    assert caught.value.exit_code == 9
    assert "raise `wheel.build` in the recipe" in str(caught.value.next)
    assert snapshot(layout.wheelhouse) == before


def test_reports_must_be_good_and_about_this_wheel(layout: Layout, tmp_path: Path) -> None:
    wheel = make_kernel(tmp_path / "dist")
    finished, inspection, smoke = reports(wheel)
    other = Report("0" * 64)
    for trio, message in (
        ((finished, other, smoke), "inspection report is about another wheel"),
        ((finished, inspection, other), "smoke report is about another wheel"),
        ((finished, replace(inspection, ok=False), smoke), "inspection report .* has failures"),
        ((finished, inspection, replace(smoke, ok=False)), "smoke report .* has failures"),
        (
            (replace(finished, requires_torch="torch==2.13.0"), inspection, smoke),
            "does not require torch==2.13.0",
        ),
    ):
        with pytest.raises(WheelhouseError, match=message):
            publish(*trio, layout)
    assert not layout.wheelhouse.exists()


def torn(wheel: Path) -> Path:
    wheel.write_bytes(wheel.read_bytes()[:-100])
    return wheel


def renamed(wheel: Path) -> Path:
    return wheel.rename(wheel.with_name(wheel.name.replace("sm120a.1", "sm120a.9")))


def retagged(wheel: Path) -> Path:
    return wheel.rename(
        wheel.with_name(wheel.name.replace("py3-none-any", "cp310-abi3-manylinux2014_x86_64"))
    )


def tampered(wheel: Path) -> Path:
    data = wheel.read_bytes()
    wheel.unlink()
    result = make_kernel(wheel.parent, content="evil = 1\n")
    shutil.copy(result, wheel.with_suffix(".new"))
    import zipfile

    with zipfile.ZipFile(wheel.with_suffix(".new")) as bad, zipfile.ZipFile(result, "w") as out:
        result.with_suffix(".old").write_bytes(data)
        with zipfile.ZipFile(result.with_suffix(".old")) as good:
            for item in bad.infolist():
                source = good if item.filename.endswith("RECORD") else bad
                out.writestr(item, source.read(item.filename))
    return result


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (torn, "not a whole zip archive"),
        (renamed, "METADATA says version .*: it was renamed"),
        (retagged, "WHEEL says py3-none-any: it was retagged"),
        (tampered, "RECORD's hash of sgl_kernel/__init__.py"),
        (lambda wheel: wheel.rename(wheel.with_name("kernel.whl")), "its name is not a wheel's"),
        (lambda wheel: wheel.with_name("gone-1-py3-none-any.whl"), "cannot be read: No such file"),
        (
            lambda wheel: make_wheel(wheel.parent, "x", "1", contents={"../../evil.py": "x"}),
            "leaves the environment",
        ),
    ],
)
def test_what_is_not_a_whole_honest_wheel_is_refused(
    layout: Layout, tmp_path: Path, spoil: object, message: str
) -> None:
    wheel = spoil(make_kernel(tmp_path / "dist"))  # type: ignore[operator]
    sha = digest(wheel) if wheel.is_file() else "0" * 64
    with pytest.raises(WheelhouseError, match=message):
        publish(Finished(wheel), Report(sha), Report(sha), layout)
    assert not layout.wheelhouse.exists()


class Killed(BaseException):
    """What no code of ours catches."""


def consistent(root: Path) -> set[str]:
    """The versions that every view of the wheelhouse can show now, each link checked to its last byte."""
    seen = set()
    for path in [root / "index.html", *root.glob("simple/*/index.html"), *root.glob("builds/*/index.html")]:
        page = ProjectPage.from_html("sgl-kernel", path.read_text(), path.as_uri())
        for package in page.packages:
            target = Path(unquote(urlsplit(package.url).path))
            if target.suffix != ".whl":
                continue
            assert digest(target) == package.digests["sha256"], f"{path} promises {package.filename}"
            # As installers do: a link is known by its address, whatever its text says.
            seen.add(str(parse_wheel_filename(target.name)[1]))
    for path in root.glob("*.whl"):
        assert digest(path) == digest(root / "builds" / release_id(path.name) / path.name)
    return seen


def test_killed_at_any_instant_the_wheelhouse_is_the_old_or_the_new_one(
    layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(layout, make_kernel(tmp_path / "dist", "0.3.21+old.1"))
    wheel = make_kernel(tmp_path / "dist", "0.3.21+new.1")
    pristine = tmp_path / "pristine"
    shutil.copytree(layout.root, pristine)
    real = os.fsync
    for instant in range(100):
        shutil.rmtree(layout.root)
        shutil.copytree(pristine, layout.root)
        left = instant

        def die_in_time(descriptor: int) -> None:
            nonlocal left
            if left == 0:
                raise Killed
            left -= 1
            real(descriptor)

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", die_in_time)
            try:
                put(layout, wheel)
            except Killed:
                pass
            else:
                break
        assert {"0.3.21+old.1"} <= consistent(layout.wheelhouse) <= {"0.3.21+old.1", "0.3.21+new.1"}
        put(layout, make_kernel(tmp_path / "dist", "0.3.21+next.1"))
        put(layout, wheel)
        assert consistent(layout.wheelhouse) == {"0.3.21+old.1", "0.3.21+new.1", "0.3.21+next.1"}
        assert len(list(layout.wheelhouse.glob("*.whl"))) == 3
        assert not list((layout.wheelhouse / "builds").glob(".*"))
    assert instant > 10, "every step was interrupted once"


def test_splicing_gives_what_writing_everything_gives(layout: Layout, tmp_path: Path) -> None:
    for letter in "bcaab":
        put(layout, make_kernel(tmp_path / "dist", f"0.3.21+{letter}.1"))
        put(layout, make_kernel(tmp_path / "other", f"0.4.0+{letter}.1", name="sglang-kernel"))
    spliced = snapshot(layout.wheelhouse)
    house = Wheelhouse(layout.wheelhouse)
    for path in layout.wheelhouse.rglob("*.html"):
        path.unlink()
    with house.locked():
        settle(house, fresh=True)
    assert snapshot(layout.wheelhouse) == spliced


def test_a_damaged_catalogue_is_made_again(layout: Layout, tmp_path: Path) -> None:
    put(layout, make_kernel(tmp_path / "dist", "0.3.21+a.1"))
    (layout.wheelhouse / "releases.json").write_text("{ half")
    put(layout, make_kernel(tmp_path / "dist", "0.3.21+b.1"))
    assert len(json.loads((layout.wheelhouse / "releases.json").read_text())["releases"]) == 2


def test_a_damaged_record_is_named(layout: Layout, tmp_path: Path) -> None:
    release = put(layout, make_kernel(tmp_path / "dist", "0.3.21+a.1"))
    (release.directory / "release.json").write_text("{}")
    (layout.wheelhouse / "releases.json").unlink()
    with pytest.raises(WheelhouseError, match="a release's record is damaged: filename"):
        put(layout, make_kernel(tmp_path / "dist", "0.3.21+b.1"))
