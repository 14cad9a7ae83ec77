"""Build against a torch that is installed: somebody's environment, looked at and never changed."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import packaging.pylock
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from sglwheel import files, process
from sglwheel.errors import ToolchainError, UsageError
from sglwheel.toolchain import host, torchpin
from sglwheel.toolchain.packages import Lock, Package
from sglwheel.toolchain.torchpin import InstalledTorch

# Build tools that are used as they are where an environment has them, from these versions on.
TOOLS: Mapping[str, Version] = {
    "cmake": Version("3.26"),
    "ninja": Version("1.11"),
    "scikit-build-core": Version("0.10"),
}
_PROGRAMS = ("cmake", "ninja")
# Needed at build time by name, and no requirement of torch's or the tools'.
_ALSO = ("setuptools",)
_ASK = """
import json, os, platform, sys, sysconfig
header = os.path.join(sysconfig.get_path("include"), "Python.h")
sites = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
base = getattr(sys, "_base_executable", None) or sys.executable
print(json.dumps([base, platform.python_version(), os.path.isfile(header), sites]))
"""


@dataclass(frozen=True)
class Borrowed:
    """An environment that has torch: its interpreter, where its packages lie, and what they are.

    `tools` are the build tools that it has, `packages` those and everything that torch runs with.
    """

    interpreter: host.Interpreter
    sites: tuple[Path, ...]
    torch: InstalledTorch
    tools: Mapping[str, Version]
    packages: tuple[Package, ...]
    programs: Mapping[str, Path] = field(default_factory=dict)

    @property
    def lock(self) -> Lock:
        """Its versions as a lock, for environments that are to be like it; it has no hashes.

        torch is left out, and what has a local version: no index needs to know them.
        """
        known = [one for one in self.packages if one.name != "torch" and one.version.local is None]
        found = [
            packaging.pylock.Package(name=canonicalize_name(one.name), version=one.version) for one in known
        ]
        pins = packaging.pylock.Pylock(lock_version=Version("1.0"), created_by="sglwheel", packages=found)
        return Lock((f"torch=={self.torch.version}",), pins)

    @property
    def digest(self) -> str:
        """The same for the same packages at the same places."""
        facts = [
            str(self.interpreter.path),
            str(self.interpreter.version),
            [str(site) for site in self.sites],
            self.torch.record,
            [[one.name, str(one.version)] for one in self.packages],
            [str(path) for path in self.programs.values()],
        ]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()

    def missing(self) -> tuple[str, ...]:
        """Build tools that it lacks, or has too old."""
        return tuple(name for name in TOOLS if name not in self.tools)

    def fill(self, root: Path) -> None:
        """Make a virtual environment in `root` that sees its packages and can start its tools.

        Not by its own `venv` command line: that of a virtual environment makes one that sees nothing of it.
        """
        process.run(
            [self.interpreter.path, "-I", "-m", "venv", "--without-pip", root],
            failure=ToolchainError,
            what="making the build environment",
            next="install Python's venv module (apt-get install python3-venv)",
        )
        site = site_packages(root, self.interpreter)
        # Directories only: what their own .pth files would start stays theirs.
        files.write_atomic(site / "borrowed.pth", "".join(f"{path}\n" for path in self.sites))
        for name, path in self.programs.items():
            (root / "bin" / name).symlink_to(path)


def site_packages(root: Path, interpreter: host.Interpreter) -> Path:
    """Where a virtual environment of this interpreter keeps its packages."""
    return root / "lib" / f"python{interpreter.minor}" / "site-packages"


def read(place: Path) -> Borrowed:
    """Look at an environment (its directory or its interpreter); nothing of it is imported.

    Raises UsageError when there is none, ToolchainError when it has no CUDA torch or cannot be built with.
    """
    python = place / "bin" / "python" if place.is_dir() else place
    if not python.is_file():
        raise UsageError(
            f"--torch-from {place}: no virtual environment and no interpreter",
            where={"looked for": str(python)},
            next="name a directory with bin/python, or the interpreter itself",
        )
    done = process.run(
        [python.absolute(), "-I", "-c", _ASK],
        failure=ToolchainError,
        timeout=60,
        what=f"asking {python} for its packages",
    )
    try:
        base, version, headers, found = json.loads(done.stdout)
        interpreter = host.Interpreter(Path(base).resolve(), Version(version), bool(headers))
    except (ValueError, TypeError) as error:
        raise ToolchainError(
            f"{python} is no Python that we can ask",
            where={"says": done.stdout},
            next="name a directory with bin/python, or the interpreter itself",
        ) from error
    if interpreter.version < host.PYTHON_FLOOR:
        raise ToolchainError(
            f"{python} is Python {interpreter.version}; builds need {host.PYTHON_FLOOR} or newer",
            next="name an environment with a newer Python",
        )
    sites = tuple(Path(site) for site in found)
    distributions = _distributions(sites)
    if "torch" not in distributions:
        raise ToolchainError(
            "no torch in that environment",
            where={"looked in": "\n".join(str(site) for site in sites)},
            next="name the environment that has torch, or leave --torch-from out: the build makes its own",
        )
    torch = torchpin.read(Path(str(distributions["torch"].locate_file("torch"))).parent)
    record = distributions["torch"].read_text("RECORD") or ""
    torch = replace(torch, record=hashlib.sha256(record.encode()).hexdigest())
    tools = {
        name: version
        for name, floor in TOOLS.items()
        if name in distributions and (version := Version(distributions[name].version)) >= floor
    }
    programs = {name: path for name in _PROGRAMS if name in tools if (path := _program(distributions[name]))}
    # A module without its program is no tool for us: ninja is started by us, too.
    tools = {name: version for name, version in tools.items() if name not in _PROGRAMS or name in programs}
    return Borrowed(
        interpreter,
        sites,
        torch,
        tools,
        _packages(distributions, ["torch", *tools, *_ALSO], interpreter),
        programs,
    )


def _distributions(sites: Iterable[Path]) -> dict[str, importlib.metadata.Distribution]:
    """Every distribution by name; the first on the path wins, as it does for imports."""
    found: dict[str, importlib.metadata.Distribution] = {}
    for site in sites:
        for one in importlib.metadata.distributions(path=[str(site)]):
            name = one.metadata["Name"]
            if name:
                found.setdefault(canonicalize_name(name), one)
    return found


def _program(distribution: importlib.metadata.Distribution) -> Path | None:
    """The program that a distribution installed under its own name."""
    name = canonicalize_name(distribution.metadata["Name"])
    for path in distribution.files or ():
        if path.name == name and path.parts[-2:-1] == ("bin",) and ".." in path.parts:
            located = Path(str(distribution.locate_file(path))).resolve()
            if located.is_file():
                return located
    return None


def _packages(
    distributions: Mapping[str, importlib.metadata.Distribution],
    roots: Iterable[str],
    interpreter: host.Interpreter,
) -> tuple[Package, ...]:
    """What `roots` need, as installed; an environment may hold hundreds more that no compiler sees."""
    environment = {
        "python_version": interpreter.minor,
        "python_full_version": str(interpreter.version),
        "extra": "",
    }
    waiting, found = list(roots), dict[str, Package]()
    while waiting:
        name = canonicalize_name(waiting.pop())
        one = distributions.get(name)
        if one is None or name in found:
            continue
        try:
            version = Version(one.version)
        except InvalidVersion:
            continue
        found[name] = Package(name, version, None)
        for text in one.requires or ():
            requirement = Requirement(text)
            # Extras are not followed: what they bring is installed, or torch would not run.
            if requirement.marker is None or requirement.marker.evaluate(environment):
                waiting.append(requirement.name)
    found |= {
        name: Package(canonicalize_name(name), Version(one.version), None)
        for name, one in distributions.items()
        if name.startswith("nvidia-") and name not in found and _is_version(one.version)
    }
    return tuple(found[name] for name in sorted(found))


def _is_version(text: str) -> bool:
    try:
        Version(text)
    except InvalidVersion:
        return False
    return True
