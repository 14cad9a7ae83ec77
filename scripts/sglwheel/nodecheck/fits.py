"""Whether a release is right for a node, with every reason."""

from __future__ import annotations

import re
from typing import Any

from sglwheel.nodecheck.node import Node, Result

# Oldest Linux driver for each CUDA major version (CUDA release notes, minor version compatibility).
DRIVERS = {11: 450, 12: 525, 13: 580}


def fits(node: Node, release: dict[str, Any]) -> list[Result]:
    """Every reason for and against a release on this node."""
    results = [_python(node, release), _platform(node, release), _torch(node, release)]
    cuda = release.get("cuda")
    if cuda:
        results.append(_cuda(node, str(cuda)))
        results.append(_driver(node, str(cuda)))
    if release.get("architectures"):
        results.append(_gpu(node, [str(item) for item in release["architectures"]]))
    return results


def _python(node: Node, release: dict[str, Any]) -> Result:
    interpreter, abi, _ = release["tag"].split("-")
    here = ".".join(map(str, node.python))
    wanted = re.match(r"cp3(\d+)$", interpreter)
    if not wanted:
        return Result("python", "passed", f"{here}, wheel for any")
    minor = int(wanted[1])
    ok = node.python >= (3, minor) if abi == "abi3" else node.python == (3, minor)
    said = f"3.{minor} or newer" if abi == "abi3" else f"3.{minor}"
    return Result("python", "passed" if ok else "failed", f"{here}, wheel needs {said}")


def _platform(node: Node, release: dict[str, Any]) -> Result:
    tags = release["tag"].rpartition("-")[2].split(".")
    for tag in tags:
        if tag == "any":
            return Result("platform", "passed", "wheel for any")
        match = re.match(r"(?:manylinux_(\d+)_(\d+)|linux)_(.+)$", tag)
        if not match or match[3] != node.machine:
            continue
        if match[1] is None:
            return Result("platform", "passed", f"{node.machine}; the wheel does not say which glibc")
        need = (int(match[1]), int(match[2]))
        have = "none" if node.glibc is None else "{}.{}".format(*node.glibc)
        ok = node.glibc is not None and node.glibc >= need
        return Result(
            "platform", "passed" if ok else "failed", f"glibc {have}, wheel needs {need[0]}.{need[1]}"
        )
    return Result("platform", "failed", f"{node.machine}, wheel is for {', '.join(tags)}")


def _torch(node: Node, release: dict[str, Any]) -> Result:
    wanted = str(release.get("requires_torch") or "")
    if node.torch is None:
        return Result("torch", "failed", f"none is installed, wheel needs {wanted}")
    ok = wanted in ("", f"torch=={node.torch.public}", f"torch=={node.torch.version}")
    return Result(
        "torch", "passed" if ok else "failed", f"{node.torch.version} is installed, wheel needs {wanted}"
    )


def _cuda(node: Node, line: str) -> Result:
    wanted = f"{line[2:-1]}.{line[-1]}"
    if node.torch is None or node.torch.cuda is None:
        return Result("cuda", "failed", f"torch here has no CUDA, wheel needs {wanted}")
    ok = node.torch.cuda.split(".")[:2] == wanted.split(".")
    return Result(
        "cuda", "passed" if ok else "failed", f"torch is for {node.torch.cuda}, wheel needs {wanted}"
    )


def _driver(node: Node, line: str) -> Result:
    need = DRIVERS.get(int(line[2:-1]))
    if not node.gpus or need is None:
        return Result("driver", "unknown", "no driver answers (nvidia-smi)")
    have = node.gpus[0].driver
    ok = have.split(".")[0].isdigit() and int(have.split(".")[0]) >= need
    return Result("driver", "passed" if ok else "failed", f"{have}, CUDA {line[2:-1]} needs {need} or newer")


def _gpu(node: Node, architectures: list[str]) -> Result:
    if not node.gpus:
        return Result("gpu", "unknown", "no GPU answers (nvidia-smi)")
    for gpu in node.gpus:
        if not any(runs_on(item, gpu.capability) for item in architectures):
            said = ", ".join(architectures)
            return Result("gpu", "failed", f"{gpu.name} is {gpu.capability}, wheel has code for {said}")
    return Result("gpu", "passed", f"{node.gpus[0].name}, {node.gpus[0].capability}")


def runs_on(architecture: str, capability: str) -> bool:
    """Whether code for `12.0a` (or `sm120a`) runs on compute capability `12.0`."""
    match = re.match(r"(?:sm_?)?(\d+)\.?(\d)([af]?)(\+PTX)?$", architecture)
    have = re.match(r"(\d+)\.(\d+)$", capability)
    if not match or not have:
        return False
    built, real = (int(match[1]), int(match[2])), (int(have[1]), int(have[2]))
    if match[3] == "a":
        return built == real
    if match[4] and not match[3]:
        return real >= built
    return built[0] == real[0] and real[1] >= built[1]
