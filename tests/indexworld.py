"""Package indexes on loopback that behave like PyPI's and PyTorch's, also where they behave badly."""

from __future__ import annotations

import base64
import hashlib
import io
import os
import socket
import struct
import time
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import quote, unquote

from loopback import Loopback
from sglwheel.mirrors import Mirrors

NIGHTLY = "/whl/nightly/cu130"
RELEASE = "/whl/cu130"
PYPI = "/simple"
TORCH_TAG = "cp311-cp311-manylinux_2_28_x86_64"


def wheel(
    name: str,
    version: str,
    *,
    tag: str = "py3-none-any",
    requires: Sequence[str] = (),
    files: Mapping[str, str] | None = None,
) -> tuple[str, bytes]:
    """A small, installable wheel: its file name and its bytes, the same every time."""
    stem = f"{name.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += "".join(f"Requires-Dist: {one}\n" for one in requires)
    members = {
        **(files or {}),
        f"{info}/METADATA": metadata,
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n",
    }
    members[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in (*members, f"{info}/RECORD"))
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as container:
        for path, text in members.items():
            container.writestr(zipfile.ZipInfo(path, (2026, 1, 1, 0, 0, 0)), text)
    return f"{stem}-{tag}.whl", out.getvalue()


def torch(version: str, *, tag: str = TORCH_TAG, cuda: str = "13.0") -> tuple[str, bytes]:
    """A torch that knows its version, and has no libraries."""
    text = f"__version__ = '{version}'\ncuda = '{cuda}'\ngit_version = '{'a' * 40}'\n"
    files = {
        "torch/version.py": text,
        "torch/__init__.py": "from torch import version\n__version__ = version.__version__\n",
        "torch/lib/README": "none\n",
    }
    return wheel("torch", version, tag=tag, files=files)


@dataclass
class Index(Loopback):
    """A server; `projects` maps a page to its files, `faults` a path to what goes wrong there, in turn.

    With `login` (`user:password`) it serves nobody else, with `tls` (certificate, key) over TLS alone. A
    fault is `truncated`, `wrong`, `slow`, `silent`, `reset`, or a status with what Retry-After should say.
    """

    projects: dict[str, dict[str, bytes]] = field(default_factory=dict)
    faults: dict[str, list[str]] = field(default_factory=dict)
    requests: list[tuple[str, str | None]] = field(default_factory=list)
    login: str = ""
    tls: tuple[Path, Path] | None = None
    protocol = "HTTP/1.1"

    @property
    def mirrors(self) -> Mirrors:
        return Mirrors().with_entries(
            {
                "https://pypi.org/simple": f"{self.url}/simple",
                "https://files.pythonhosted.org/packages": f"{self.url}/packages",
                "https://download.pytorch.org/whl": f"{self.url}/whl",
            }
        )

    def add(self, root: str, name: str, made: tuple[str, bytes]) -> None:
        self.projects.setdefault(f"{root}/{name}/", {})[made[0]] = made[1]

    def remove(self, root: str, name: str, text: str) -> None:
        """Let an index forget the files whose names hold `text`."""
        page = self.projects[f"{root}/{name}/"]
        for filename in [one for one in page if text in one]:
            del page[filename]

    def tools(self) -> None:
        """What a recipe's locks ask of PyPI, as empty wheels."""
        for name, version in (
            ("cmake", "3.31.10"),
            ("ninja", "1.13.0"),
            ("scikit-build-core", "0.11.6"),
            ("setuptools", "80.0.0"),
            ("cuda-toolkit", "13.0.2"),
        ):
            self.add(PYPI, name, wheel(name, version))

    def answer(self, to: BaseHTTPRequestHandler) -> None:
        path = unquote(to.path.partition("?")[0])
        self.requests.append((path, to.headers.get("Range")))
        expected = f"Basic {base64.b64encode(self.login.encode()).decode()}"
        if self.login and to.headers.get("Authorization") != expected:
            self._send(to, b"", "text/plain", status=401)
            return
        faults = self.faults.get(path, [])
        fault = faults.pop(0) if faults else ""
        status, _, after = fault.partition(" ")
        if status.isdecimal():
            self._send(to, b"", "text/plain", status=int(status), after=after)
            return
        if fault == "reset":
            # Closed without lingering: the peer gets a reset.
            to.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            os.close(to.connection.detach())
            to.close_connection = True
            return
        if path in self.projects:
            self._send(to, self._page(path), "text/html")
            return
        content = self._file(path)
        if content is None:
            self._send(to, b"", "text/plain", status=404)
        elif fault == "truncated":
            self._send(to, content, "application/zip", stop=len(content) // 2)
        elif fault == "wrong":
            self._send(to, content[:-1] + b"?", "application/zip")
        elif fault == "slow":
            self._send(to, content, "application/zip", stop=len(content) // 2, pause=3.0)
        elif fault == "silent":
            self._send(to, content, "application/zip", stop=0, pause=3.0)
        else:
            self._send(to, content, "application/zip")

    def _file(self, path: str) -> bytes | None:
        folder, _, filename = path.rpartition("/")
        root = PYPI if folder == "/packages" else folder
        pages = (page for name, page in self.projects.items() if name.startswith(f"{root}/"))
        return next((page[filename] for page in pages if filename in page), None)

    def _page(self, path: str) -> bytes:
        root = path.rstrip("/").rpartition("/")[0]
        base = "/packages" if root == PYPI else root
        links = [
            f'<a href="{base}/{quote(name)}#sha256={hashlib.sha256(content).hexdigest()}">{name}</a><br/>'
            for name, content in self.projects[path].items()
        ]
        return ("<!DOCTYPE html><html><body>" + "\n".join(links) + "</body></html>").encode()

    def _send(
        self,
        to: BaseHTTPRequestHandler,
        content: bytes,
        kind: str,
        *,
        status: int = 200,
        stop: int | None = None,
        pause: float = 0.0,
        after: str = "",
    ) -> None:
        span = to.headers.get("Range", "")
        start, end = 0, len(content)
        if span.startswith("bytes=") and status == 200:
            first, _, last = span.removeprefix("bytes=").partition("-")
            start = int(first) if first else max(0, len(content) - int(last))
            end = min(end, int(last) + 1) if first and last else end
            status = 206 if start < len(content) else 416
        body = content[start:end] if status != 416 else b""
        to.send_response(status)
        to.send_header("Content-Type", kind)
        to.send_header("Accept-Ranges", "bytes")
        to.send_header("Content-Length", str(len(body)))
        if after:
            to.send_header("Retry-After", after)
        if status == 401:
            to.send_header("WWW-Authenticate", 'Basic realm="index"')
        if status == 206:
            to.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(content)}")
        to.end_headers()
        if to.command == "HEAD":
            return
        try:
            to.wfile.write(body[:stop])
            to.wfile.flush()
            time.sleep(pause)
        except OSError:
            pass
        if stop is not None:
            to.close_connection = True
