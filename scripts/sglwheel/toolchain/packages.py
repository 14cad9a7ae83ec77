"""Python packages by way of uv: read a PEP 751 lock, install what it says, nothing else."""

from __future__ import annotations

import hashlib
import importlib.metadata
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import packaging.pylock
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

from sglwheel import console, process
from sglwheel.errors import ToolchainError
from sglwheel.files import write_atomic
from sglwheel.mirrors import as_url
from sglwheel.toolchain import uvtool

_SIZE = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_DOWNLOADING = re.compile(r"Downloading (\S+) \(([\d.]+)([KMG]iB)\)")
_DOWNLOADED = re.compile(r"Downloaded (\S+)")


@dataclass(frozen=True)
class Package:
    """An installed distribution; `sha256` is that of its wheel."""

    name: str
    version: Version
    sha256: str | None


@dataclass(frozen=True)
class Lock:
    """A resolution: `requirements` is what was asked for, `pins` every version with its wheels' hashes."""

    requirements: tuple[str, ...]
    pins: packaging.pylock.Pylock = field(repr=False)

    def version(self, *names: str) -> Version | None:
        """The newest version of any of these packages in the lock: markers can give several."""
        found = (package.version for package in self.pins.packages if package.name in names)
        return max((version for version in found if version is not None), default=None)

    def text(self) -> str:
        """The lock as hash-checked requirement lines: they work with any index that has the same files."""
        blocks = []
        for package in self.pins.packages:
            digests = {wheel.hashes["sha256"] for wheel in package.wheels or () if "sha256" in wheel.hashes}
            marker = f" ; {package.marker}" if package.marker else ""
            words = [f"{package.name}=={package.version}{marker}"]
            words += [f"    --hash=sha256:{digest}" for digest in sorted(digests)]
            blocks.append(" \\\n".join(words) + "\n")
        return "".join(blocks)

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.text().encode()).hexdigest()

    def sha256(self, name: str, version: Version, tags: frozenset[str]) -> str | None:
        """The hash of the one wheel that an installed distribution with these tags came from."""
        for package in self.pins.packages:
            if package.name != name or package.version != version:
                continue
            for wheel in package.wheels or ():
                if tags & {str(tag) for tag in parse_wheel_filename(wheel.filename)[3]}:
                    return wheel.hashes.get("sha256")
        return None


def read(path: Path) -> Lock | None:
    """Read a lock that `resolve` wrote; None when there is none, or it is not ours to use."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
        pins = packaging.pylock.Pylock.from_dict(data)
        _complete(pins)
        requirements = data["tool"]["sglwheel"]["requirements"]
        if not isinstance(requirements, list) or not all(isinstance(one, str) for one in requirements):
            raise ValueError("tool.sglwheel.requirements is no list of texts")
        return Lock(tuple(requirements), pins)
    except FileNotFoundError:
        return None
    except (KeyError, TypeError, ValueError, packaging.pylock.PylockValidationError) as error:
        raise ToolchainError(
            f"{path.name} is not a lock that we wrote: {error}",
            where={"file": str(path)},
            next=f"delete {path.name}: the next build writes it again",
        ) from error


def _complete(pins: packaging.pylock.Pylock) -> None:
    """Raise ValueError for what PEP 751 allows, and nothing of ours can be installed or verified by."""
    for package in pins.packages:
        if package.version is None:
            raise ValueError(f"{package.name} has no version")
        for wheel in package.wheels or ():
            if not wheel.url:
                raise ValueError(f"{package.name}: {wheel.filename} has no url")
            urlsplit(wheel.url)
            if not re.fullmatch(r"[0-9a-f]{64}", wheel.hashes.get("sha256", "")):
                raise ValueError(f"{package.name}: {wheel.filename} has no SHA-256 of 64 digits")


def install(
    lock: Lock,
    *,
    python: Path,
    log: Path,
    title: str,
    target: Path | None = None,
    index: str | None = None,
    links: Sequence[str] = (),
    only_links: bool = False,
) -> None:
    """Install exactly what the lock says, checked by hash, wheels only; `links` are `wheels.links`' words.

    With `only_links` no index is asked. Raises ToolchainError.
    """
    listed = log.with_suffix(".txt")
    write_atomic(listed, lock.text())
    argv = [uvtool.uv_binary(), "pip", "install", "--python", str(python), "--no-deps", "--require-hashes"]
    argv += ["--only-binary", ":all:", "--no-python-downloads", "-r", str(listed)]
    argv += ["--target", str(target)] if target is not None else []
    argv += links
    argv += ["--offline", "--no-index"] if only_links else []
    argv += ["--index", as_url(index)] if index and not only_links else []
    sizes: dict[str, float] = {}
    done = set[str]()
    with console.progress(title, unit="bytes") as bar:

        def follow(line: str) -> None:
            if match := _DOWNLOADING.search(line):
                sizes[match[1]] = float(match[2]) * _SIZE[match[3]]
            elif match := _DOWNLOADED.search(line):
                done.add(match[1])
            else:
                return
            bar.update(
                sum(sizes.get(name, 0) for name in done), sum(sizes.values()), f"{len(done)}/{len(sizes)}"
            )

        finished = process.stream(
            argv, failure=ToolchainError, log=log, env=uvtool.environment(), on_line=follow
        )
    if finished.returncode != 0:
        said = finished.stdout.strip()[-1500:]
        raise ToolchainError(
            f"{title}: uv failed ({process.describe_status(finished.returncode)})",
            where={"says": said},
            next=uvtool.remedy(said, "check the network, or point uv to your mirror (UV_DEFAULT_INDEX)"),
            log=log,
        )


def installed(site_packages: Path, locks: Sequence[Lock]) -> tuple[Package, ...]:
    """List what is installed, each with the hash of the wheel it came from, sorted by name."""
    found: dict[str, Package] = {}
    for distribution in importlib.metadata.distributions(path=[str(site_packages)]):
        name = canonicalize_name(distribution.metadata["Name"])
        version = Version(distribution.version)
        tags = frozenset(re.findall(r"^Tag: (\S+)", distribution.read_text("WHEEL") or "", re.MULTILINE))
        digests = (lock.sha256(name, version, tags) for lock in locks)
        found[name] = Package(name, version, next((digest for digest in digests if digest), None))
    return tuple(found[name] for name in sorted(found))


def to_json(packages: Sequence[Package]) -> list[Mapping[str, str | None]]:
    """Packages as a done-marker keeps them."""
    return [{"name": one.name, "version": str(one.version), "sha256": one.sha256} for one in packages]


def from_json(data: Sequence[Mapping[str, str | None]]) -> tuple[Package, ...]:
    """The reverse of `to_json`."""
    return tuple(Package(str(one["name"]), Version(str(one["version"])), one["sha256"]) for one in data)
