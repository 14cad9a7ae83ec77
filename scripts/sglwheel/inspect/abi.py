"""Would a wheel's libraries load with a given torch? Answered from symbols, with causes in plain words."""

from __future__ import annotations

import difflib
import functools
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from sglwheel.inspect.demangle import Signature, demangle, parse

# What torch defines; a few of its C entry points have no namespace.
_NAMESPACES = frozenset({"at", "c10", "c10d", "torch", "caffe2", "caffe2_c10"})
_C_NAMES = re.compile(r"(aoti_torch_|THP|TH[A-Z]|torch_|_?shim_).*")
_TYPE = re.compile(r"[A-Za-z_][\w:]*")
# A foreign file may ask for absurdly many symbols: explain the first ones, count the rest.
_MAX_EXPLAINED = 400
_MAX_CANDIDATES = 400


@dataclass(frozen=True)
class TorchSymbols:
    """Every symbol that one torch build's libraries export."""

    label: str
    """`2.12.0+cu130`, as people and errors name the build."""
    cuda: str | None
    """`13.0`; None for a CPU build."""
    symbols: frozenset[str]

    @property
    def cuda_major(self) -> int | None:
        return int(self.cuda.split(".")[0]) if self.cuda else None

    @cached_property
    def _text(self) -> str:
        return "\n".join(sorted(self.symbols))

    def naming(self, name: str) -> tuple[str, ...]:
        """Mangled exports that hold the identifier `name`."""
        text, needle = self._text, f"{len(name)}{name}"
        found: list[str] = []
        position = text.find(needle)
        while position >= 0 and len(found) < _MAX_CANDIDATES:
            start = text.rfind("\n", 0, position) + 1
            end = text.find("\n", position)
            end = len(text) if end < 0 else end
            found.append(text[start:end])
            position = text.find(needle, end)
        return tuple(found)


@dataclass(frozen=True)
class Missing:
    """One symbol that torch does not export."""

    symbol: str
    demangled: str
    nearest: str | None
    """What torch exports instead, demangled."""
    files: tuple[str, ...]


@dataclass(frozen=True)
class Cause:
    """One change in torch, and the symbols that are missing because of it."""

    text: str
    symbols: tuple[Missing, ...]


@functools.lru_cache(maxsize=100_000)
def is_torch(name: str) -> bool:
    """Whether a symbol belongs to torch by its name."""
    if not name.startswith("_Z"):
        return bool(_C_NAMES.fullmatch(name))
    return parse(demangle(name)).namespace in _NAMESPACES


def compare(undefined: Iterable[tuple[str, str]], torch: TorchSymbols) -> tuple[Cause, ...]:
    """Group what (file, symbol) pairs ask of torch and this torch lacks, by cause."""
    files: dict[str, set[str]] = defaultdict(set)
    for file, name in undefined:
        if name not in torch.symbols:
            files[name].add(file)
    grouped: dict[str, list[Missing]] = defaultdict(list)
    for count, name in enumerate(sorted(files)):
        text = demangle(name)
        if count >= _MAX_EXPLAINED:
            cause, nearest = "further symbols, not explained one by one", None
        else:
            cause, nearest = _explain(parse(text), torch)
        grouped[cause].append(Missing(name, text, nearest, tuple(sorted(files[name]))))
    return tuple(Cause(cause, tuple(missing)) for cause, missing in sorted(grouped.items()))


def _explain(wanted: Signature, torch: TorchSymbols) -> tuple[str, str | None]:
    identifier = wanted.name.lstrip("~")
    candidates = (
        [parse(demangle(name)) for name in torch.naming(identifier)] if identifier.isidentifier() else []
    )
    same = [
        c
        for c in candidates
        if c.qualified == wanted.qualified and c.returns not in ("vtable for", "typeinfo for")
    ]
    if same:
        best = max(same, key=lambda c: difflib.SequenceMatcher(None, c.text, wanted.text).ratio())
        return _difference(wanted, best), best.text
    moved = [c for c in candidates if c.name == wanted.name and c.parameters is not None]
    if moved:
        best = max(moved, key=lambda c: difflib.SequenceMatcher(None, c.text, wanted.text).ratio())
        if best.parameters == wanted.parameters:
            return f"`{wanted.qualified}` is now `{best.qualified}`", best.text
    return f"`{wanted.qualified}{wanted.template}` is no longer exported", None


def _difference(wanted: Signature, found: Signature) -> str:
    """Say in words what changed between two signatures of one name."""
    name = f"`{wanted.qualified}`"
    old, new = wanted.parameters, found.parameters
    if old is None or new is None:
        was, now = ("data" if parameters is None else "a function" for parameters in (old, new))
        return f"{name} was {was} and is {now}"
    if old != new:
        renamed = _renamed(old, new)
        if renamed:
            return "; ".join(f"type `{a}` is now `{b}`" for a, b in renamed)
        if len(old) == len(new):
            changes = [
                f"parameter {number} changed from `{a}` to `{b}`"
                for number, (a, b) in enumerate(zip(old, new, strict=True), 1)
                if a != b
            ]
            return f"{name}: {', '.join(changes)}"
        if new[: len(old)] == old:
            return f"{name} takes a further parameter: {_listed(new[len(old) :])}"
        if old[: len(new)] == new:
            return f"{name} no longer takes {_listed(old[len(new) :])}"
        return f"{name}: parameters changed from `({', '.join(old)})` to `({', '.join(new)})`"
    if wanted.template != found.template:
        return f"{name}: template arguments changed from `{wanted.template}` to `{found.template}`"
    if wanted.qualifiers != found.qualifiers:
        return f"{name}: qualifiers changed from `{wanted.qualifiers}` to `{found.qualifiers}`"
    return f"{name} changed from `{wanted.text}` to `{found.text}`"


def _renamed(old: tuple[str, ...], new: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Types that only moved to another namespace, if that explains the whole difference."""
    before, after = ", ".join(old), ", ".join(new)
    if _TYPE.sub("T", before) != _TYPE.sub("T", after):
        return ()
    pairs = {(a, b) for a, b in zip(_TYPE.findall(before), _TYPE.findall(after), strict=True) if a != b}
    if all("::" in a + b and a.rsplit("::", 1)[-1] == b.rsplit("::", 1)[-1] for a, b in pairs):
        return tuple(sorted(pairs))
    return ()


def _listed(types: tuple[str, ...]) -> str:
    return ", ".join(f"`{text}`" for text in types)
