"""What a node is, and what is installed there: read, never imported."""

from __future__ import annotations

import base64
import hashlib
import os
import platform
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

KERNELS = ("sgl-kernel", "sglang-kernel")
# Written by installers beside what the wheel brought.
INSTALLER_FILES = {"INSTALLER", "REQUESTED", "RECORD", "direct_url.json", "uv_cache.json"}


class Result(NamedTuple):
    """One thing that was looked at; `status` is passed, failed or unknown."""

    name: str
    status: str
    detail: str


class Gpu(NamedTuple):
    name: str
    capability: str
    driver: str


class Torch(NamedTuple):
    version: str
    cuda: str | None

    @property
    def public(self) -> str:
        return self.version.partition("+")[0]


class Node(NamedTuple):
    python: tuple[int, int]
    machine: str
    glibc: tuple[int, int] | None
    gpus: list[Gpu]
    torch: Torch | None
    kernels: dict[str, str]


def look() -> Node:
    """What this environment is."""
    return Node(
        sys.version_info[:2],
        platform.machine(),
        glibc(),
        gpus(),
        torch(),
        {name: version for name in KERNELS for version in [installed_version(name)] if version},
    )


def glibc() -> tuple[int, int] | None:
    try:
        text = os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (AttributeError, OSError, ValueError):
        return None
    match = re.match(r"glibc (\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else None


def gpus() -> list[Gpu]:
    query = ["nvidia-smi", "--query-gpu=name,compute_cap,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(
            query, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    if done.returncode:
        return []
    rows = [
        [cell.strip() for cell in line.split(",")]
        for line in done.stdout.decode().splitlines()
        if line.strip()
    ]
    return [Gpu(*row) for row in rows if len(row) == 3]


def installed_version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def torch() -> Torch | None:
    """Read, not imported: a broken torch should be described too."""
    version = installed_version("torch")
    if version is None:
        return None
    cuda = None
    for file in metadata.files("torch") or []:
        if str(file) == "torch/version.py":
            try:
                match = re.search(r"^cuda\b[^=]*= *['\"]([\d.]+)['\"]", file.read_text(), re.MULTILINE)
            except OSError:
                match = None
            cuda = match[1] if match else None
    return Torch(version, cuda)


def contents(name: str) -> dict[str, Any]:
    """Hash what is installed of a distribution, as `contents_sha256` of a release does for its wheel."""
    distribution = metadata.distribution(name)
    lines, wrong = [], []
    for file in distribution.files or []:
        posix = str(file).replace(os.sep, "/")
        if file.hash is None or by_installer(posix):
            continue
        try:
            data = Path(str(file.locate())).read_bytes()
        except OSError:
            wrong.append(f"{posix} is missing")
            continue
        real = base64.urlsafe_b64encode(hashlib.new(file.hash.mode, data).digest()).rstrip(b"=").decode()
        if real != file.hash.value:
            wrong.append(f"{posix} was changed")
        lines.append(f"{posix},{file.hash.mode}={real}")
    return {
        "sha256": hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest(),
        "files": len(lines),
        "wrong": wrong,
    }


def modules(name: str) -> list[str]:
    """What an installed distribution is imported as: its own name, or that of the kernels."""
    top = {str(file).split("/")[0] for file in metadata.files(name) or [] if file.name == "__init__.py"}
    likely = (name.replace("-", "_"), KERNELS[0].replace("-", "_"))
    return [module for module in likely if module in top][:1] or sorted(top)[:1]


def by_installer(path: str) -> bool:
    parent, _, name = path.rpartition("/")
    return (
        path.endswith(".pyc")
        or path.startswith("..")
        or (parent.endswith(".dist-info") and name in INSTALLER_FILES)
    )
