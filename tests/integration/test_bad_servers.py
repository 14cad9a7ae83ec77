"""Servers, mirrors and proxies that fail, as their user sees it: text, exit code, and what is stored."""

from __future__ import annotations

import email.utils
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import tenacity
from packaging.version import Version

import indexworld
import tlsworld
from gitserver import GitServer
from indexworld import NIGHTLY, Index
from sglwheel import cli, files, network, transfer
from sglwheel.mirrors import Mirrors
from sglwheel.source import transport
from sglwheel.toolchain import environments, packages, wheels
from sourceworld import RECIPE, UPSTREAM, World

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the fake torch wheels are for CPython 3.11"),
]

PYTORCH = "https://download.pytorch.org/whl"
PIN = ("pin", "r", "--torch", "nightly")
STANDARD = (
    "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO",
    "GIT_SSL_CAPATH", "UV_SYSTEM_CERTS", "UV_NATIVE_TLS", "http_proxy", "https_proxy", "HTTP_PROXY",
    "HTTPS_PROXY", "all_proxy", "ALL_PROXY", "NO_PROXY", "no_proxy", "SGLWHEEL_CACHE", "SGLWHEEL_CONFIG",
    "SGLWHEEL_ROOT",
)  # fmt: skip


@dataclass
class User:
    """Somebody with a checkout, who types commands."""

    world: World
    monkeypatch: pytest.MonkeyPatch
    capsys: pytest.CaptureFixture[str]

    def mirrors(self, *pairs: tuple[str, str]) -> None:
        self.monkeypatch.setenv("SGLWHEEL_MIRRORS", "\n".join(f"{url}={place}" for url, place in pairs))

    def index(self, *places: str, pypi: str) -> None:
        """PyTorch's index is had from these places, PyPI from that one."""
        own = [("https://pypi.org/simple", f"{pypi}/simple")]
        own += [("https://files.pythonhosted.org/packages", f"{pypi}/packages")]
        self.mirrors(*own, *((PYTORCH, f"{place}/whl") for place in places))

    def alone(self) -> None:
        """Behind a wall: nobody but mirrors is asked."""
        self.monkeypatch.setattr(Mirrors, "candidates", lambda own, url: own.mapped(url))

    def patient(self) -> None:
        """Whoever waits for what will not pass fails."""
        for module in (network, transport):
            self.monkeypatch.setattr(module, "WAIT", lambda _: pytest.fail("this will not pass"))

    def run(self, *words: str) -> tuple[int, str]:
        self.capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main(list(words))
        return int(ended.value.code or 0), self.capsys.readouterr().err

    def recipes(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self.world.layout.recipes.iterdir()}

    def torches(self) -> list[Path]:
        """What the store has of torch, whole or not."""
        return sorted((self.world.layout.cache / "wheels").glob("*/torch-*"))


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> User:
    for name in STANDARD:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    monkeypatch.setenv("UV_HTTP_RETRIES", "1")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    monkeypatch.setattr(network, "WAIT", tenacity.wait_none())
    monkeypatch.setattr(transport, "WAIT", tenacity.wait_none())
    monkeypatch.setattr(transfer, "PATIENCE", 0.5)
    world = World(tmp_path / "checkout")
    (world.layout.recipes / "r.toml").write_text(RECIPE.format(commit="0" * 40, cmake="", source=""))
    monkeypatch.chdir(world.root)
    return User(world, monkeypatch, capsys)


def filled(index: Index) -> Index:
    index.tools()
    index.add(NIGHTLY, "torch", indexworld.torch("2.14.0.dev20261103+cu130"))
    return index


@pytest.fixture
def good() -> Iterator[Index]:
    with filled(Index()) as index:
        yield index


@pytest.fixture
def bad() -> Iterator[Index]:
    with filled(Index()) as index:
        yield index


@pytest.fixture
def private(tmp_path: Path) -> Iterator[Index]:
    """An index whose certificate nobody trusts."""
    with filled(Index(tls=tlsworld.certificate(tmp_path))) as index:
        yield index


@pytest.fixture
def lost(user: User, good: Index) -> str:
    """A torch that is locked and was stored; returns its path on an index."""
    user.index(good.url, pypi=good.url)
    assert user.run(*PIN)[0] == 0
    (torch,) = user.torches()
    torch.unlink()
    return f"{NIGHTLY}/{torch.name}"


def times(index: Index, path: str) -> int:
    return [asked for asked, _ in index.requests].count(path)


@pytest.mark.parametrize(
    "fault", ["500", "503 1", "429 1", "429", "reset", "truncated", "slow", "silent", "wrong"]
)
def test_what_passes_is_survived(user: User, bad: Index, good: Index, lost: str, fault: str) -> None:
    user.index(bad.url, good.url, pypi=good.url)
    bad.faults[lost] = [fault]
    before, started = times(good, lost), time.monotonic()
    code, said = user.run(*PIN)
    assert code == 0, said
    if fault.endswith(" 1"):
        assert time.monotonic() - started >= 1
    # Content that is wrong once is wrong the next time, too: that alone is nothing to try again.
    assert times(good, lost) - before == (fault == "wrong")
    if fault in ("truncated", "slow"):
        assert [span for path, span in bad.requests if path == lost][-1], "continued, not begun again"
    (torch,) = user.torches()
    assert files.sha256(torch) == torch.parent.name


@pytest.mark.parametrize("fault", ["500", "503 3600", "429", "reset", "silent", "wrong", "404", "403"])
def test_a_place_that_stays_broken_is_left(
    user: User, bad: Index, good: Index, lost: str, fault: str
) -> None:
    user.index(bad.url, good.url, pypi=good.url)
    bad.faults[lost] = [fault] * 99
    code, said = user.run(*PIN)
    assert code == 0, said
    asked = times(bad, lost)
    assert asked == 1 if fault in ("503 3600", "wrong", "404", "403") else 1 < asked <= network.ATTEMPTS
    assert len(user.torches()) == 1


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("429 3600", "HTTP 429, and asks to wait 3600 s"),
        ("503 1", "HTTP 503, and asks to wait 1 s"),
        ("reset", "Connection reset by peer"),
        ("wrong", "has other content: SHA256 is "),
        ("403", "HTTP 403"),
    ],
)
def test_who_has_no_other_place_is_told(user: User, bad: Index, lost: str, fault: str, words: str) -> None:
    user.index(bad.url, pypi=bad.url)
    user.alone()
    before = user.recipes()
    bad.faults[lost] = [fault] * 99
    code, said = user.run(*PIN)
    assert (code, user.recipes()) == (5, before)
    url = f"{bad.url}{lost}".replace("+", "%2B")
    assert url in said and words in said, said
    assert f"SGLWHEEL_MIRRORS='{PYTORCH}/nightly/cu130/torch-" in said
    assert not [path for path in user.torches() if path.suffix == ".whl"]
    bad.faults.clear()
    assert user.run(*PIN)[0] == 0, "and it continues where the server is well again"


def test_a_date_to_come_back_is_waited_for(user: User, bad: Index, good: Index, lost: str) -> None:
    user.index(bad.url, good.url, pypi=good.url)
    soon = time.time() + 2
    bad.faults[lost] = [f"429 {email.utils.formatdate(soon, usegmt=True)}"]
    before = times(good, lost)
    assert user.run(*PIN)[0] == 0
    assert time.time() >= int(soon)
    assert times(good, lost) == before
    user.torches()[0].unlink()
    bad.faults[lost] = [f"429 {email.utils.formatdate(soon + 3600, usegmt=True)}"]
    assert user.run(*PIN)[0] == 0
    assert times(good, lost) == before + 1


@pytest.mark.parametrize("fault", ["429 3600", "503 3600", "503", "404", "reset"])
def test_an_index_that_will_not_answer_is_left(user: User, bad: Index, good: Index, fault: str) -> None:
    user.index(bad.url, good.url, pypi=good.url)
    page = f"{NIGHTLY}/torch/"
    bad.faults[page] = [fault] * 99
    started = time.monotonic()
    code, said = user.run("torch", "list", "--cuda", "cu130")
    assert time.monotonic() - started < 60
    assert code == 0 and times(bad, page) <= network.ATTEMPTS, said
    if fault != "404":
        assert times(good, page) == 1


def test_an_untrusted_certificate(user: User, private: Index) -> None:
    """The whole way of a pin: an index's page, uv's resolving, a download."""
    assert private.tls is not None
    user.index(private.url, pypi=private.url)
    user.alone()
    user.patient()
    before = user.recipes()
    code, said = user.run(*PIN)
    assert (code, user.recipes(), private.requests) == (5, before, [])
    assert f"{NIGHTLY.removeprefix('/whl')}" in said
    assert "its certificate is not trusted (self-signed certificate); SSL_CERT_FILE names" in said
    user.monkeypatch.setenv("SSL_CERT_FILE", "/no/such/file.pem")
    code, said = user.run(*PIN)
    assert (code, user.recipes()) == (2, before)
    assert "SSL_CERT_FILE names no file" in said and "Traceback" not in said
    user.monkeypatch.setenv("SSL_CERT_FILE", str(private.tls[0]))
    code, said = user.run(*PIN)
    assert code == 0, said
    assert len(user.torches()) == 1


def test_an_untrusted_certificate_of_what_is_downloaded(user: User, private: Index, lost: str) -> None:
    assert private.tls is not None
    user.patient()
    wheel = lost.rpartition("/")[2].replace("+", "%2B")
    told = user.world.layout.root / "mirrors.toml"
    place = f"{private.url}{NIGHTLY}/{wheel}"
    told.write_text(f"[mirrors]\n'{PYTORCH}/nightly/cu130/{wheel}' = '{place}'\n")
    user.alone()
    user.monkeypatch.setenv("SGLWHEEL_CONFIG", str(told))
    code, said = user.run(*PIN)
    assert code == 5
    assert place in said
    assert "its certificate is not trusted (self-signed certificate); SSL_CERT_FILE names" in said
    user.monkeypatch.setenv("SSL_CERT_FILE", str(private.tls[0]))
    assert user.run(*PIN)[0] == 0


def test_uv_says_what_to_do_of_an_untrusted_certificate(user: User, private: Index, good: Index) -> None:
    user.index(good.url, pypi=private.url)
    code, said = user.run(*PIN)
    assert code == 5
    assert f"{private.url}/simple" in said and "SSL_CERT_FILE" in said, said


def test_git_trusts_what_the_standard_variable_names(
    user: User, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = user.world
    commit = world.repository(UPSTREAM).commit({"kernel/CMakeLists.txt": "", "LICENSE": "x"})
    (world.layout.recipes / "r.toml").write_text(RECIPE.format(commit=commit, cmake="", source=""))
    (world.layout.patches / "s").mkdir()
    (world.layout.patches / "s/series").write_text("")
    made, key = tlsworld.certificate(tmp_path)
    user.patient()
    with GitServer(world.root / "upstreams", tls=(made, key)) as server:
        user.mirrors((UPSTREAM, server.of("up")))
        code, said = user.run("patch", "r")
        assert code == 3 and server.packs == 0
        assert server.of("up") in said and "its certificate is not trusted; SSL_CERT_FILE or git's" in said
        assert not list(world.received())
        monkeypatch.setenv("SSL_CERT_FILE", str(made))
        code, said = user.run("patch", "r")
        assert code == 0, said
        # Git's own configuration of certificates is the user's last word.
        config = tmp_path / "gitconfig"
        config.write_text("[http]\nsslCAInfo = /no/such/file\n")
        monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))
        monkeypatch.setattr(transport, "WAIT", tenacity.wait_none())
        world.layout.cache.rename(world.layout.cache.with_name("aside"))
        assert user.run("patch", "r")[0] == 3


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_proxy_that_wants_a_password(user: User, lost: str, scheme: str) -> None:
    user.index(f"{scheme}://index.example", pypi=f"{scheme}://index.example")
    user.alone()
    user.patient()
    before = user.recipes()
    with tlsworld.Proxy() as proxy:
        user.monkeypatch.setenv(f"{scheme.upper()}_PROXY", proxy.url.replace("//", "//me:s3cret@"))
        user.monkeypatch.setenv(f"{scheme}_proxy", proxy.url.replace("//", "//me:s3cret@"))
        code, said = user.run(*PIN)
        assert (code, user.recipes()) == (5, before)
        assert f"{scheme}://index.example/whl/nightly/cu130" in said
        assert (
            "HTTP 407: the proxy wants a name and a password (HTTPS_PROXY=" in said and "s3cret" not in said
        )
        # One question to each index, and none of them twice.
        assert 0 < len(proxy.asked) <= 4
        user.mirrors((UPSTREAM, f"{scheme}://git.example/up"))
        code, said = user.run("patch", "r")
        assert code == 3 and "the proxy wants a name and a password" in said, said
        assert not user.world.received()


def test_a_host_that_does_not_exist(user: User, good: Index, lost: str) -> None:
    nowhere = "http://nowhere.invalid"
    user.index(nowhere, good.url, pypi=good.url)
    code, said = user.run(*PIN)
    assert code == 0, said
    user.torches()[0].unlink()
    user.index(nowhere, pypi=good.url)
    user.alone()
    code, said = user.run(*PIN)
    assert code == 5
    assert f"{nowhere}/whl/nightly/cu130" in said and "host not found" in said


def test_packages_that_only_uv_knows_the_way_to(
    user: User, good: Index, lost: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A site whose index is in uv's own configuration, and that lets nobody out."""
    assert user.run(*PIN)[0] == 0, "stored again"
    layout = user.world.layout
    lock = packages.read(layout.recipes / "pylock.r.toml")
    assert lock is not None
    assert any(item.lasting for item in wheels.of(lock, Version("3.11.7")))
    (tmp_path / "config/uv").mkdir(parents=True)
    (tmp_path / "config/uv/uv.toml").write_text(f'[[index]]\nurl = "{good.url}/simple"\ndefault = true\n')
    for name, value in (
        ("XDG_CONFIG_HOME", str(tmp_path / "config")),
        ("HTTPS_PROXY", "http://127.0.0.1:1"),
        ("NO_PROXY", "127.0.0.1"),
        ("UV_CACHE_DIR", str(tmp_path / "other")),
    ):
        monkeypatch.setenv(name, value)
    supply = environments.Supply(layout, Mirrors(), None)
    supply.install(
        lock,
        Version("3.11.7"),
        python=Path(sys.executable),
        target=tmp_path / "target",
        log=tmp_path / "log",
        title="environment",
    )
    assert (tmp_path / "target/torch/version.py").is_file()
    assert len(list((tmp_path / "target").glob("cmake-*.dist-info"))) == 1
    assert "left to uv, and not kept in the store: cannot get " in user.capsys.readouterr().err
    assert not list((layout.cache / "wheels").glob("*/cmake-*"))
