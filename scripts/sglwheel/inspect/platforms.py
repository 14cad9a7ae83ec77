"""The platform tag that is true, from versioned symbols and auditwheel's policies."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

from sglwheel.inspect.libraries import Library

if TYPE_CHECKING:
    from auditwheel.policy import Policy, WheelPolicies


@functools.cache
def _policies(machine: str) -> WheelPolicies | None:
    # Loading the policies takes a quarter of a second: only where they are asked for.
    from auditwheel.architecture import Architecture
    from auditwheel.libc import Libc
    from auditwheel.policy import WheelPolicies

    try:
        return WheelPolicies(libc=Libc.GLIBC, arch=Architecture(machine))
    except ValueError:
        return None


def compute(libraries: Iterable[Library]) -> Policy | None:
    """The oldest policy whose symbol versions suffice; None without libraries, or for mixed or unknown
    processors.

    Which *libraries* are needed is not judged here: torch's, CUDA's and the driver's never are in a policy's
    list.
    """
    readable = [library for library in libraries if library.machine]
    machines = {library.machine for library in readable}
    if len(machines) != 1:
        return None
    policies = _policies(machines.pop())
    if policies is None:
        return None
    return policies.versioned_symbols_policy({library.path: set(library.versions) for library in readable})


def compare(tag: str, computed: Policy) -> Literal["same", "older", "newer", "generic", "foreign"]:
    """How a tag stands to the computed policy; `older` promises systems where they do not load."""
    if tag.startswith("linux_"):
        return "generic"
    for policies in map(_policies, ("x86_64", "aarch64")):
        for policy in policies or ():
            if tag == policy.name or tag in policy.aliases:
                if policy.name.split("_")[-1] != computed.name.split("_")[-1]:
                    continue
                # A higher priority is an older system.
                if policy.priority == computed.priority:
                    return "same"
                return "older" if policy.priority > computed.priority else "newer"
    return "foreign"


def reason(libraries: Iterable[Library], tag: str) -> str:
    """Which library asks for a symbol version that the tag's systems lack."""
    for library in libraries:
        policies = _policies(library.machine) if library.machine else None
        if policies is None:
            continue
        promised = next((p for p in policies if tag == p.name or tag in p.aliases), None)
        if promised is None:
            continue
        lacking = sorted(
            version
            for version in library.versions
            if (prefix := version.partition("_")[0]) in promised.symbol_versions
            and version.partition("_")[2] not in promised.symbol_versions[prefix]
        )
        if lacking:
            return f"{library.path} asks for {', '.join(lacking)}"
    return "their symbol versions are newer"
