"""Python packages of a node that must fit each other."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from importlib.metadata import Distribution
from pathlib import Path

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from sglwheel.inspect import TorchSymbols
from sglwheel.nodecheck.node import KERNELS
from sglwheel.nodedoctor.diagnosis import Finding
from sglwheel.nodedoctor.environment import Environment
from sglwheel.nodedoctor.kernels import Held

# SGLang compares versions of packages in these functions, in srt/entrypoints/engine.py at every pin we know.
_ASSERTION = "assert_pkg_version"
_FLASHINFER_CHECK = "FLASHINFER_DISABLE_VERSION_CHECK"


def torch_installed(environment: Environment, torch: TorchSymbols | None) -> Iterator[Finding]:
    """Whether there is a torch for CUDA at all."""
    if torch is None:
        damaged = environment.package("torch") is not None
        what = "torch is damaged: its libraries or its version.py are not there" if damaged else "no torch"
        yield Finding(
            "torch",
            "failed",
            f"{what} in {environment.python}",
            "install torch again" if damaged else "name the environment that SGLang runs in: --python VENV",
        )
    elif torch.cuda is None:
        yield Finding("torch", "failed", f"{torch.label} has no CUDA", "install a torch for CUDA")
    else:
        yield Finding("torch", "passed", f"{torch.label}, CUDA {torch.cuda}")


def rivals(environment: Environment, wheel: Path | None) -> Iterator[Finding]:
    """Two distributions that own the same files: removing one breaks the other, and pip is silent."""
    there = [name for name in KERNELS if environment.distribution(name) is not None]
    if len(there) > 1:
        yield Finding(
            "distributions",
            "failed",
            f"{' and '.join(there)} are both installed and own the same files",
            f"uninstall both, then install one: uv pip uninstall {' '.join(there)}",
        )
    elif there and wheel is not None and canonicalize_name(wheel.name.split("-")[0]) not in there:
        yield Finding(
            "distributions",
            "failed",
            f"{there[0]} is installed, and {wheel.name} owns the same files under another name",
            f"uv pip uninstall {there[0]} first",
        )
    else:
        yield Finding(
            "distributions", "passed", f"only {there[0]}" if there else "no kernels are installed yet"
        )


def sglang_asserts(environment: Environment, held: Held | None) -> Iterator[Finding]:
    """The oldest versions that the installed SGLang accepts, read from its own source."""
    sglang = environment.package("sglang")
    if sglang is None:
        yield Finding("sglang", "unknown", "SGLang is not installed here")
        return
    wanted = asserted(sglang)
    if not wanted:
        yield Finding("sglang", "unknown", f"no {_ASSERTION}() found in {sglang}")
    for name, least in sorted(wanted.items()):
        have = _version_of(environment, name, held)
        if have is None:
            yield Finding("sglang", "failed", f"SGLang demands {name} {least} or newer; none is installed")
        elif _older(have, least):
            yield Finding(
                "sglang",
                "failed",
                f"SGLang demands {name} {least} or newer; here is {have}",
                f"build {name} from the commit that this SGLang is of, or install that SGLang's release",
            )
        else:
            yield Finding(
                "sglang", "passed", f"{name} {have} is not older than {least}, which SGLang demands"
            )


def _version_of(environment: Environment, name: str, held: Held | None) -> str | None:
    if held is not None and canonicalize_name(name) == canonicalize_name(held.distribution):
        return held.version
    distribution = environment.distribution(name)
    return distribution.version if distribution is not None else None


def asserted(sglang: Path) -> dict[str, str]:
    """Distributions and least versions in `assert_pkg_version("name", "version", …)` calls of a package."""
    found: dict[str, str] = {}
    likely = sglang / "srt" / "entrypoints" / "engine.py"
    for path in [likely] if likely.is_file() else sorted(sglang.glob("srt/**/*.py")):
        try:
            text = path.read_text(encoding="utf-8")
            tree = ast.parse(text) if _ASSERTION in text else ast.Module([], [])
        except (OSError, ValueError, SyntaxError):
            continue
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or not ast.unparse(node.func).endswith(_ASSERTION):
                continue
            given = [*node.args, *(word.value for word in node.keywords)][:2]
            texts = [
                each.value for each in given if isinstance(each, ast.Constant) and isinstance(each.value, str)
            ]
            if len(texts) == 2:
                found[texts[0]] = texts[1]
    return found


def _older(have: str, least: str) -> bool:
    try:
        return Version(have) < Version(least)
    except InvalidVersion:
        return False


def flashinfer(environment: Environment, torch: TorchSymbols | None) -> Iterator[Finding]:
    """FlashInfer's own packages against each other and against torch.

    `import flashinfer` compares flashinfer-cubin (and flashinfer-jit-cache) with flashinfer-python and raises
    when they differ, unless told not to (flashinfer-ai/flashinfer#4781, #3044). The local part of a
    precompiled package's version names the CUDA line, and that of older ones the torch, that it was compiled
    for: `0.6.16+cu130`, `0.2.5+cu124torch2.6`.
    """
    base = environment.distribution("flashinfer-python")
    if base is None:
        yield Finding("flashinfer", "unknown", "flashinfer-python is not installed here")
        return
    problems = 0
    for name in ("flashinfer-python", "flashinfer-cubin", "flashinfer-jit-cache"):
        other = environment.distribution(name)
        if other is None:
            continue
        if _public(other) != _public(base) and not os.environ.get(_FLASHINFER_CHECK):
            problems += 1
            yield Finding(
                "flashinfer",
                "failed",
                f"{name} {other.version} beside flashinfer-python {base.version}: importing it fails",
                f"uv pip install --no-deps {name}=={_public(base)}, or uninstall {name}",
            )
        for part in _built_for(other.version, torch):
            problems += 1
            yield Finding(
                "flashinfer",
                "failed",
                f"{name} {other.version} was compiled for {part}",
                "install the one of this torch's CUDA line",
            )
    if not problems:
        yield Finding(
            "flashinfer", "passed", f"flashinfer-python {base.version} and what belongs to it agree"
        )


def _public(distribution: Distribution) -> str:
    return distribution.version.partition("+")[0]


def _built_for(version: str, torch: TorchSymbols | None) -> list[str]:
    """What the local part of a version names that is not this torch."""
    local = version.partition("+")[2]
    wrong: list[str] = []
    if torch is None or torch.cuda is None:
        return wrong
    line = "cu" + "".join(torch.cuda.split(".")[:2])
    minor = ".".join(torch.label.split(".")[:2])
    if local.startswith("cu"):
        cuda, _, compiled = local.partition("torch")
        digits = cuda.removeprefix("cu").rstrip(".")
        if digits.isdigit() and digits[:2] != line[2:4]:
            wrong.append(f"CUDA {digits[:2]}, beside a torch for CUDA {torch.cuda}")
        if compiled and compiled.split(".")[:2] != minor.split("."):
            wrong.append(f"torch {compiled}, beside torch {torch.label}")
    return wrong
