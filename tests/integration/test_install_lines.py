"""The printed lines, pasted into fresh environments with real clients, beside a registry of temptations."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from sglwheel.files import Layout
from sglwheel.wheelhouse import Lines, Release, publish
from wheelworld import (
    UV,
    Environment,
    http_directory,
    make_kernel,
    make_torch,
    make_wheel,
    reports,
    simple_index,
)

pytestmark = pytest.mark.integration

# What nodes have: the current client and two older ones. None is the version that the tool itself installs.
CLIENTS = [
    ("uv", None),
    ("uv", "0.12.24"),
    ("uv", "0.8.0"),
    ("pip", "26.3"),
    ("pip", "25.0"),
    ("pip", "24.0"),
]


@dataclass(frozen=True)
class World:
    """A wheelhouse with two torches' wheels, and a registry that would like to be asked."""

    root: Path
    release: Release
    torch: dict[str, Path]
    registry: str
    requests: list[str]

    def node(self, name: str, torch: str | None, client: Client) -> Environment:
        wheels = [self.torch[torch]] if torch else []
        node = Environment(self.root / name, wheels=wheels, cache=self.root / "uv-cache")
        client.enter(node)
        node.variables["UV_DEFAULT_INDEX"] = node.variables["PIP_INDEX_URL"] = f"{self.registry}/simple/"
        return node


@dataclass(frozen=True)
class Client:
    """A version of uv or pip."""

    kind: str
    directory: Path | None

    def enter(self, node: Environment) -> None:
        if self.kind == "uv" and self.directory:
            node.variables["PATH"] = f"{self.directory / 'bin'}:{node.variables['PATH']}"
        elif self.kind == "pip":
            assert self.directory
            node.variables["PYTHONPATH"] = str(self.directory)

    def line(self, lines: Lines) -> str:
        return lines.uv if self.kind == "uv" else lines.pip


@pytest.fixture(scope="session", params=CLIENTS, ids=lambda client: "-".join(filter(None, client)))
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Client:
    kind, version = request.param
    if version is None:
        return Client(kind, None)
    directory = tmp_path_factory.mktemp(f"{kind}-{version}")
    subprocess.run([UV, "pip", "install", "-q", "--target", directory, f"{kind}=={version}"], check=True)
    return Client(kind, directory)


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    root = tmp_path_factory.mktemp("world")
    dist = root / "dist"
    torch = {version: make_torch(dist, version) for version in ("2.11.0", "2.12.0", "2.12.0+cu130", "2.13.0")}
    layout = Layout(root / "check out")
    release = publish(*reports(make_kernel(dist)), layout)
    publish(
        *reports(
            make_kernel(dist, "0.3.21+cu130.torch2.11.0.sm120a.1", torch="2.11.0"), requires="torch==2.11.0"
        ),
        layout,
    )
    tempting = root / "tempting"
    broken = make_kernel(tempting, "0.3.23")
    broken.write_bytes(broken.read_bytes()[:300])
    registry = simple_index(
        root / "registry",
        [
            *torch.values(),
            broken,
            make_kernel(tempting, "0.3.22", requires=["torch>=2.8"], content="higher = True\n"),
            make_kernel(tempting, content="rebuilt = True\n"),
            make_kernel(tempting, "0.3.21+zz", torch="2.13.0"),
            make_wheel(tempting, "flashinfer-python", "0.9", requires=["torch==2.13.0"]),
        ],
    )
    with http_directory(registry.parent) as (url, requests):
        yield World(root, release, torch, url, requests)


@pytest.mark.parametrize("torch", ["2.12.0", "2.12.0+cu130"])
def test_the_right_pairing_gets_exactly_our_wheel(
    world: World, client: Client, torch: str, request: pytest.FixtureRequest
) -> None:
    node = world.node(request.node.name, torch, client)
    before = node.files_of("torch")
    seen = len(world.requests)
    node.shell(client.line(Lines(world.release.record, str(world.release.root))))
    assert node.packages() == {"torch": torch, "sgl-kernel": world.release.record.version}
    assert node.files_of("torch") == before
    assert len(world.requests) == seen, "the registry was not even asked"
    done = node.run([str(node.python), "-c", "import sgl_kernel; print(hasattr(sgl_kernel, 'rebuilt'))"])
    assert done.stdout.strip() == "False"


def test_over_http_too(world: World, client: Client, request: pytest.FixtureRequest) -> None:
    node = world.node(request.node.name, "2.12.0", client)
    with http_directory(world.release.root) as (url, _):
        node.shell(client.line(Lines(world.release.record, url)))
    assert node.packages() == {"torch": "2.12.0", "sgl-kernel": world.release.record.version}


@pytest.mark.parametrize("torch", ["2.11.0", "2.13.0", None])
def test_a_wrong_pairing_is_refused_before_anything_changes(
    world: World, client: Client, torch: str | None, request: pytest.FixtureRequest
) -> None:
    node = world.node(request.node.name, torch, client)
    before, packages = node.files_of("torch"), node.packages()
    done = node.shell(client.line(Lines(world.release.record, str(world.release.root))), ok=False)
    said = done.stdout + done.stderr
    assert done.returncode != 0
    assert "torch==2.12.0" in said
    assert torch is None or f"torch=={torch}" in said, said
    assert node.packages() == packages
    assert node.files_of("torch") == before


def test_a_torch_that_came_from_a_file_is_frozen_too(
    world: World, client: Client, request: pytest.FixtureRequest
) -> None:
    node = world.node(request.node.name, None, client)
    url = world.torch["2.11.0"].as_uri()
    node.run([UV, "pip", "install", "--offline", f"torch @ {url}"])
    done = node.shell(client.line(Lines(world.release.record, str(world.release.root))), ok=False)
    assert done.returncode != 0
    assert "torch==2.11.0" in done.stdout + done.stderr
