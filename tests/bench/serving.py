"""`wheelhouse serve` beside a plain static server, and before many clients."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import grp
import hashlib
import os
import random
import shutil
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx
import psutil
from filledhouse import put
from measuring import Report, turn_by_turn

from sglwheel.wheelhouse import Lines, Release, Wheelhouse
from wheelworld import UV, Environment, make_torch

ROUNDS = 31
LARGE = 20_000_000
JSON = "application/vnd.pypi.simple.v1+json"
_NGINX = """
user {user}; daemon off; worker_processes 2; pid {home}/pid; error_log {home}/log crit;
events {{ worker_connections 1024; }}
http {{ access_log off; sendfile on; default_type application/octet-stream; types {{ text/html html; }}
  client_body_temp_path {home}/a; proxy_temp_path {home}/b; fastcgi_temp_path {home}/c;
  uwsgi_temp_path {home}/d; scgi_temp_path {home}/e;
  server {{ listen 127.0.0.1:{port}; root {root}; index index.html; }} }}
"""


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server(str):
    """Its url."""

    process: psutil.Process

    def spent(self) -> float:
        """Processor seconds until now, with those of its workers."""
        times = [one.cpu_times() for one in (self.process, *self.process.children(recursive=True))]
        return sum(time.user + time.system for time in times)


@contextlib.contextmanager
def _running(argv: Sequence[str], port: int) -> Iterator[Server]:
    url = Server(f"http://127.0.0.1:{port}")
    server = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url.process = psutil.Process(server.pid)
    try:
        for _ in range(1200):
            with contextlib.suppress(httpx.TransportError):
                httpx.get(f"{url}/simple/")
                break
            time.sleep(0.05)
        yield url
    finally:
        server.terminate()
        server.wait(30)


@contextlib.contextmanager
def ours(root: Path) -> Iterator[Server]:
    """`sglwheel wheelhouse serve`."""
    port = _free_port()
    code = "from sglwheel.cli import main; main()"
    argv = [sys.executable, "-c", code, "wheelhouse", "--root", str(root), "serve", "--port", str(port)]
    with _running(argv, port) as url:
        yield url


@contextlib.contextmanager
def plain(root: Path) -> Iterator[Server]:
    """Python's own file server."""
    port = _free_port()
    argv = [sys.executable, "-m", "http.server", "-b", "127.0.0.1", "-d", str(root), str(port)]
    with _running(argv, port) as url:
        yield url


@contextlib.contextmanager
def nginx(root: Path) -> Iterator[Server]:
    """nginx, which sends files as plainly and fast as anybody."""
    port = _free_port()
    with tempfile.TemporaryDirectory() as home:
        settings = Path(home) / "nginx.conf"
        user = f"{getpass.getuser()} {grp.getgrgid(os.getgid()).gr_name}"
        settings.write_text(_NGINX.format(user=user, home=home, port=port, root=root))
        argv = ["nginx", "-e", f"{home}/log", "-p", home, "-c", str(settings)]
        with _running(argv, port) as url:
            yield url


def serve(house: Wheelhouse, report: Report) -> None:
    """Install with the real uv: by the printed line, and by the index of everything."""
    servers = {"serve": ours, "http.server": plain}
    if shutil.which("nginx"):
        servers["nginx"] = nginx
    else:
        report.say("nginx", "not here", "so Python's file server alone is the plain one")
    with contextlib.ExitStack() as stack:
        base = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-serve-")))
        release = put(house.root.parent, len(house.ids()) + 1, LARGE)
        torch = make_torch(base, release.record.requires_torch.rpartition("=")[2])  # type: ignore[union-attr]
        node = Environment(base / "venv", wheels=[torch], cache=base / "uv-cache")
        urls = {name: stack.enter_context(start(house.root)) for name, start in servers.items()}
        size = release.record.size / 1e6
        for way, line in (
            (f"uv, the printed line, {size:.0f} MB", lambda url: Lines(release.record, url).uv),
            (f"uv, simple/ of {len(house.ids())} releases", partial(_by_index, release)),
        ):
            runs = {name: partial(node.shell, line(url)) for name, url in urls.items()}
            before = {name: url.spent() for name, url in urls.items()}
            taken = turn_by_turn(runs, ROUNDS, partial(_forget, node, release))
            for name, times in taken.items():
                report.times(f"{way}, from {name}", times)
                each = (urls[name].spent() - before[name]) / ROUNDS
                report.say(f"  of the processor, {name} itself", f"{each * 1000:.0f} ms")
            best = min((taken[name] for name in urls if name != "serve"), key=statistics.median)
            report.ratio(f"{way}: serve ÷ the faster plain one", taken["serve"], best, bar=1.1)


def _by_index(release: Release, url: str) -> str:
    pin = f"{release.record.name}=={release.record.version}"
    return f"uv pip install --no-deps --index-url {url}/simple/ {pin}"


def _forget(node: Environment, release: Release) -> None:
    """Neither installed nor in uv's cache."""
    node.run([UV, "pip", "uninstall", "--quiet", release.record.name])
    shutil.rmtree(node.variables["UV_CACHE_DIR"], ignore_errors=True)


@dataclass(frozen=True)
class _Ask:
    """A request and what must come of it, to the last byte."""

    path: str
    headers: dict[str, str]
    sha256: str


def clients(house: Wheelhouse, report: Report, *, count: int = 300, lasting: float = 60) -> None:
    """Many clients at once, each asking for pages, indexes, ranges and wheels, and hashing what comes."""
    asks = _asks(house)
    took: list[float] = []
    wrong: list[str] = []
    received = 0

    async def one(url: str, dice: random.Random, tls: ssl.SSLContext) -> None:
        nonlocal received
        until = time.monotonic() + lasting
        async with httpx.AsyncClient(base_url=url, timeout=60, verify=tls) as client:
            while time.monotonic() < until:
                ask = dice.choice(asks[dice.choice(list(asks))])
                began, digest = time.monotonic(), hashlib.sha256()
                try:
                    async with client.stream("GET", ask.path, headers=ask.headers) as answer:
                        async for part in answer.aiter_bytes():
                            digest.update(part)
                            received += len(part)
                    if answer.status_code not in (200, 206) or digest.hexdigest() != ask.sha256:
                        wrong.append(f"{ask.path}: {answer.status_code}, other bytes")
                except httpx.HTTPError as error:
                    wrong.append(f"{ask.path}: {error!r}")
                took.append(time.monotonic() - began)

    async def all_of_them(url: str) -> None:
        # Not used, but made anew for each client otherwise.
        tls = ssl.create_default_context()
        await asyncio.gather(*(one(url, random.Random(number), tls) for number in range(count)))

    with ours(house.root) as url:
        asyncio.run(all_of_them(url))
    took.sort()
    rate = f"{len(took) / lasting:.0f} and {received / lasting / 1e6:.0f} MB a second, clients on this host"
    report.say(f"{count} clients for {lasting:.0f} s: answers", str(len(took)), rate)
    slow = f"one in a hundred over {took[-len(took) // 100]:.2f} s"
    report.say("an answer, median", f"{took[len(took) // 2]:.2f} s", slow)
    report.count("errors", len(wrong), bar=0, detail="; ".join(wrong[:3]))


def _asks(house: Wheelhouse) -> dict[str, list[_Ask]]:
    """Kinds of requests, of twenty releases among all: what printed lines ask for, and people."""
    ids = house.ids()
    releases = [house.release(id) for id in ids[:: max(1, len(ids) // 20)]]
    kinds: dict[str, Callable[[Release], _Ask]] = {
        "release": lambda it: _file(house, f"builds/{it.id}/index.html", f"/builds/{it.id}/"),
        "wheel": lambda it: _Ask(_url(it), {}, it.sha256),
        "range": lambda it: _Ask(_url(it), {"range": "bytes=0-3"}, hashlib.sha256(b"PK\x03\x04").hexdigest()),
        "metadata": lambda it: _Ask(f"{_url(it)}.metadata", {}, it.record.metadata_sha256),
    }
    asks = {kind: [make(release) for release in releases] for kind, make in kinds.items()}
    project = releases[0].record.project
    asks["index"] = [
        _file(house, f"simple/{project}/index.html", f"/simple/{project}/"),
        _file(house, f"simple/{project}/index.json", f"/simple/{project}/", accept=JSON),
    ]
    asks["page"] = [_file(house, "index.html", "/")]
    return asks


def _url(release: Release) -> str:
    return f"/builds/{release.id}/{release.record.filename.replace('+', '%2B')}"


def _file(house: Wheelhouse, file: str, url: str, **headers: str) -> _Ask:
    return _Ask(url, headers, hashlib.sha256((house.root / file).read_bytes()).hexdigest())
