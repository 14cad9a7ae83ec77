"""A real server that speaks S3: moto's, on loopback, with everything in memory."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx

_UV = shutil.which("uv") or "uv"


@contextmanager
def serving() -> Iterator[str]:
    """Run it; its url."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    argv = [_UV, "run", "--no-project", "--quiet", "--with", "moto[server]>=5"]
    argv += ["moto_server", "-H", "127.0.0.1", "-p", str(port)]
    url = f"http://127.0.0.1:{port}"
    with subprocess.Popen(
        argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    ) as server:
        try:
            for _ in range(600):
                assert server.poll() is None, "moto_server ended: uv run --with 'moto[server]' moto_server"
                try:
                    if httpx.get(url).is_success:
                        break
                except httpx.TransportError:
                    time.sleep(0.5)
            yield url
        finally:
            os.killpg(server.pid, signal.SIGTERM)


def variables(url: str) -> dict[str, str]:
    """What the usual environment variables say of it."""
    return {
        "AWS_ENDPOINT": url,
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
    }
