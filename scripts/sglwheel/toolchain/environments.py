"""What lies under `cache/envs/` and `cache/toolkits/`: made once from locks, whole or not there at all."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.version import Version

from sglwheel import console, process
from sglwheel.errors import ToolchainError
from sglwheel.files import Layout, cache_directory, locked, write_atomic
from sglwheel.mirrors import Mirrors, as_url
from sglwheel.recipe import KernelRecipe
from sglwheel.toolchain import borrowed, cudahome, driverstub, host, packages, preflight, uvtool, wheels
from sglwheel.toolchain.borrowed import Borrowed
from sglwheel.toolchain.cudahome import CudaHome
from sglwheel.toolchain.packages import Lock, Package
from sglwheel.toolchain.pylocks import Pylocks
from sglwheel.toolchain.resolving import PYPI
from sglwheel.toolchain.wheels import LockedWheel

# Raised when what lies in an environment changes while its requirements do not.
_FORM = "1"
_DONE = "complete.json"


@dataclass(frozen=True)
class Supply:
    """Where wheels come from: the store, mirrors, then what uv knows; `index` is the pin's, None for PyPI."""

    layout: Layout
    mirrors: Mirrors
    index: str | None

    def install(
        self, lock: Lock, version: Version, *, python: Path, log: Path, title: str, target: Path | None = None
    ) -> None:
        """Install a lock from wheels that are kept in the store first. Raises ToolchainError."""
        chosen = wheels.of(lock, version)
        mapped = self._fleeting(chosen)
        wheels.keep(mapped, self.layout, self.mirrors, title=title)
        self._keep_lasting([item for item in chosen if item not in mapped], title)
        links, complete = wheels.links(chosen, self.layout)
        packages.install(
            lock,
            python=python,
            log=log,
            title=title,
            target=target,
            # All that is on it is in the store now: whether it answers does not matter.
            index=self.index if target is None and len(mapped) == 0 else None,
            links=links,
            only_links=complete,
        )

    def sources(self, lock: Lock, version: Version) -> tuple[str, ...]:
        """Words of uv's command line with which it finds an installed lock's packages once more.

        What an index may have dropped since comes from the store.
        """
        chosen = wheels.of(lock, version)
        # PyPI's are on PyPI, and gigabytes to verify: they are looked at where nobody may be asked.
        wanted = chosen if self.mirrors.offline else self._fleeting(chosen)
        words, complete = wheels.links(wanted, self.layout)
        if self.index is not None and not complete:
            words += ("--index", as_url(self.index))
        mirrored = [place for place in self.mirrors.candidates(PYPI) if place != PYPI]
        return (*words, "--default-index", as_url(mirrored[0])) if mirrored else words

    def _fleeting(self, chosen: Sequence[LockedWheel]) -> list[LockedWheel]:
        """What an index will drop, and what a mirror was named for."""
        return [item for item in chosen if not item.lasting or self.mirrors.mapped(item.url)]

    def _keep_lasting(self, chosen: Sequence[LockedWheel], title: str) -> None:
        """Have PyPI's wheels in the store, unless uv alone knows the way to them."""
        if self.mirrors.offline or uvtool.has_own_index():
            return
        # A small one first: where a site has its own index, nobody waits for all the others to fail.
        ordered = sorted(chosen, key=lambda item: item.size or 0)
        try:
            wheels.keep(ordered[:1], self.layout, self.mirrors, title=title)
            wheels.keep(ordered[1:], self.layout, self.mirrors, title=title)
        except ToolchainError as error:
            console.warn(f"left to uv, and not kept in the store: {error.what}")


def environment(
    lock: Lock, python: host.Interpreter, layout: Layout, logs: Path, supply: Supply
) -> tuple[Path, Path, tuple[Package, ...]]:
    key = _key(lock.digest, str(python.path), str(python.version))
    root = layout.cache / "envs" / key
    executable = root / "bin" / "python"
    site = root / "lib" / f"python{python.minor}" / "site-packages"
    with made(root, needs=executable) as data:
        if not data:
            console.detail(f"making the build environment with Python {python.version}")
            process.run(
                [uvtool.uv_binary(), "venv", "--no-config", "--no-project", "--python", python.path, root],
                failure=ToolchainError,
                env=uvtool.environment(),
                what="making the build environment",
            )
            log = logs / "environment.log"
            supply.install(lock, python.version, python=executable, log=log, title="build environment")
            data["packages"] = packages.to_json(packages.installed(site, [lock]))
    return site, executable, packages.from_json(data["packages"])


def beside(
    lent: Borrowed, locks: Pylocks, layout: Layout, logs: Path, supply: Supply
) -> tuple[Path, tuple[Package, ...]]:
    """An environment of ours that sees the lent one, with the build tools which that one lacks."""
    missing = lent.missing()
    lock = locks.tools(missing) if missing else None
    root = layout.cache / "envs" / _key(lent.digest, lock.digest if lock else "")
    executable = root / "bin" / "python"
    with made(root, needs=executable) as data:
        if not data:
            console.detail(f"making a build environment on top of torch {lent.torch.full_version}")
            lent.fill(root)
            own: tuple[Package, ...] = ()
            if lock is not None:
                log = logs / "tools.log"
                supply.install(
                    lock, lent.interpreter.version, python=executable, log=log, title="build tools"
                )
                own = packages.installed(borrowed.site_packages(root, lent.interpreter), [lock])
            kept = [one for one in lent.packages if one.name not in {ours.name for ours in own}]
            data["packages"] = packages.to_json([*kept, *own])
    return executable, packages.from_json(data["packages"])


def toolkit_root(lock: Lock, compiler: host.Compiler, layout: Layout) -> Path:
    """Where the toolkit of a lock lies when it was made."""
    return layout.cache / "toolkits" / _key(lock.digest, compiler.description)


def toolkit(
    lock: Lock,
    recipe: KernelRecipe,
    found: preflight.Host,
    python: Path,
    layout: Layout,
    logs: Path,
    supply: Supply,
) -> tuple[CudaHome, tuple[Package, ...]]:
    """The toolkit of a lock, assembled once for each host compiler. Raises ToolchainError."""
    root = toolkit_root(lock, found.compiler, layout)
    home = root / "cuda"
    with made(root, needs=home / "bin" / "nvcc") as data:
        if not data:
            console.detail("assembling the CUDA toolkit")
            site = root / "site-packages"
            log = logs / "toolkit.log"
            supply.install(
                lock, found.python.version, python=python, target=site, log=log, title="CUDA toolkit"
            )
            cudahome.assemble(site, home)
            driverstub.build_stub(home, home / "lib64" / "stubs", cc=found.compiler.cc)
            version, build_id = cudahome.version(home / "bin" / "nvcc")
            cudahome.verify(version, recipe.build.cuda_toolkit, home)
            data["packages"] = packages.to_json(packages.installed(site, [lock]))
            data["nvcc"] = [str(version), build_id]
            # The files live on under their second names.
            shutil.rmtree(site)
    version, build_id = Version(data["nvcc"][0]), str(data["nvcc"][1])
    return CudaHome(home, version, build_id, home / "lib64" / "stubs"), packages.from_json(data["packages"])


@contextmanager
def made(root: Path, *, needs: Path) -> Iterator[dict[str, Any]]:
    """Hold `root`'s lock and yield what its done-marker says; empty means: make it, and put something in.

    A virtual environment cannot be moved to its place when it is ready, so the marker, written last, is what
    makes it whole; what has none is thrown away.
    """
    cache_directory(root.parent)
    with locked(root.with_suffix(".lock"), failure=ToolchainError, what=f"{root.parent.name}/{root.name}"):
        marker = root / _DONE
        try:
            data = json.loads(marker.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            data = {}
        fresh = not data or not needs.exists()
        if fresh:
            data = {}
            shutil.rmtree(root, ignore_errors=True)
        else:
            # `store gc` goes by the last use.
            marker.touch()
        yield data
        if fresh:
            write_atomic(marker, json.dumps(data, indent=1, sort_keys=True) + "\n")


def _key(*parts: str) -> str:
    return hashlib.sha256("\n".join((_FORM, *parts)).encode()).hexdigest()[:16]
