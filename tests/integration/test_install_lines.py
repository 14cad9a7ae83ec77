"""The printed lines, pasted into fresh environments with real clients, beside a registry of temptations."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from sglwheel.files import Layout
from sglwheel.wheelhouse import Lines, Release, Wheelhouse, publish
from sglwheel.wheelhouse.life import yank
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
            make_wheel(tempting, "flashinfer-python", "0.8", requires=["torch>=2.8"]),
            make_wheel(tempting, "sglang", "0.5", requires=["sgl-kernel==0.3.21", "torch>=2.8"]),
            make_wheel(tempting, "needs-other", "1", requires=["sgl-kernel==0.3.22"]),
        ],
    )
    with http_directory(registry.parent) as (url, requests):
        yield World(root, release, torch, url, requests)


@pytest.mark.parametrize("served", [False, True], ids=["directory", "http"])
def test_another_wheelhouse_at_the_same_place_gives_its_own_wheel(
    client: Client, tmp_path: Path, served: bool
) -> None:
    """As on a host whose checkout is thrown away and made again, and whose uv cache stays."""
    torch = make_torch(tmp_path / "dist", "2.12.0")
    layout = Layout(tmp_path / "check out")
    with http_directory(layout.root / "wheelhouse") as (url, _):
        for name, content in (("first", "made = 'first'\n"), ("second", "made = 'second'\n")):
            shutil.rmtree(layout.root / "wheelhouse", ignore_errors=True)
            wheel = make_kernel(tmp_path / name, content=content)
            os.utime(wheel, (1_700_000_000, 1_700_000_000))
            release = publish(*reports(wheel), layout)
            node = Environment(tmp_path / f"node-{name}", wheels=[torch], cache=tmp_path / "uv-cache")
            client.enter(node)
            if not served:
                node.variables["UV_OFFLINE"] = "1"
            node.shell(client.line(Lines(release.record, url if served else str(release.root))))
            done = node.run([str(node.python), "-c", "import sgl_kernel; print(sgl_kernel.made)"])
            assert done.stdout.strip() == name
            time.sleep(1.1)  # a plain web server's Last-Modified knows whole seconds


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


def test_the_requirements_file_checks_the_hash(
    world: World, client: Client, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    node = world.node(request.node.name, "2.12.0", client)
    lines = Lines(world.release.record, str(world.release.root))
    good, bad = tmp_path / "good.txt", tmp_path / "bad.txt"
    good.write_text(lines.requirements)
    bad.write_text(lines.requirements.replace(world.release.sha256, "0" * 64))
    command = "uv pip install -r " if client.kind == "uv" else "python -m pip install -r "
    before = node.files_of("torch")
    done = node.shell(command + str(bad), ok=False)
    assert done.returncode != 0
    assert "hash" in (done.stdout + done.stderr).lower()
    assert node.packages() == {"torch": "2.12.0"}
    wrong = world.node(request.node.name + "-wrong", "2.11.0", client)
    assert wrong.shell(command + str(good), ok=False).returncode != 0
    assert wrong.packages() == {"torch": "2.11.0"}
    node.shell(command + str(good))
    published = world.release.directory / "requirements.txt"
    node.shell(command + shlex.quote(str(published)), WHEELHOUSE=str(world.release.root))
    assert node.packages() == {"torch": "2.12.0", "sgl-kernel": world.release.record.version}
    assert node.files_of("torch") == before


def test_the_other_name_is_replaced_after_the_new_one_is_known_to_fit(
    world: World, client: Client, request: pytest.FixtureRequest
) -> None:
    lines = Lines(world.release.record, str(world.release.root))
    line = lines.uv_replacing if client.kind == "uv" else lines.pip_replacing
    assert line is not None
    other = make_kernel(world.root / "other", "0.4.0", name="sglang-kernel")
    wrong = world.node(request.node.name + "-wrong", "2.11.0", client)
    wrong.run([UV, "pip", "install", "--offline", "--no-index", "--no-deps", str(other)])
    assert wrong.shell(line, ok=False).returncode != 0
    assert wrong.packages() == {"torch": "2.11.0", "sglang-kernel": "0.4.0"}, "nothing was removed"
    node = world.node(request.node.name, "2.12.0", client)
    node.run([UV, "pip", "install", "--offline", "--no-index", "--no-deps", str(other)])
    node.shell(line)
    assert node.packages() == {"torch": "2.12.0", "sgl-kernel": world.release.record.version}
    assert (node.site / "sgl_kernel/__init__.py").is_file()
    node.shell(line)
    assert node.packages() == {"torch": "2.12.0", "sgl-kernel": world.release.record.version}


def test_held_neither_torch_nor_the_wheel_is_swapped_later(
    world: World, client: Client, request: pytest.FixtureRequest
) -> None:
    node = world.node(request.node.name, "2.12.0", client)
    lines = Lines(world.release.record, str(world.release.root))
    before = node.files_of("torch")
    install = "uv pip install" if client.kind == "uv" else "python -m pip install"
    node.shell(f"{client.line(lines)} && {lines.hold} && {install} flashinfer-python sglang")
    packages = node.packages()
    assert packages.pop("flashinfer-python") == "0.8", "0.9 would bring another torch"
    assert packages.pop("sglang") == "0.5", "and sgl-kernel==0.3.21 is what we have"
    assert packages == {"torch": "2.12.0", "sgl-kernel": world.release.record.version}
    assert node.files_of("torch") == before
    for greedy in ("flashinfer-python==0.9", "needs-other", "sgl-kernel --upgrade"):
        done = node.shell(f"{client.line(lines)} && {lines.hold} && {install} {greedy}", ok=False)
        assert node.packages()["sgl-kernel"] == world.release.record.version, greedy
        assert node.packages()["torch"] == "2.12.0"
        assert "--upgrade" in greedy or done.returncode != 0


def test_a_yanked_release_still_installs_for_who_pinned_it(
    world: World, client: Client, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    layout = Layout(tmp_path)
    release = publish(*reports(make_kernel(tmp_path / "dist")), layout)
    publish(*reports(make_kernel(tmp_path / "dist", "0.3.21+cu130.torch2.12.0.sm120a.2")), layout)
    yank(Wheelhouse(release.root), release.id, "wrong numbers", force=True)
    node = world.node(request.node.name, "2.12.0", client)
    node.shell(client.line(Lines(release.record, str(release.root))))
    assert node.packages()["sgl-kernel"] == release.record.version


@pytest.mark.parametrize("served", [False, True], ids=["directory", "http"])
def test_a_uv_project_takes_ours_whatever_the_registry_has(
    world: World, tmp_path: Path, served: bool
) -> None:
    with http_directory(world.release.root) as (url, _):
        snippet = Lines(world.release.record, url if served else str(world.release.root)).project
        head = '[project]\nname = "node"\nversion = "1"\nrequires-python = ">=3.10"\n'
        (tmp_path / "pyproject.toml").write_text(head + snippet.removeprefix("[project]\n"))
        node = world.node(f"project-{served}", None, Client("uv", None))
        node.variables.pop("VIRTUAL_ENV")
        node.run([UV, "sync", "--python", str(node.python)], cwd=tmp_path)
        assert node.run([UV, "sync", "--locked", "--python", str(node.python)], cwd=tmp_path)
    node.variables["VIRTUAL_ENV"] = str(tmp_path / ".venv")
    packages = node.packages()
    assert packages["sgl-kernel"] == world.release.record.version
    assert packages["torch"].startswith("2.12.0")
    done = node.run([str(tmp_path / ".venv/bin/python"), "-c", "import sgl_kernel as k; print(dir(k))"])
    assert "rebuilt" not in done.stdout, "nor the registry's of the same name"
    lock = (tmp_path / "uv.lock").read_text()
    assert world.release.sha256 in lock or world.release.record.filename in lock
