"""Choose another torch for a recipe: resolve first, then edit one table, comments kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tomlkit
from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import Version

from sglwheel import console, files
from sglwheel import recipe as recipes
from sglwheel.errors import ToolchainError
from sglwheel.files import Layout
from sglwheel.locks import locking
from sglwheel.locks.locking import Change
from sglwheel.mirrors import Mirrors
from sglwheel.recipe import Recipe
from sglwheel.toolchain import host, packages, torchindex, wheels
from sglwheel.toolchain.torchindex import Offer
from sglwheel.types import CudaLine


@dataclass(frozen=True)
class Line:
    """One torch version as `torch list` shows it."""

    version: str
    day: str | None
    indexes: tuple[str, ...]
    stored: bool
    recipes: tuple[str, ...]


@dataclass(frozen=True)
class Pinned:
    """What a pin did: edits of the recipe, and of its locks."""

    recipe: Recipe
    edits: tuple[Change, ...]
    changes: tuple[Change, ...]


def python_of(recipe: Recipe | None) -> Version:
    """The version of the interpreter that a build would use. Raises ToolchainError if there is none."""
    found = host.interpreter(recipe.build.python if recipe else None)
    if found is None:
        raise ToolchainError("no Python for the build environment", next="sglwheel doctor")
    return found.version


def listing(
    layout: Layout, line: CudaLine, mirrors: Mirrors, *, own: str | None = None
) -> tuple[tuple[Line, ...], dict[str, str]]:
    """What the indexes serve for a CUDA line, what is stored, and which recipes use it, newest first.

    Also the indexes that did not answer, with why.
    """
    offered, silent = torchindex.offers(torchindex.indexes(line, own), mirrors, python_of(None))
    users: dict[Version, list[str]] = {}
    for name in recipes.names(layout):
        torch = recipes.load(layout, name).torch
        if torch.cuda == line:
            users.setdefault(torch.version, []).append(name)
    here = stored(layout, line)
    versions: dict[Version, list[Offer]] = {}
    for offer in offered:
        if offer.line in (None, str(line)):
            versions.setdefault(offer.public, []).append(offer)
    lines = [
        Line(
            str(version),
            next((str(offer.day) for offer in versions.get(version, []) if offer.day), None),
            tuple(dict.fromkeys(offer.index for offer in versions.get(version, []))),
            version in here,
            tuple(users.get(version, ())),
        )
        for version in sorted({*versions, *here, *users}, reverse=True)
    ]
    return tuple(lines), silent


def stored(layout: Layout, line: CudaLine) -> frozenset[Version]:
    """Versions of torch in the store that fit a CUDA line as far as their names say."""
    found: set[Version] = set()
    for path in (layout.cache / "wheels").glob("*/torch-*.whl"):
        try:
            version = parse_wheel_filename(path.name)[1]
        except InvalidWheelFilename:
            continue
        if version.local in (None, str(line)):
            found.add(Version(version.public))
    return frozenset(found)


def choose(recipe: Recipe, word: str, mirrors: Mirrors) -> Offer:
    """The torch that a word of the command line means for a recipe. Raises UsageError or ToolchainError."""
    places = torchindex.indexes(recipe.torch.cuda, recipe.torch.index_url)
    offered, silent = torchindex.offers(places, mirrors, python_of(recipe))
    return torchindex.choose(word, offered, recipe.torch.cuda, silent, recipe.torch.index_url)


def apply(recipe: Recipe, word: str, mirrors: Mirrors) -> Recipe:
    """The same recipe against the torch that a word means; an exact version asks nobody."""
    if not word.startswith("nightly"):
        return recipe.with_torch(word)
    return _with(recipe, choose(recipe, word, mirrors))


def pin(layout: Layout, name: str, word: str, mirrors: Mirrors, *, dry_run: bool = False) -> Pinned:
    """Make a recipe use another torch: locks first, then its file; a failure leaves all as it was.

    What the torch's index will drop is stored. Raises UsageError or ToolchainError.
    """
    if dry_run:
        new, _, edits = _chosen(layout, name, word, mirrors)
        return Pinned(new, edits, ())
    with locking.alone(layout, name):
        new, offer, edits = _chosen(layout, name, word, mirrors)
        before = locking.snapshot(layout, name)
        for lock in locking.write_packages(new, layout, mirrors, own=True):
            chosen = [item for item in wheels.of(lock, python_of(new)) if not item.lasting]
            if chosen:
                received = wheels.keep(chosen, layout, mirrors, title=f"torch {offer.public}")
                stored = console.counted(len(chosen), "wheel")
                console.detail(f"{stored} stored, {console.format_bytes(received)} fetched")
            _same(lock, offer)
        write(layout.recipes / f"{name}.toml", offer.public, new.torch.index_url)
        return Pinned(new, edits, locking.difference(before, locking.snapshot(layout, name)))


def _chosen(
    layout: Layout, name: str, word: str, mirrors: Mirrors
) -> tuple[Recipe, Offer, tuple[Change, ...]]:
    """The recipe as a pin makes it, the torch that it takes, and what that edits."""
    old = recipes.load(layout, name)
    offer = choose(old, word, mirrors)
    new = _with(old, offer)
    edits = tuple(
        Change(f"{name}.toml", f"torch.{key}", before or "", after or "")
        for key, before, after in (
            ("version", str(old.torch.version), str(offer.public)),
            ("index-url", old.torch.index_url, new.torch.index_url),
        )
        if before != after
    )
    return new, offer, edits


def _with(recipe: Recipe, offer: Offer) -> Recipe:
    """The recipe with another torch, and its index where that is not the usual one."""
    index = None if offer.index == torchindex.default_index(offer.public, recipe.torch.cuda) else offer.index
    torch = recipe.torch.model_copy(update={"version": offer.public, "index_url": index})
    return recipe.model_copy(update={"torch": torch})


def write(path: Path, version: Version, index: str | None) -> None:
    """Edit `[torch]` of a recipe's file; all else stays to the byte."""
    text = path.read_text("utf-8")
    document = tomlkit.parse(text)
    table = document["torch"]
    assert isinstance(table, dict)
    if str(table["version"]) != str(version):
        table["version"] = str(version)
    if index is None:
        table.pop("index-url", None)
    elif table.get("index-url") != index:
        table["index-url"] = index
    new = tomlkit.dumps(document)
    recipes.parse(new.encode(), name=path.stem, path=path.name)
    if new != text:
        files.write_atomic(path, new)


def _same(lock: packages.Lock, offer: Offer) -> None:
    """Refuse a lock whose torch is not the file that was chosen: indexes can disagree with themselves."""
    mine = [item for item in wheels.every(lock) if item.name == "torch"]
    if mine and offer.sha256 and offer.sha256 not in {item.sha256 for item in mine}:
        raise ToolchainError(
            f"the resolver takes another torch {offer.public} than the index offered",
            where={offer.index: f"SHA256 {offer.sha256}", mine[0].url: f"SHA256 {mine[0].sha256}"},
        )


def render(lines: Sequence[Line]) -> list[str]:
    """Aligned lines for a person."""
    rows = [
        (
            line.version,
            line.day or "",
            "stored" if line.stored else "",
            " ".join(line.indexes) or "no longer on an index",
            ", ".join(line.recipes),
        )
        for line in lines
    ]
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(5)]
    return [
        "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
