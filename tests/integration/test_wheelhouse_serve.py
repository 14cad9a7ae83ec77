"""The server, by real clients: negotiation, ranges, tokens, TLS, and nothing that is nobody's business."""

from __future__ import annotations

import json
import os
import random
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import anyio
import httpx
import pytest
from pypi_simple import PyPISimple
from starlette.types import Message

import tlsworld
from sglwheel.errors import WheelhouseError
from sglwheel.files import Layout
from sglwheel.wheelhouse import Lines, Release, publish
from sglwheel.wheelhouse.sending import WholeFile
from sglwheel.wheelhouse.serving import Service, serve, wants_json
from wheelworld import UV, Environment, make_kernel, make_torch, reports, running

pytestmark = pytest.mark.integration

JSON = "application/vnd.pypi.simple.v1+json"


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Release:
    root = tmp_path_factory.mktemp("serve")
    published = publish(*reports(make_kernel(root / "dist", content="x = 1\n" * 500)), Layout(root))
    (root / "wheelhouse/outside").symlink_to("/etc")
    return published


@pytest.fixture(scope="module")
def url(release: Release) -> Iterator[str]:
    with running(Service(release.root)) as url:
        yield url


def test_uv_installs_from_it_as_printed(release: Release, url: str, tmp_path: Path) -> None:
    node = Environment(tmp_path / "venv", wheels=[make_torch(tmp_path, "2.12.0")], cache=tmp_path / "cache")
    node.shell(Lines(release.record, url).uv)
    assert node.packages()["sgl-kernel"] == release.record.version


def test_it_is_a_simple_index_in_html_and_json(release: Release, url: str) -> None:
    for accept in (None, JSON, "text/html"):
        with PyPISimple(f"{url}/simple/", **({"accept": accept} if accept else {})) as client:
            page = client.get_project_page("sgl-kernel")
        assert [package.digests for package in page.packages] == [{"sha256": release.sha256}]
        metadata = httpx.get(page.packages[0].url.partition("#")[0] + ".metadata")
        assert metadata.text.startswith("Metadata-Version")
    for path in ("/simple/", "/simple/sgl-kernel/"):
        answer = httpx.get(url + path, headers={"accept": JSON})
        assert answer.headers["content-type"] == JSON
        assert answer.headers["vary"].lower().startswith("accept")
        json.loads(answer.text)
        assert httpx.get(url + path).headers["content-type"].startswith("text/html")


@pytest.mark.parametrize(
    ("accept", "answer"),
    [
        (JSON, True),
        ("", False),
        ("*/*", False),
        ("text/html", False),
        (f"{JSON}, application/vnd.pypi.simple.v1+html; q=0.2, text/html; q=0.01", True),
        (f"{JSON};q=0.1, text/html", False),
        ("application/vnd.pypi.simple.latest+json", True),
        (f"{JSON};q=nonsense", False),
    ],
)
def test_negotiation(accept: str, answer: bool) -> None:
    assert wants_json(accept) is answer


def test_ranges_caching_and_head(release: Release, url: str) -> None:
    wheel = f"{url}/builds/{release.id}/{release.record.filename.replace('+', '%2B')}"
    data = release.path.read_bytes()
    part = httpx.get(wheel, headers={"range": "bytes=10-19"})
    assert (part.status_code, part.content) == (206, data[10:20])
    assert httpx.get(wheel, headers={"range": "bytes=999999999-"}).status_code == 416
    whole = httpx.get(wheel)
    assert whole.content == data
    assert "immutable" in whole.headers["cache-control"]
    assert "content-encoding" not in whole.headers
    assert httpx.get(wheel, headers={"if-none-match": whole.headers["etag"]}).status_code == 304
    assert httpx.head(wheel).headers["content-length"] == str(len(data))
    assert httpx.get(f"{url}/index.html").headers["cache-control"] == "no-cache"


@pytest.mark.parametrize("where", ["memory", "disk"])
def test_a_large_file_comes_whole_from_memory_and_from_disk(url: str, release: Release, where: str) -> None:
    large = release.root / f"{where}.bin"
    large.write_bytes(random.Random(where).randbytes(3_000_000))
    with large.open("rb") as stream:
        os.fsync(stream.fileno())
        if where == "disk":
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    assert httpx.get(f"{url}/{large.name}").content == large.read_bytes()


def test_who_left_is_sent_nothing_more(tmp_path: Path) -> None:
    large = tmp_path / "large"
    large.write_bytes(bytes(50_000_000))
    sent = 0

    async def send(message: Message) -> None:
        nonlocal sent
        sent += len(message.get("body", b""))
        await anyio.sleep(0)

    async def receive() -> Message:
        while sent < 1_000_000:
            await anyio.sleep(0)
        return {"type": "http.disconnect"}

    async def ask() -> None:
        scope = {"type": "http", "method": "GET", "headers": []}
        await WholeFile(large)(scope, receive, send)

    anyio.run(ask)
    assert 1_000_000 <= sent < 5_000_000


def test_pages_are_compressed_once_and_follow_what_is_published(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    page = layout.wheelhouse / "index.html"
    publish(*reports(make_kernel(tmp_path / "dist")), layout)
    with running(Service(layout.wheelhouse)) as url:
        for path, headers in (("/", {}), ("/index.html", {}), ("/", {"accept-encoding": "identity"})):
            answer = httpx.get(url + path, headers=headers)
            assert answer.content == page.read_bytes()
            assert answer.headers.get("content-encoding") == (None if headers else "gzip")
            assert answer.headers["vary"] == "Accept-Encoding"
        before = httpx.get(url)
        assert int(before.headers["content-length"]) < page.stat().st_size
        again = {"if-none-match": before.headers["etag"]}
        assert httpx.get(url, headers=again).status_code == 304
        part = httpx.get(url, headers={"range": "bytes=2-8"})
        assert (part.status_code, part.content) == (206, page.read_bytes()[2:9])
        assert "content-encoding" not in part.headers
        assert httpx.head(url).headers["content-length"] == str(page.stat().st_size)
        publish(*reports(make_kernel(tmp_path / "dist", "0.3.21+cu130.torch2.12.0.sm120a.2")), layout)
        after = httpx.get(url, headers=again)
        assert after.content == page.read_bytes() != before.content
        vary = httpx.get(f"{url}/simple/sgl-kernel/", headers={"accept": JSON}).headers["vary"]
        assert {item.strip() for item in vary.split(",")} == {"Accept", "Accept-Encoding"}


@pytest.mark.parametrize(
    "path",
    [
        "/.state/lock",
        "/builds/../.state/journal.json",
        "/%2e%2e/dist/",
        "/..%2f..%2fetc/passwd",
        "/outside/passwd",
        "//etc/passwd",
        "/builds/%00",
        "/nothing",
    ],
)
def test_nothing_hidden_or_outside_is_served(url: str, path: str) -> None:
    assert httpx.get(url + path).status_code in (400, 404)


@pytest.mark.parametrize("verb", ["POST", "PUT", "DELETE", "PATCH"])
def test_it_is_read_only(url: str, verb: str) -> None:
    assert httpx.request(verb, f"{url}/index.html").status_code == 405


def test_a_token_is_asked_for(release: Release) -> None:
    with running(Service(release.root, token="s3cret")) as url:
        assert httpx.get(url).status_code == 401
        for headers in (
            {"authorization": "Bearer wrong"},
            {"authorization": "Basic !"},
            {"authorization": "s3cret"},
        ):
            assert httpx.get(url, headers=headers).status_code == 401
        assert httpx.get(f"{url}/index.html", headers={"authorization": "Bearer s3cret"}).status_code == 200
        assert httpx.get(f"{url}/index.html", auth=("anybody", "s3cret")).status_code == 200


@pytest.mark.parametrize("client", ["uv", "pip"])
@pytest.mark.parametrize("told", ["netrc", "url"])
def test_a_node_with_the_token_installs_and_checks(
    release: Release, client: str, told: str, tmp_path: Path
) -> None:
    node = Environment(tmp_path / "venv", wheels=[make_torch(tmp_path, "2.12.0")], cache=tmp_path / "cache")
    if client == "pip":
        run_uv("pip", "install", "-q", "--target", str(tmp_path / "pip"), "pip==26.3")
        node.variables["PYTHONPATH"] = str(tmp_path / "pip")
        node.variables["PATH"] = f"{node.path}/bin:/usr/bin:/bin"
    check = [str(node.python), str(release.root / "install-check.pyz")]
    with running(Service(release.root, token="s3cret")) as url:
        refused = node.run([*check, "before", "--wheelhouse", url], ok=False)
        assert refused.returncode == 9
        assert "it asks for a token: write `machine 127.0.0.1 login x password <token>`" in refused.stdout
        if told == "netrc":
            (tmp_path / ".netrc").write_text("machine 127.0.0.1 login x password s3cret\n")
            (tmp_path / ".netrc").chmod(0o600)
        else:
            wrong = node.run([*check, "before", "--wheelhouse", url.replace("//", "//x:0@")], ok=False)
            assert "its token was refused" in wrong.stdout
            url = url.replace("//", "//x:s3cret@")
        said = node.run([*check, "before", "--wheelhouse", url]).stdout
        node.shell(said.splitlines()[-1])
        node.run([*check, "after", "--wheelhouse", url])
        nothing = node.run([*check, "before", "--wheelhouse", url, "--release", "none"], ok=False)
    assert node.packages()["sgl-kernel"] == release.record.version
    assert "s3cret" not in nothing.stdout + nothing.stderr


def run_uv(*words: str) -> None:
    subprocess.run([UV, *words], check=True)


def test_tls(release: Release, tmp_path: Path) -> None:
    certificate, key = tlsworld.certificate(tmp_path)
    with running(Service(release.root, certificate=certificate, key=key)) as url:
        context = ssl.create_default_context(cafile=str(certificate))
        assert httpx.get(f"{url}/index.html", verify=context).status_code == 200
        torch = make_torch(tmp_path, "2.12.0")
        node = Environment(tmp_path / "venv", wheels=[torch], cache=tmp_path / "cache")
        check = [str(node.python), str(release.root / "install-check.pyz"), "before", "--wheelhouse", url]
        assert "CERTIFICATE_VERIFY_FAILED" in node.run(check, ok=False).stdout
        node.variables["SSL_CERT_FILE"] = str(certificate)
        node.shell(node.run(check).stdout.splitlines()[-1])
    assert node.packages()["sgl-kernel"] == release.record.version


def test_what_cannot_be_served_is_said(release: Release, tmp_path: Path) -> None:
    for service, message in (
        (Service(tmp_path / "nowhere"), "no wheelhouse here"),
        (Service(release.root, host="0.0.0.0", token="x"), "readable for everybody"),
        (Service(release.root, certificate=tmp_path / "c", key=tmp_path / "k"), "no such file for TLS"),
    ):
        with pytest.raises(WheelhouseError, match=message):
            serve(service)


def test_a_taken_port_is_said(release: Release, url: str) -> None:
    port = int(url.rpartition(":")[2])
    with pytest.raises(WheelhouseError, match=f"cannot serve on 127.0.0.1 port {port}"):
        serve(Service(release.root, port=port))
