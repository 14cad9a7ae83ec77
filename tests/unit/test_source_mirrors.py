"""The mirror setting."""

from __future__ import annotations

from pathlib import Path

import pytest

from sglwheel.errors import UsageError
from sglwheel.files import Layout
from sglwheel.mirrors import Mirrors, anonymous, local_path

URL = "https://github.com/sgl-project/sglang"


@pytest.fixture(autouse=True)
def no_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SGLWHEEL_CONFIG", raising=False)
    monkeypatch.delenv("SGLWHEEL_MIRRORS", raising=False)
    monkeypatch.delenv("GITHUB_ARTIFACTORY", raising=False)


def test_longest_prefix_wins_and_the_original_is_last() -> None:
    mirrors = Mirrors().with_entries(
        {"https://github.com": "https://mirror.example/gh", URL: "/srv/sglang.git"}
    )
    assert mirrors.candidates(URL) == ("/srv/sglang.git", URL)
    assert mirrors.candidates(f"{URL}.git") == ("/srv/sglang.git", f"{URL}.git")
    other = "https://github.com/fmtlib/fmt/archive/1.tar.gz"
    assert mirrors.candidates(other) == ("https://mirror.example/gh/fmtlib/fmt/archive/1.tar.gz", other)


def test_a_prefix_ends_at_a_slash() -> None:
    mirrors = Mirrors().with_entries({URL: "/srv/a"})
    assert mirrors.candidates(f"{URL}-extra") == (f"{URL}-extra",)


def test_a_reserved_host_is_never_tried() -> None:
    url = "https://sample.invalid/sample.git"
    assert Mirrors().candidates(url) == ()
    assert Mirrors().with_entries({url: "/srv/sample"}).candidates(url) == ("/srv/sample",)


def test_file_and_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".sglwheel.toml").write_text(
        f'[mirrors]\n"{URL}" = ["one.git", "https://two.example/x"]\n"https://b.example" = "/srv/b"\n'
    )
    monkeypatch.setenv("SGLWHEEL_MIRRORS", "https://b.example=/other/b; https://b.example=/third/b\n")
    mirrors = Mirrors.load(Layout(tmp_path))
    assert mirrors.candidates(URL) == (str(tmp_path / "one.git"), "https://two.example/x", URL)
    assert mirrors.mapped("https://b.example/x") == ("/other/b/x", "/third/b/x")


def test_environment_names_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.toml"
    path.write_text(f'[mirrors]\n"{URL}" = "file:///srv/s.git"\n')
    monkeypatch.setenv("SGLWHEEL_MIRRORS", str(path))
    assert Mirrors.load(Layout(tmp_path)).mapped(URL) == ("file:///srv/s.git",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[mirrors]\nx = 1\n", "has mistakes"),
        ("[mirrors\n", "cannot read mirrors"),
        ("mirrors = 1\n", "must be a table"),
        ("[mirror]\n", "has mistakes"),
        ('[mirrors]\n"github.com" = "/srv/github"\n', "has mistakes"),
        ('[mirrors]\n"https://github.com" = "https://[oops"\n', "has mistakes"),
        ('[mirrors]\n"https://[oops" = "/srv"\n', "has mistakes"),
        ('[mirrors]\n"https://github.com" = "https:///srv"\n', "has mistakes"),
    ],
)
def test_a_bad_file_is_a_usage_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    path = tmp_path / "m.toml"
    path.write_text(text)
    monkeypatch.setenv("SGLWHEEL_CONFIG", str(path))
    with pytest.raises(UsageError, match=message):
        Mirrors.load(Layout(tmp_path))


@pytest.mark.parametrize(
    "value",
    [
        "/no/such/file",
        "~nobody-of-that-name/file",
        "a=b;=c",
        "github.com=/srv/github",
        "https://github.com=https://me:s3cret@[oops",
        "https://me:s3cret@[oops?key=s3cret=/srv",
    ],
)
def test_a_bad_environment_is_a_usage_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("SGLWHEEL_MIRRORS", value)
    with pytest.raises(UsageError) as caught:
        Mirrors.load(Layout(tmp_path))
    assert "s3cret" not in f"{caught.value.what}{caught.value.where}" and caught.value.next


def test_a_missing_config_is_a_usage_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLWHEEL_CONFIG", str(tmp_path / "none.toml"))
    with pytest.raises(UsageError):
        Mirrors.load(Layout(tmp_path))


def test_local_paths() -> None:
    assert local_path("file:///srv/a.git") == Path("/srv/a.git")
    assert local_path("file://localhost/srv/a%20b.git") == Path("/srv/a b.git")
    assert local_path("/srv/a%20b.git") == Path("/srv/a%20b.git")
    assert local_path("~nobody-of-that-name/a") == Path("~nobody-of-that-name/a")
    assert local_path("https://example.com/a") is None
    assert local_path("git@example.com:a/b.git") is None


@pytest.mark.parametrize("value", ["artifactory.example/github", "https://artifactory.example/github/"])
def test_upstreams_own_word_for_a_mirror_of_github(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    url = "https://github.com/NVIDIA/cutlass/archive/57e3cfb4.tar.gz"
    monkeypatch.setenv("GITHUB_ARTIFACTORY", value)
    mirrored = "https://artifactory.example/github/NVIDIA/cutlass/archive/57e3cfb4.tar.gz"
    assert Mirrors.load(Layout(tmp_path)).candidates(url) == (mirrored, url)
    monkeypatch.setenv("SGLWHEEL_MIRRORS", "https://github.com=/srv/github")
    assert Mirrors.load(Layout(tmp_path)).mapped(url)[0].startswith("/srv/github/NVIDIA")
    monkeypatch.setenv("GITHUB_ARTIFACTORY", "github.com")
    monkeypatch.delenv("SGLWHEEL_MIRRORS")
    assert Mirrors.load(Layout(tmp_path)).candidates(url) == (url,)


def test_what_is_written_down_of_an_url() -> None:
    assert anonymous("https://me:pw@a.example:8/x?y=1") == "https://a.example:8/x?y=1"
    assert anonymous("/srv/me@home/x") == "/srv/me@home/x"


def test_what_a_mirror_s_url_stands_for_does_not_depend_on_who_asks() -> None:
    mirrors = Mirrors({"https://pub.example/whl": ("https://me:pw@a.example/whl", "/srv/whl")})
    for url in ("https://a.example/whl/x", "https://me:pw@a.example/whl/x", "/srv/whl/x"):
        assert mirrors.original(url) == "https://pub.example/whl/x"
    for root in ("/srv/a b", "/srv/a b/", "file:///srv/a%20b", "file://localhost/srv/a%20b/"):
        mirrors = Mirrors({"https://pub.example/whl": (root,)})
        assert (
            mirrors.original("file:///srv/a%20b/x-1%2Bcu130.whl") == "https://pub.example/whl/x-1%2Bcu130.whl"
        )
        assert mirrors.original("/srv/a b") == "https://pub.example/whl"
    assert mirrors.original("https://a.example/other") == "https://a.example/other"
