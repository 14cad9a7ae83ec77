"""Throwaway wheels, environments and registries for tests of publishing and installing."""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import html
import http.server
import json
import os
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uv
import uvicorn

from sglwheel.wheelhouse.serving import Service, application

UV = uv.find_uv_bin()
PURE = "py3-none-any"


def make_wheel(
    directory: Path,
    name: str,
    version: str,
    *,
    tag: str = PURE,
    requires: Sequence[str] = (),
    requires_python: str | None = None,
    contents: Mapping[str, str | bytes] | None = None,
    provenance: Mapping[str, Any] | None = None,
    metadata_version: str | None = None,
) -> Path:
    """Write a small but correct wheel; `metadata_version` makes METADATA disagree with the name."""
    stem = f"{name.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {metadata_version or version}\n"
    metadata += f"Requires-Python: {requires_python}\n" if requires_python else ""
    metadata += "".join(f"Requires-Dist: {item}\n" for item in requires)
    members: dict[str, str | bytes] = dict(
        contents or {f"{name.replace('-', '_')}.py": f"__version__ = {version!r}\n"}
    )
    members[f"{info}/METADATA"] = metadata
    members[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n"
    if provenance is not None:
        members[f"{info}/provenance.json"] = json.dumps(provenance)
    record = ""
    for member, content in members.items():
        data = content.encode() if isinstance(content, str) else content
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record += f"{member},sha256={digest},{len(data)}\n"
    members[f"{info}/RECORD"] = record + f"{info}/RECORD,,\n"
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{stem}-{tag}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, content in members.items():
            archive.writestr(zipfile.ZipInfo(member, (2026, 3, 6, 0, 0, 0)), content)
    return path


def make_torch(directory: Path, version: str, *, cuda: str = "13.0", requires: Sequence[str] = ()) -> Path:
    """A torch that has the right name, versions and files, and computes nothing."""
    return make_wheel(
        directory,
        "torch",
        version,
        requires=requires,
        contents={
            "torch/__init__.py": "from torch.version import __version__\n",
            "torch/version.py": f"__version__ = {version!r}\ncuda = {cuda!r}\ngit_version = {'0' * 40!r}\n",
            "torch/lib/libtorch.so": b"\x7fELF not really " + version.encode() + bytes(4096),
        },
    )


def make_kernel(
    directory: Path,
    version: str = "0.3.21+cu130.torch2.12.0.sm120a.1",
    *,
    name: str = "sgl-kernel",
    torch: str = "2.12.0",
    content: str = "",
    **more: Any,
) -> Path:
    """A wheel in the place of ours."""
    return make_wheel(
        directory,
        name,
        version,
        requires=more.pop("requires", [f"torch=={torch}"]),
        requires_python=">=3.10",
        contents={
            "sgl_kernel/__init__.py": f"import torch\n__version__ = {version.partition('+')[0]!r}\n{content}"
        },
        **more,
    )


@dataclass(frozen=True)
class Finished:
    """Stands for what the finishing stage returns."""

    path: Path
    name: str = "sgl-kernel"
    version: str = ""
    tag: str = PURE
    requires_torch: str = "torch==2.12.0"
    marked: tuple[str, ...] = ()


@dataclass(frozen=True)
class Check:
    name: str
    status: str
    detail: str = ""


@dataclass(frozen=True)
class Report:
    """Stands for an inspection or a smoke report."""

    wheel_sha256: str
    ok: bool = True
    gpu_checked: bool = False
    checks: tuple[Check, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {
            "wheel_sha256": self.wheel_sha256,
            "ok": self.ok,
            "checks": [vars(check) for check in self.checks],
            **self.facts,
        }


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def reports(
    path: Path, *, gpu: bool = False, requires: str = "torch==2.12.0"
) -> tuple[Finished, Report, Report]:
    """What publish() takes, for a wheel that passed everything."""
    sha = digest(path)
    smoke = Report(
        sha, gpu_checked=gpu, checks=(Check("import", "passed"), Check("gpu", "passed" if gpu else "skipped"))
    )
    return Finished(path, requires_torch=requires), Report(sha), smoke


# What a developer's configuration must not change about a test.
def clean_environment(**more: str) -> dict[str, str]:
    kept = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("PIP_", "UV_", "PYTHON", "VIRTUAL_ENV", "CONDA"))
    }
    return {
        **kept,
        "PIP_CONFIG_FILE": os.devnull,
        "UV_NO_CONFIG": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        **more,
    }


def python() -> str:
    """An interpreter that is not itself a virtual environment."""
    return getattr(sys, "_base_executable", sys.executable)


class Environment:
    """A fresh virtual environment, driven by the real uv and pip."""

    def __init__(
        self, path: Path, *, wheels: Sequence[Path] = (), seed: Path | None = None, cache: Path
    ) -> None:
        self.path = path
        self.variables = clean_environment(
            VIRTUAL_ENV=str(path), UV_CACHE_DIR=str(cache), UV_PYTHON_DOWNLOADS="never", HOME=str(path.parent)
        )
        self.variables["PATH"] = f"{path / 'bin'}:{Path(UV).parent}:{self.variables['PATH']}"
        self.run([UV, "venv", "--quiet", "--offline", "--python", python(), str(path)])
        if seed:
            self.run([UV, "pip", "install", "--quiet", "--offline", "--no-index", "--no-deps", str(seed)])
        if wheels:
            self.run(
                [UV, "pip", "install", "--quiet", "--offline", "--no-index", "--no-deps", *map(str, wheels)]
            )

    @property
    def python(self) -> Path:
        return self.path / "bin/python"

    @property
    def site(self) -> Path:
        return next(self.path.glob("lib/python*/site-packages"))

    def run(
        self, argv: Sequence[str], *, ok: bool = True, cwd: Path | None = None, **env: str
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            argv,
            env={**self.variables, **env},
            cwd=cwd or self.path.parent,
            text=True,
            capture_output=True,
            check=False,
        )
        if ok:
            assert done.returncode == 0, f"{argv}\n{done.stdout}\n{done.stderr}"
        return done

    def shell(
        self, line: str, *, ok: bool = True, cwd: Path | None = None, **env: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a line as a person would paste it."""
        return self.run(["bash", "-c", line], ok=ok, cwd=cwd, **env)

    def packages(self) -> dict[str, str]:
        done = self.run([UV, "pip", "list", "--format", "json"])
        return {item["name"]: item["version"] for item in json.loads(done.stdout)}

    def files_of(self, package: str) -> dict[str, str]:
        """Every installed file below site-packages/<package> and its dist-info → its hash."""
        roots = [self.site / package, *self.site.glob(f"{package}-*.dist-info")]
        return {
            str(path.relative_to(self.site)): digest(path)
            for root in roots
            for path in sorted(root.rglob("*"))
            if path.is_file() and path.suffix != ".pyc"
        }


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        self.server.requests.append(self.path)  # type: ignore[attr-defined]


@contextlib.contextmanager
def http_directory(directory: Path) -> Iterator[tuple[str, list[str]]]:
    """Serve a directory on loopback as any plain static server would; yield its url and the requests."""
    handler = functools.partial(_Quiet, directory=str(directory))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.requests = []  # type: ignore[attr-defined]
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", server.requests  # type: ignore[attr-defined]
        finally:
            server.shutdown()
            thread.join()


@contextlib.contextmanager
def running(service: Service) -> Iterator[str]:
    """Serve a wheelhouse as `sglwheel wheelhouse serve` does, on a free port; yield its url."""
    config = uvicorn.Config(
        application(service),
        port=0,
        log_level="error",
        ssl_certfile=service.certificate,
        ssl_keyfile=service.key,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    for _ in range(600):
        if server.started:
            break
        time.sleep(0.05)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"{'https' if service.certificate else 'http'}://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()


def simple_index(root: Path, wheels: Sequence[Path]) -> Path:
    """Write a PEP 503 registry of these wheels (hashes included) below `root`/simple."""
    projects: dict[str, list[Path]] = {}
    for wheel in wheels:
        projects.setdefault(wheel.name.partition("-")[0].lower().replace("_", "-"), []).append(wheel)
    for project, members in projects.items():
        directory = root / "simple" / project
        directory.mkdir(parents=True, exist_ok=True)
        links = ""
        for wheel in members:
            (directory / wheel.name).write_bytes(wheel.read_bytes())
            href = wheel.name.replace("+", "%2B")
            links += (
                f'<a href="{html.escape(href)}#sha256={digest(wheel)}">{html.escape(wheel.name)}</a><br>\n'
            )
        (directory / "index.html").write_text(f"<!doctype html><html><body>\n{links}</body></html>\n")
    return root / "simple"
