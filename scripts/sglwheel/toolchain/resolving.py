"""Resolve requirements into a PEP 751 lock that holds no address of this site."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

import packaging.pylock

from sglwheel import process
from sglwheel.errors import ToolchainError
from sglwheel.files import write_atomic
from sglwheel.mirrors import Mirrors, as_url, local_path, redacted
from sglwheel.toolchain import uvtool
from sglwheel.toolchain.packages import Lock

PYPI = "https://pypi.org/simple"
# Each of uv's wheels stands on a line of its own; these are for platforms that have no CUDA.
_FOREIGN = re.compile(
    r"^\s+\{ url = \"[^\"]*-"
    r"(win32|win_amd64|win_arm64|macosx_\w+|musllinux_\w+|pyodide_\w+|android_\w+|ios_\w+"
    r"|manylinux[\w.]*_(i686|armv7l|ppc64le|ppc64|s390x|riscv64|loongarch64))\.whl\".*\n",
    re.MULTILINE,
)
_SDIST = re.compile(r"^sdist = .*\n", re.MULTILINE)
_URL = re.compile(r"(\b(?:url|index|path) = )\"([^\"]+)\"")


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
    base = uvtool.environment()
    if public:
        base = {key: value for key, value in base.items() if not re.search("INDEX|FIND_LINKS", key)}
    argv = [uvtool.uv_binary(), "pip", "compile", "--quiet", "--no-header", "--universal"]
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
            next=uvtool.remedy(
                "\n".join(says), "check the versions in the recipe (or --torch), and the network"
            ),
        )
    body = _SDIST.sub("", _FOREIGN.sub("", done.stdout))
    body = _URL.sub(lambda match: f'{match[1]}"{redacted(mirrors.original(match[2]))}"', body)
    if public and (own := _of_this_site(body, mirrors)):
        raise ToolchainError(
            "the lock would hold the address of a mirror",
            where={"url": own},
            next="map where its files are, too: SGLWHEEL_MIRRORS='https://files.pythonhosted.org/packages=<url>'",
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
        defaults = [(*config, "--default-index", as_url(place)) for place in mirrors.candidates(PYPI)]
    more: list[tuple[str, ...]] = [()]
    if index:
        more = [("--index", as_url(place)) for place in mirrors.candidates(index)]
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
