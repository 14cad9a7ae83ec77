"""How many bytes a recipe's sources cost here, and by upstream's own FetchContent clones: the table in docs/.

Opt-in: `python tests/upstream/fetched_bytes.py [cu130]`, with mirrors and SGLWHEEL_OVERRIDES as test_real.py
has them. Both sides are measured in this run: packs of an empty store against packs of full clones, each
submodule counted as often as FetchContent clones it. What no place has is left out on both sides, and said.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sglwheel import files, pipeline, process, source
from sglwheel.console import format_bytes
from sglwheel.errors import SourceError
from sglwheel.files import Layout
from sglwheel.git import Git
from sglwheel.mirrors import Mirrors, local_path, normal
from sglwheel.source import downloads
from sglwheel.source.fetched import FetchedSource
from sglwheel.source.store import GitStore
from sglwheel.types import CommitId

ROOT = Path(__file__).parents[2]
# Packs of full clones from GitHub in November 2026, for those whose snapshots at hand have less.
FULL = {"repo-cutlass": 174_000_000, "repo-mscclpp": 20_000_000}
PAGE = ROOT / "docs/fetched-bytes.md"


@dataclass
class Clones:
    """Full clones, as FetchContent makes them; a url is cloned once here and counted as often as there."""

    mirrors: Mirrors
    scratch: Path
    sizes: dict[str, int | None] = field(default_factory=dict)

    def size(self, url: str) -> int | None:
        """Bytes of the packs of a full clone; None where no place has it."""
        key = normal(url)
        if key not in self.sizes:
            into = self.scratch / f"{len(self.sizes)}.git"
            self.sizes[key] = None
            for place in self.mirrors.candidates(url):
                argv = ["git", "clone", "--quiet", "--bare", "--no-local", place, into]
                try:
                    process.run(argv, failure=SourceError, timeout=1800)
                except SourceError:
                    local = local_path(place)
                    if local is not None and local.is_dir():
                        self.sizes[key] = in_place(local)
                        break
                    continue
                self.sizes[key] = sum(pack.stat().st_size for pack in into.glob("objects/pack/*.pack"))
                break
        return self.sizes[key]


def in_place(repository: Path) -> int:
    """Bytes of what a clone would send, where they lie: for snapshots that lack files."""
    git = Git(repository)
    listing = ("rev-list", "--objects", "--no-object-names", "--missing=allow-any", "--branches", "--tags")
    unsafe = {"GIT_CONFIG_PARAMETERS": "'safe.directory=*'"}
    objects = git.run(*listing, env=unsafe).output
    sizes = git.run("cat-file", "--batch-check=%(objectsize:disk)", input=objects, env=unsafe).stdout
    return sum(int(line) for line in sizes.splitlines() if line.isdigit())


def main() -> None:
    name = sys.argv[1] if len(sys.argv) > 1 else "cu130"
    overrides = dict(text.split("=", 1) for text in os.environ.get("SGLWHEEL_OVERRIDES", "").split())
    with tempfile.TemporaryDirectory(dir=ROOT / ".work") as scratch:
        os.environ["SGLWHEEL_CACHE"] = str(Path(scratch) / "cache")
        layout = Layout(ROOT)
        context = pipeline.Context.load(layout, name, pipeline.Options(overrides=overrides))
        patched = context.patch()
        found = source.dependencies(patched, context.recipe, layout, context.mirrors, overrides)
        clones = Clones(context.mirrors, Path(scratch))
        rows = [measure(one, layout, context.mirrors, clones) for one in found.sources]
    files.write_atomic(PAGE, render(name, rows, overrides))


def measure(
    one: FetchedSource, layout: Layout, mirrors: Mirrors, clones: Clones
) -> tuple[str, int | None, int | None, str]:
    """A source's name, its bytes here and there, and what is to be said of it."""
    forge = downloads.forge_archive(one.url)
    if one.kind != "git" and forge is None:
        return one.name, None, None, "one archive, the same bytes on both sides"
    urls = {forge[0] if forge else one.url, *(piece.url for piece in one.submodules)}
    ours = sum(_packs(GitStore.open(url, layout, mirrors)) for url in urls)
    theirs = clones.size(forge[0] if forge else one.url)
    if theirs is None or one.commit is None:
        return one.name, None, None, "no place on this host has it"
    notes = []
    for path, url in submodules(one, GitStore.open(one.url, layout, mirrors)):
        size = clones.size(url)
        theirs += size or 0
        notes.append(f"{path} {format_bytes(size)}" if size else f"{path} not counted")
    return one.name, ours, theirs, ", ".join(notes)


def submodules(one: FetchedSource, store: GitStore) -> list[tuple[str, str]]:
    """What `git submodule update --init` would clone beside it."""
    commit = CommitId.parse(one.commit or "")
    entries = [entry.object for entry in store.entries(commit, [".gitmodules"])]
    if not entries:
        return []
    store.objects(entries)
    listed = Git(store.git.path).run("config", "--blob", f"{commit}:.gitmodules", "--list").stdout
    pairs = dict(line.split("=", 1) for line in listed.splitlines())
    paths = {key.removesuffix(".path"): value for key, value in pairs.items() if key.endswith(".path")}
    return [(path, pairs[f"{key}.url"]) for key, path in sorted(paths.items()) if f"{key}.url" in pairs]


def _packs(store: GitStore) -> int:
    return sum(pack.stat().st_size for pack in store.packs())


def render(
    name: str, rows: list[tuple[str, int | None, int | None, str]], overrides: Mapping[str, str]
) -> str:
    """The page."""
    lines = [
        f"# Bytes that {name}'s sources cost",
        "",
        "Generated by `python tests/upstream/fetched_bytes.py`: do not edit. *here*: packs that an empty",
        "store received: commits, trees, and the files that the build reads. *FetchContent*: packs of the",
        "full clones that upstream's CMake makes, with submodules, each as often as it clones them; where a",
        "mirror is an incomplete snapshot, the objects of its branches and tags as they lie there.",
        "",
        "| source | here | FetchContent | ratio | its submodules there |",
        "|---|---:|---:|---:|---|",
    ]
    ours = theirs = 0
    for source_name, mine, other, note in rows:
        if mine is None or other is None:
            lines.append(f"| {source_name} | | | | {note} |")
            continue
        ours, theirs = ours + mine, theirs + other
        ratio = f"1/{other / mine:.0f}" if mine else ""
        lines.append(f"| {source_name} | {format_bytes(mine)} | {format_bytes(other)} | {ratio} | {note} |")
    total = f"1/{theirs / ours:.0f}" if ours else ""
    lines.append(f"| all of these | {format_bytes(ours)} | {format_bytes(theirs)} | {total} | |")
    small = [(n, mine, FULL[n]) for n, mine, other, _ in rows if mine and other and other < FULL.get(n, 0)]
    if small:
        told = (f"{n} {format_bytes(full)}, so 1/{full / mine:.0f}" for n, mine, full in small)
        lines += [
            "",
            "Snapshots with less than upstream has; full clones in November 2026 had:",
            f"{'; '.join(told)}.",
        ]
    replaced = [one for one in sorted(overrides) if overrides[one]]
    if replaced:
        lines += ["", f"Taken from elsewhere in this run (`--override`): {', '.join(replaced)}."]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
