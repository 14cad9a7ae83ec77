"""The table of rules, in the order of the report: each looks at a wheel's facts and yields findings."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from sglwheel.inspect import rules_device, rules_library, rules_wheel
from sglwheel.inspect.report import Finding, Subject

Rule = Callable[[Subject], Iterator[Finding]]

RULES: dict[str, Rule] = {
    "archive": rules_wheel.archive,
    "paths": rules_wheel.paths,
    "dist-info": rules_wheel.dist_info,
    "record": rules_wheel.record,
    "names": rules_wheel.names,
    "tags": rules_wheel.tags,
    "pure": rules_wheel.pure,
    "requires-torch": rules_wheel.requires_torch,
    "elf": rules_library.elf,
    "machine": rules_library.machine,
    "abi3": rules_library.abi3,
    "platform": rules_library.platform,
    "rpath": rules_library.rpath,
    "needed": rules_library.needed,
    "runtime": rules_library.runtime,
    "driver": rules_library.driver,
    "undefined": rules_library.undefined_symbols,
    "fatbin": rules_device.fatbin,
    "architectures": rules_device.architectures,
    "loads": rules_device.loads,
    "torch-abi": rules_library.torch_abi,
    "operators": rules_device.operators,
    "size": rules_wheel.size,
    "strays": rules_wheel.strays,
    "conflicts": rules_wheel.conflicts,
}
