"""What installed distributions still need, as `pip check` says it, without a library."""

from __future__ import annotations

import operator
import platform
import re
import sys
from importlib import metadata

_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9][\w.-]*)\s*(?:\[[^]]*\])?\s*\(?([^;)]*)\)?\s*(?:;(.*))?$")
_COMPARE = {
    "==": operator.eq,
    "!=": operator.ne,
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
_MARKER = re.compile(r"\s*(\w+)\s*(==|!=|>=|<=|>|<)\s*['\"]([^'\"]*)['\"]\s*$")


def lacking(name: str) -> list[str]:
    """Requirements of an installed distribution that are not met here, as far as numbers and names tell.

    An installer that sees no index refuses over any of them: uv and pip look at the requirements of what is
    installed, too, when something new needs it.
    """
    found = []
    for text in metadata.requires(name) or []:
        match = _REQUIREMENT.match(text)
        if match is None or not applies(match[3] or ""):
            continue
        try:
            version = metadata.version(match[1])
        except metadata.PackageNotFoundError:
            found.append(f"{match[1]} is missing")
            continue
        if not meets(version, match[2]):
            found.append(f"{match[1]} is {version}, wanted is {match[2].strip()}")
    return found


def applies(marker: str) -> bool:
    """Whether a requirement's marker holds here; one that cannot be judged does not."""
    here = {
        "platform_system": platform.system(),
        "sys_platform": sys.platform,
        "platform_machine": platform.machine(),
        "python_version": "{}.{}".format(*sys.version_info[:2]),
    }
    for part in filter(None, re.split(r"\band\b", marker)):
        match = _MARKER.match(part)
        if match is None or match[1] not in here:
            return False
        have, wanted = here[match[1]], match[3]
        numbers = match[1] == "python_version"
        values = (_numbers(have), _numbers(wanted)) if numbers else (have, wanted)
        if not _COMPARE[match[2]](*values):
            return False
    return True


def meets(version: str, specifiers: str) -> bool:
    """Whether a version is within `>=1.2,<3`; a specifier that numbers cannot judge is met."""
    have = _numbers(version)
    for specifier in specifiers.split(","):
        match = re.match(r"\s*(==|!=|>=|<=|>|<)\s*([0-9][0-9.]*)\s*$", specifier)
        if match is None:
            continue
        wanted = _numbers(match[2])
        width = max(len(have), len(wanted))
        padded = [value + (0,) * (width - len(value)) for value in (have, wanted)]
        if not _COMPARE[match[1]](*padded):
            return False
    return True


def _numbers(text: str) -> tuple[int, ...]:
    match = re.match(r"\d+(\.\d+)*", text)
    return tuple(map(int, match[0].split("."))) if match else ()
