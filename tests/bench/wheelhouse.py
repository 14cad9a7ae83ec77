"""How the wheelhouse does at size: `uvx nox -s bench-wheelhouse -- [size serve clients publishers]`.

Seconds hold for one machine and moment; a ratio is of one run, against the plainest loop or server that does
the same reading, writing or sending.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import importlib
import itertools
import os
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import httpx

TESTS = Path(__file__).parents[1]
sys.path.insert(0, str(TESTS))

from sglwheel.files import Layout
from sglwheel.wheelhouse import Lines, Release, Wheelhouse, publish
from sglwheel.wheelhouse.settle import settle
from sglwheel.wheelhouse.verify import verify
from wheelworld import UV, Environment, make_kernel, make_torch, reports

PROVENANCE = {
    "recipe": {"id": "cu130"},
    "upstream": {"commit": "6" * 40},
    "flags": {"architectures": ["12.0a"]},
    "patched": {"patches": [{"name": name, "state": "applied"} for name in ("one", "two", "three")]},
}
ROUNDS = 7
JSON = "application/vnd.pypi.simple.v1+json"


def say(what: str, value: str, bar: str = "") -> None:
    print(f"{what:<46} {value:>12}  {bar}".rstrip(), flush=True)


def seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def put(base: Path, number: int) -> Release:
    torch = f"2.{9 + number % 4}.0"
    wheel = make_kernel(
        base / "dist", f"0.3.21+cu130.torch{torch}.sm120a.{number}", torch=torch, provenance=PROVENANCE
    )
    finished = reports(wheel, gpu=number % 3 > 0, requires=f"torch=={torch}")
    try:
        return publish(*finished, Layout(base))
    finally:
        wheel.unlink()


@contextlib.contextmanager
def unindexed() -> Iterator[None]:
    """Publish without indexes and without waiting for the disk: filling is not what is measured."""
    module: Any = importlib.import_module("sglwheel.wheelhouse.publish")
    kept = module.settle, Wheelhouse.next_serial, os.fsync
    serials = itertools.count(1)
    module.settle = lambda house: [house.expose(house.read(id)) for id in house.in_flight()]
    Wheelhouse.next_serial = lambda _: next(serials)  # type: ignore[method-assign]
    os.fsync = lambda _: None
    try:
        yield
    finally:
        module.settle, Wheelhouse.next_serial, os.fsync = kept  # type: ignore[method-assign]


def size(base: Path, releases: int) -> None:
    """Publish one more, index from scratch, verify, at many releases."""
    house = Wheelhouse(base / "wheelhouse")
    with unindexed():
        say(
            f"filling, {releases} tiny wheels",
            f"{seconds(lambda: [put(base, n + 1) for n in range(releases)]):.1f} s",
        )

    def index() -> None:
        with house.locked(), house.transaction():
            settle(house, fresh=True)

    say("index from scratch", f"{seconds(index):.1f} s", "bar: 20 s")
    derived = [
        path for path in house.root.rglob("*") if path.is_file() and path.suffix in (".html", ".txt", ".json")
    ]
    copies = base / "copies"
    copies.mkdir()

    def write() -> None:
        for number, path in enumerate(derived):
            (copies / str(number)).write_bytes(path.read_bytes())
        os.sync()

    plain = seconds(write)
    say("  copying its files, a plain loop", f"{plain:.1f} s")
    shutil.rmtree(copies)
    times = [seconds(partial(put, base, releases + number)) for number in range(1, ROUNDS + 1)]
    say("publish one more, median", f"{statistics.median(times):.2f} s", "bar: 1 s")
    say("publish one more, worst", f"{max(times):.2f} s")
    everything = [path for path in house.root.rglob("*") if path.is_file()]

    def read() -> None:
        for path in everything:
            with path.open("rb") as stream:
                hashlib.file_digest(stream, "sha256").hexdigest()

    seconds(read)
    plain = seconds(read)
    say(f"  hashing its {len(everything)} files, a plain loop", f"{plain:.1f} s")
    found: list[bool] = []
    took = seconds(lambda: found.append(verify(house).ok))
    say("verify", f"{took:.1f} s")
    say("verify ÷ plain loop", f"{took / plain:.2f}", "" if all(found) else "FOUND SOMETHING WRONG")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def serving(argv: Sequence[str], port: int) -> Iterator[str]:
    url = f"http://127.0.0.1:{port}"
    server = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(1200):
            with contextlib.suppress(httpx.TransportError):
                httpx.get(f"{url}/index.html")
                break
            time.sleep(0.05)
        yield url
    finally:
        server.terminate()
        server.wait(30)


@contextlib.contextmanager
def ours(root: Path) -> Iterator[str]:
    port = free_port()
    code = "from sglwheel.cli import main; main()"
    argv = [sys.executable, "-c", code, "wheelhouse", "--root", str(root), "serve", "--port", str(port)]
    with serving(argv, port) as url:
        yield url


@contextlib.contextmanager
def plain(root: Path) -> Iterator[str]:
    port = free_port()
    argv = [sys.executable, "-m", "http.server", "-b", "127.0.0.1", "-d", str(root), str(port)]
    with serving(argv, port) as url:
        yield url


def serve(base: Path, releases: int) -> None:
    """Install with the real uv from `serve` and from Python's own file server, turn by turn."""
    wheel = make_kernel(base / "dist", content=f"x = {random.Random(1).randbytes(10_000_000).hex()!r}\n")
    release = publish(*reports(wheel), Layout(base))
    node = Environment(base / "venv", wheels=[make_torch(base, "2.12.0")], cache=base / "uv-cache")
    taken: dict[str, list[float]] = {"serve": [], "plain": []}
    with ours(release.root) as one, plain(release.root) as other:
        for _ in range(ROUNDS):
            for name, url in (("serve", one), ("plain", other)):
                line = Lines(release.record, url).uv
                node.run([UV, "cache", "clean", "--quiet"])
                taken[name].append(seconds(partial(node.shell, line)))
                node.run([UV, "pip", "uninstall", "--quiet", release.record.name])
    for name, times in taken.items():
        say(
            f"uv install of {release.record.size / 1e6:.0f} MB from {name}, median",
            f"{statistics.median(times):.2f} s",
        )
    ratio = statistics.median(taken["serve"]) / statistics.median(taken["plain"])
    say("serve ÷ plain", f"{ratio:.2f}", "bar: 1.1")


def clients(base: Path, releases: int, *, count: int = 300, lasting: float = 60) -> None:
    """Many clients at once, each asking for pages, indexes, ranges and wheels, and checking what comes."""
    published = [put(base, number) for number in range(1, 21)]
    answers: list[int] = []
    wrong: list[str] = []

    async def one(client: httpx.AsyncClient, dice: random.Random, until: float) -> None:
        while time.monotonic() < until:
            release = dice.choice(published)
            wheel = f"/builds/{release.id}/{release.record.filename.replace('+', '%2B')}"
            path, headers, expected = dice.choice(
                [
                    ("/index.html", {}, release.id.encode()),
                    ("/simple/sgl-kernel/", {"accept": JSON}, b'{"meta"'),
                    ("/simple/sgl-kernel/", {}, release.sha256.encode()),
                    (f"/builds/{release.id}/", {}, release.sha256.encode()),
                    (wheel, {}, release.path.read_bytes()),
                    (wheel, {"range": "bytes=0-3"}, b"PK\x03\x04"),
                ]
            )
            try:
                answer = await client.get(path, headers=headers)
                if answer.status_code not in (200, 206) or expected not in answer.content:
                    wrong.append(f"{path}: {answer.status_code}")
                answers.append(len(answer.content))
            except httpx.HTTPError as error:
                wrong.append(f"{path}: {error!r}")

    async def all_of_them(url: str) -> None:
        limits = httpx.Limits(max_connections=count, max_keepalive_connections=count)
        async with httpx.AsyncClient(base_url=url, limits=limits, timeout=60) as client:
            until = time.monotonic() + lasting
            await asyncio.gather(*(one(client, random.Random(number), until) for number in range(count)))

    with ours(published[0].root) as url:
        took = seconds(lambda: asyncio.run(all_of_them(url)))
    say(f"{count} clients for {took:.0f} s: answers", str(len(answers)))
    say("answers a second", f"{len(answers) / took:.0f}")
    say("errors", str(len(wrong)), f"bar: 0  {'; '.join(wrong[:3])}")


def publishers(base: Path, releases: int) -> None:
    """Eight publishers of 200 wheels with random kills: the test of it, at full size."""
    argv = [sys.executable, "-m", "pytest", "-q", str(TESTS / "integration/test_wheelhouse_concurrency.py")]
    took = seconds(
        lambda: subprocess.run(
            argv, check=True, cwd=TESTS.parent, env={**os.environ, "SGLWHEEL_SCALE": "8x200"}
        )
    )
    say("8 publishers of 200 wheels, killed at random", f"{took:.0f} s", "none lost, none torn, index true")


def main() -> None:
    parts = {"size": size, "serve": serve, "clients": clients, "publishers": publishers}
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("parts", nargs="*", choices=[*parts, []], default=list(parts))
    parser.add_argument("--releases", type=int, default=10_000)
    options = parser.parse_args()
    for name in options.parts:
        with tempfile.TemporaryDirectory(prefix=f"bench-{name}-") as base:
            parts[name](Path(base), options.releases)


if __name__ == "__main__":
    main()
