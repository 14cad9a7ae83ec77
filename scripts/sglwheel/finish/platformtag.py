"""The platform tag that a set of libraries has earned, computed from their versioned symbols."""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Iterable

from auditwheel.architecture import Architecture
from auditwheel.elfutils import elf_find_versioned_symbols
from auditwheel.libc import Libc
from auditwheel.policy import WheelPolicies
from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile

from sglwheel.errors import BuildError

_MACHINES = {"EM_X86_64": Architecture.x86_64, "EM_AARCH64": Architecture.aarch64}


def platform_tag(libraries: Iterable[tuple[str, bytes]]) -> str:
    """The oldest platform that has every symbol version, such as `manylinux_2_34_x86_64`.

    Libraries outside the wheel do not count: torch, CUDA and the driver bring their own floor, and what this
    host has of them says nothing about a node. Without a policy new enough it is plain `linux_<machine>`.
    """
    versions: dict[str, set[str]] = defaultdict(set)
    machines: set[Architecture] = set()
    for name, data in libraries:
        try:
            elf = ELFFile(io.BytesIO(data))
            machine = _MACHINES.get(elf["e_machine"])
            found = list(elf_find_versioned_symbols(elf))
        except (ELFError, ValueError, KeyError) as error:
            raise BuildError(f"{name} is not a library: {error}") from error
        if machine is None:
            raise BuildError(f"{name} is for {elf['e_machine']}: no wheel tag is known for it")
        machines.add(machine)
        for library, version in found:
            versions[library].add(version)
    if len(machines) != 1:
        names = ", ".join(sorted(machine.value for machine in machines)) or "none"
        raise BuildError(f"a wheel is for one machine, its libraries are for: {names}")
    policies = WheelPolicies(libc=Libc.GLIBC, arch=machines.pop())
    return str(policies.versioned_symbols_policy(versions).name)
