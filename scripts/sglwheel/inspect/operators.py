"""Read which torch operators a library registers, without loading it.

`m.def("rmsnorm(Tensor! output, …) -> ()")` keeps its schema as text in .rodata. The namespace is not there
(the compiler inlines short strings), so it comes from how the package's own Python calls them:
`torch.ops.<namespace>.<name>`. An operator defined without a schema (`m.def("name", &function)`) is not seen;
the smoke test counts those.
"""

from __future__ import annotations

import re

from sglwheel.inspect.elf import Elf

_SCHEMA = re.compile(
    rb"(?<![\w.:])([A-Za-z_]\w*(?:::[A-Za-z_]\w*)?(?:\.\w+)?)\(([^\0()]*(?:\([^\0()]*\)[^\0()]*)*)\)\s*->\s*"
    rb"([A-Za-z(][\w\[\]!?(), *]*)\0"
)
_USE = re.compile(rb"torch\.ops\.([A-Za-z_]\w*)\.([A-Za-z_]\w*)")
_MAX_SECTION = 64 << 20


def schemas(elf: Elf) -> tuple[str, ...]:
    """Operator schemas that stand in a library as text, without namespace, sorted."""
    found: set[str] = set()
    for name in (".rodata", ".data.rel.ro", ".data"):
        section = elf.section(name)
        if section is None or section.size > _MAX_SECTION:
            continue
        for match in _SCHEMA.finditer(elf.contents(section)):
            found.add(match[0][:-1].decode("utf-8", "replace"))
    return tuple(sorted(found))


def name_of(schema: str) -> str:
    """`rmsnorm` of `rmsnorm(Tensor! output) -> ()`."""
    return schema.split("(", 1)[0]


def uses(source: bytes) -> frozenset[tuple[str, str]]:
    """(namespace, operator) pairs that a Python file calls through torch.ops."""
    return frozenset((space.decode(), name.decode()) for space, name in _USE.findall(source))
