"""Git sources over a network that fails, and what is written down of the way there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import tenacity

from gitserver import GitServer
from sglwheel import source
from sglwheel.errors import SourceError
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


@pytest.mark.parametrize("faults", [["500"], ["cut"], ["stall"], ["cut", "500"]])
def test_what_passes_is_survived(
    world: World, wanted: CommitId, server: GitServer, faults: list[str]
) -> None:
    server.faults += faults
    found = checkout(world, wanted, server.url("up"))
    assert found.commit == wanted and not server.faults
    assert server.packs > len(faults)


def test_damage_is_refused_and_the_next_place_is_asked(
    world: World, wanted: CommitId, server: GitServer, tmp_path: Path
) -> None:
    server.faults += ["flip"] * 10
    with pytest.raises(SourceError) as caught:
        checkout(world, wanted, server.url("up"))
    assert server.url("up") in caught.value.where
    assert "SGLWHEEL_MIRRORS='" in (caught.value.next or "")
    gone = f"http://127.0.0.1:1/{tmp_path.name}"
    assert checkout(world, wanted, gone, server.url("up"), str(world.root / "upstreams/up")).commit == wanted


def test_who_we_are_is_not_written_down(
    world: World, wanted: CommitId, server: GitServer, capfd: pytest.CaptureFixture[str]
) -> None:
    place = server.url("up", who="me:s3cret@")
    server.login = "me:s3cret"
    with pytest.raises(SourceError, match="cannot get"):
        checkout(world, wanted, server.url("up"))
    checkout(world, wanted, place)
    with pytest.raises(SourceError) as caught:
        checkout(world, CommitId("0" * 40), server.url("none", who="me:s3cret@"), place)
    told = f"{caught.value.what}{caught.value.where}{caught.value.next}{capfd.readouterr()}"
    assert "s3cret" not in told and "127.0.0.1" in told
    everything = [path for path in world.root.rglob("*") if path.is_file()]
    assert [path for path in everything if b"s3cret" in path.read_bytes()] == []
