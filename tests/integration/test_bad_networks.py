"""Git sources over a network that fails, and what is written down of the way there."""

from __future__ import annotations

import functools
import hashlib
import io
import tarfile
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import tenacity

from gitserver import GitServer
from sglwheel import source
from sglwheel.errors import SourceError
from sglwheel.mirrors import Mirrors
from sglwheel.source import transport
from sglwheel.types import CommitId
from sourceworld import UPSTREAM, World

pytestmark = pytest.mark.integration


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(transport, "WAIT", tenacity.wait_none())
    monkeypatch.setattr(transport, "PATIENCE", ("-c", "http.lowSpeedLimit=1000", "-c", "http.lowSpeedTime=1"))
    for variable in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    return World(tmp_path)


@pytest.fixture
def wanted(world: World) -> CommitId:
    return world.repository(UPSTREAM).commit({"kernel/a.cu": "one\n", "LICENSE": "x" * 3_000})


@pytest.fixture
def server(world: World, wanted: CommitId) -> Iterator[GitServer]:
    with GitServer(world.root / "upstreams") as made:
        yield made


def checkout(world: World, wanted: CommitId, *places: str) -> source.Checkout:
    entries = {**world.mirrors.entries, UPSTREAM: places}
    mirrors = world.mirrors.with_entries({})
    return source.checkout(world.recipe(wanted), world.layout, type(mirrors)(entries))


@pytest.mark.parametrize("faults", [["500"], ["cut"], ["cut", "500"]])
def test_what_passes_is_survived(
    world: World, wanted: CommitId, server: GitServer, faults: list[str]
) -> None:
    server.faults += faults
    found = checkout(world, wanted, server.of("up"))
    assert found.commit == wanted and not server.faults
    assert server.packs > len(faults)


def test_a_server_that_stalls_is_left(
    world: World, wanted: CommitId, server: GitServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    patience = ("-c", "http.lowSpeedLimit=1000", "-c", "http.lowSpeedTime=2")
    monkeypatch.setattr(transport, "PATIENCE", patience)
    server.faults += ["stall"] * transport.ATTEMPTS
    # Also on a host that is as slow as the server: then this place is given up, and the next one is asked.
    assert checkout(world, wanted, server.of("up"), str(world.root / "upstreams/up")).commit == wanted
    assert server.packs > 1


def test_damage_is_refused_and_the_next_place_is_asked(
    world: World, wanted: CommitId, server: GitServer, tmp_path: Path
) -> None:
    server.faults += ["flip"] * 10
    with pytest.raises(SourceError) as caught:
        checkout(world, wanted, server.of("up"))
    assert server.of("up") in caught.value.where
    assert "SGLWHEEL_MIRRORS='" in (caught.value.next or "")
    gone = f"http://127.0.0.1:1/{tmp_path.name}"
    assert checkout(world, wanted, gone, server.of("up"), str(world.root / "upstreams/up")).commit == wanted


def test_who_we_are_is_not_written_down(
    world: World, wanted: CommitId, server: GitServer, capfd: pytest.CaptureFixture[str]
) -> None:
    place = server.of("up", who="me:s3cret@")
    server.login = "me:s3cret"
    with pytest.raises(SourceError, match="cannot get"):
        checkout(world, wanted, server.of("up"))
    checkout(world, wanted, place)
    with pytest.raises(SourceError) as caught:
        checkout(world, CommitId("0" * 40), server.of("none", who="me:s3cret@"), place)
    told = f"{caught.value.what}{caught.value.where}{caught.value.next}{capfd.readouterr()}"
    assert "s3cret" not in told and "127.0.0.1" in told
    everything = [path for path in world.root.rglob("*") if path.is_file()]
    assert [path for path in everything if b"s3cret" in path.read_bytes()] == []


class Archives(SimpleHTTPRequestHandler):
    """A host that stands for a forge and has its archives alone."""

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_a_mirror_of_github_that_has_only_archives(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"sglwheel-{CommitId('1' * 40)}/none/archive/{CommitId('2' * 40)}.tar.gz"
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        tar.addfile(tarfile.TarInfo("none-2222/include/none.h"))
    archive = tmp_path / "forge" / name
    archive.parent.mkdir(parents=True)
    archive.write_bytes(out.getvalue())
    digest = hashlib.sha256(out.getvalue()).hexdigest()
    text = (
        f"FetchContent_Declare(none URL https://github.com/{name} URL_HASH SHA256={digest})\n"
        "FetchContent_Populate(none)\ninclude_directories(${none_SOURCE_DIR}/include)\n"
    )
    tree = world.tree({"CMakeLists.txt": text})
    handler = functools.partial(Archives, directory=str(tmp_path / "forge"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        monkeypatch.setenv("GITHUB_ARTIFACTORY", f"http://127.0.0.1:{server.server_port}")
        mirrors = Mirrors.load(world.layout)
        (one,) = source.dependencies(tree, world.recipe(), world.layout, mirrors).sources
        server.shutdown()
    assert (one.sha256, one.via) == (digest, "mirror")
    assert "127.0.0.1" not in (world.layout.recipes / "r.lock").read_text()
