"""Python packages by way of uv: resolve into a PEP 751 lock, install what the lock says, nothing else."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
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
from sglwheel.mirrors import Mirrors, local_path, redacted

PYPI = "https://pypi.org/simple"
# What of the user's uv configuration says *where* packages come from or how they are carried. The rest says
# which packages to take, and that is the lock's to say.
_KEPT = re.compile(
    r"UV_(DEFAULT_INDEX|INDEX|INDEX_URL|EXTRA_INDEX_URL|INDEX_STRATEGY|INDEX_\w+_(USERNAME|PASSWORD)|KEYRING_PROVIDER"
    r"|INSECURE_HOST|CACHE_DIR|LINK_MODE|NATIVE_TLS|SYSTEM_CERTS|HTTP_TIMEOUT|HTTP_RETRIES|OFFLINE"
    r"|FIND_LINKS|NO_INDEX"
    r"|CONCURRENT_\w+|CONFIG_FILE|NO_CONFIG)"
)
_DROPPED = re.compile(r"(UV|PIP|PYTHON|CONDA|VIRTUAL_ENV)(_\w+)?|PYTHON\w*|__PYVENV_LAUNCHER__")
# Each of uv's wheels stands on a line of its own; these are for platforms that have no CUDA.
_FOREIGN = re.compile(
    r"^\s+\{ url = \"[^\"]*-"
    r"(win32|win_amd64|win_arm64|macosx_\w+|musllinux_\w+|pyodide_\w+|android_\w+|ios_\w+"
    r"|manylinux[\w.]*_(i686|armv7l|ppc64le|ppc64|s390x|riscv64|loongarch64))\.whl\".*\n",
    re.MULTILINE,
)
_SDIST = re.compile(r"^sdist = .*\n", re.MULTILINE)
_URL = re.compile(r"(\b(?:url|index|path) = )\"([^\"]+)\"")
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


def uv_binary() -> str:
    """uv, which comes with the tool. Raises ToolchainError where somebody left it out."""
    try:
        import uv

        return uv.find_uv_bin()
    except (ImportError, FileNotFoundError):
        raise ToolchainError(
            "uv is not installed", next="pip install uv, or build with --torch-from an environment"
        ) from None


def environment() -> dict[str, str]:
    """The caller's environment without what could change *which* packages uv takes."""
    kept = {
        key: value for key, value in os.environ.items() if _KEPT.fullmatch(key) or not _DROPPED.fullmatch(key)
    }
    return {"UV_HTTP_TIMEOUT": "120", "UV_NO_PROGRESS": "1", **kept}


def has_own_index() -> bool:
    """Whether the user has told uv of indexes of their own."""
    return any(
        ("INDEX" in key and key != "UV_NO_INDEX") or key == "UV_CONFIG_FILE"
        for key in environment()
        if key.startswith("UV_")
    )


def read(path: Path) -> Lock | None:
    """Read a lock that `resolve` wrote; None when there is none, or it is not ours to use."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
        pins = packaging.pylock.Pylock.from_dict(data)
        return Lock(tuple(data["tool"]["sglwheel"]["requirements"]), pins)
    except FileNotFoundError:
        return None
    except (KeyError, TypeError, ValueError, packaging.pylock.PylockValidationError) as error:
        raise ToolchainError(
            f"{path.name} is not a lock that we wrote: {error}",
            where={"file": str(path)},
            next=f"delete {path.name}: the next build writes it again",
        ) from error


def resolve(
    requirements: Sequence[str],
    into: Path,
    *,
    python: str,
    index: str | None = None,
    public: bool = True,
    mirrors: Mirrors | None = None,
    constraints: Sequence[str] = (),
) -> Lock:
    """Resolve for every Linux and every Python from `python` on, and write the lock to `into`.

    With `public` the user's indexes are left out and mirrors' urls become those that they stand for, so that
    the lock holds no address of this site. Raises ToolchainError.
    """
    mirrors = mirrors or Mirrors()
    base = environment()
    if public:
        base = {key: value for key, value in base.items() if not re.search("INDEX|FIND_LINKS", key)}
    argv = [uv_binary(), "pip", "compile", "--quiet", "--no-header", "--universal"]
    argv += ["--python-version", python, "--format", "pylock.toml", "--only-binary", ":all:"]
    if constraints:
        listed = into.with_suffix(".constraints.txt")
        write_atomic(listed, "".join(f"{line}\n" for line in constraints))
        argv += ["--constraints", str(listed)]
    says: dict[str, str] = {}
    for defaults, extra in _places(index, mirrors, public):
        done = process.run(
            [*argv, *defaults, *extra, "-"],
            failure=ToolchainError,
            env=base,
            input="\n".join(requirements).encode(),
            accept=range(256),
            what="resolving",
        )
        if done.returncode == 0:
            break
        lines = [line.removeprefix("error: ").removeprefix("  ") for line in done.stderr.splitlines()]
        text = "\n".join(line for line in lines if not line.startswith("warning:"))[-2000:]
        for word in (*defaults, *extra):
            text = text.replace(word, redacted(word))
        says.setdefault(text, "")
    else:
        raise ToolchainError(
            f"uv finds no packages that fit {requirements[0]} and what goes with it",
            where={
                "asked for": "\n".join(requirements),
                "from": index or ("PyPI" if public else "this host's indexes"),
                "says": "\n".join(says) or "no index may be asked: the network is switched off",
            },
            next="check the versions in the recipe (or --torch), and the network",
        )
    body = _SDIST.sub("", _FOREIGN.sub("", done.stdout))
    body = _URL.sub(lambda match: f'{match[1]}"{redacted(mirrors.original(match[2]))}"', body)
    if public and (own := _of_this_site(body, mirrors)):
        raise ToolchainError(
            "the lock would hold the address of a mirror",
            where={"url": own},
            next="map the mirror's files, too",
        )
    asked = "".join(f"    {_quoted(line)},\n" for line in requirements)
    text = (
        "# Written by sglwheel: versions and hashes of the build environment. Delete to resolve anew.\n"
        f"{body.rstrip()}\n\n[tool.sglwheel]\nrequirements = [\n{asked}]\n"
    )
    lock = Lock(tuple(requirements), packaging.pylock.Pylock.from_dict(tomllib.loads(text)))
    write_atomic(into, text)
    return lock


def _places(
    index: str | None, mirrors: Mirrors, public: bool
) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Which indexes uv is told of, the first choice first: (the default one, another one)."""
    defaults: list[tuple[str, ...]] = [()]
    if public or mirrors.mapped(PYPI):
        config = ("--no-config",) if public else ()
        defaults = [(*config, "--default-index", place) for place in mirrors.candidates(PYPI)]
    more: list[tuple[str, ...]] = [()]
    if index:
        more = [("--index", place) for place in mirrors.candidates(index)]
    return [(default, extra) for extra in more for default in defaults]


def _of_this_site(text: str, mirrors: Mirrors) -> str | None:
    """An url of a mirror that could not be said in public words."""
    targets = [target for targets in mirrors.entries.values() for target in targets]
    hosts = {urlsplit(target).netloc.rpartition("@")[2] for target in targets if local_path(target) is None}
    hosts -= {urlsplit(key).netloc for key in mirrors.entries}
    for match in _URL.finditer(text):
        parts = urlsplit(match[2])
        if parts.scheme not in ("http", "https") or parts.netloc in hosts:
            return match[2]
    return None


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def install(
    lock: Lock,
    *,
    python: Path,
    log: Path,
    title: str,
    target: Path | None = None,
    index: str | None = None,
    links: Path | None = None,
    only_links: bool = False,
) -> None:
    """Install exactly what the lock says, checked by hash, wheels only; `links` is a directory of wheels.

    With `only_links` no index is asked. Raises ToolchainError.
    """
    listed = log.with_suffix(".txt")
    write_atomic(listed, lock.text())
    argv = [uv_binary(), "pip", "install", "--python", str(python), "--no-deps", "--require-hashes"]
    argv += ["--only-binary", ":all:", "--no-python-downloads", "-r", str(listed)]
    argv += ["--target", str(target)] if target is not None else []
    argv += ["--find-links", str(links)] if links is not None else []
    argv += ["--offline", "--no-index"] if only_links else []
    argv += ["--index", index] if index and not only_links else []
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

        finished = process.stream(argv, failure=ToolchainError, log=log, env=environment(), on_line=follow)
    if finished.returncode != 0:
        raise ToolchainError(
            f"{title}: uv failed ({process.describe_status(finished.returncode)})",
            where={"says": finished.stdout.strip()[-1500:]},
            next="check the network, or point uv to your mirror (UV_DEFAULT_INDEX)",
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
