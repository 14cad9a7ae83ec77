"""Make a build backend's wheel say what it is: version, tag, requirement, origin, licences."""

from __future__ import annotations

import re
import tempfile
import time
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.metadata import Metadata, RawMetadata, parse_email
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from wheel.wheelfile import WheelError, WheelFile

from sglwheel import files
from sglwheel.errors import BuildError
from sglwheel.finish import licences, provenance, sbom
from sglwheel.finish.platformtag import platform_tag

if TYPE_CHECKING:
    from sglwheel.build import BuiltWheel
    from sglwheel.files import Layout
    from sglwheel.finish.provenance import Environment
    from sglwheel.patching import PatchedTree
    from sglwheel.recipe import Recipe
    from sglwheel.source import Checkout, Dependencies

_WORDS = {b"url": b"URL"}
_METADATA_VERSION = "2.4"  # the first with License-File (PEP 639)
_ZIP_EPOCH = 315_532_800  # 1980-01-01: a zip cannot hold an earlier time


@dataclass(frozen=True)
class FinishedWheel:
    """A wheel that may be inspected; `marked` says what makes it unfit as an ordinary release."""

    path: Path
    name: str
    version: Version
    tag: str
    requires_torch: str
    marked: tuple[str, ...]


def finish(
    built: BuiltWheel,
    recipe: Recipe,
    patched: PatchedTree,
    dependencies: Dependencies,
    env: Environment,
    checkout: Checkout,
    layout: Layout,
    *,
    tag: Callable[[Raw], str] | None = None,
) -> FinishedWheel:
    """Write the finished wheel beside the raw one; the same inputs give the same bytes.

    `tag` says what the wheel's files have earned: `compiled_tag` if None, or `pure_tag`.

    Raises BuildError when the raw wheel is not what a build makes.
    """
    raw = _read(built.path)
    metadata = parse_email(raw.files[f"{raw.info}/METADATA"])[0]
    name, public = str(metadata["name"]), Version(metadata["version"]).public
    version = local_version(public, recipe, env.torch.version)
    requirement = f"torch=={env.torch.version}"
    label = (tag or compiled_tag)(raw)
    info = f"{canonicalize_name(name).replace('-', '_')}-{version}.dist-info"
    origin = provenance.describe(recipe, patched, dependencies, env, checkout, built.fingerprint)
    texts = licences.of_sources(built.tree / "source", recipe.source.directory, dependencies)
    if tag is None:
        texts |= licences.of_headers(env.torch.path.parent)
    metadata["metadata_version"] = _METADATA_VERSION
    metadata["version"] = str(version)
    others = [text for text in metadata.get("requires_dist", []) if Requirement(text).name != "torch"]
    metadata["requires_dist"] = [*others, requirement]
    metadata["license_files"] = sorted(texts)
    epoch = int(checkout.date.timestamp())
    contents = {path: data for path, data in raw.files.items() if not path.startswith(f"{raw.info}/")}
    contents |= {
        f"{info}/{path.removeprefix(f'{raw.info}/')}": data
        for path, data in raw.files.items()
        if path.startswith(f"{raw.info}/") and not path.startswith(f"{raw.info}/licenses/")
    }
    contents |= {f"{info}/licenses/{path}": data for path, data in texts.items()}
    contents[f"{info}/METADATA"] = _metadata_text(metadata)
    contents[f"{info}/WHEEL"] = _wheel_text(raw.files[f"{raw.info}/WHEEL"], label)
    contents[f"{info}/sglwheel.json"] = provenance.to_json(origin)
    contents[f"{info}/sboms/{name}.cdx.json"] = sbom.cyclonedx(name, version, origin, epoch=epoch)
    path = built.tree / "finished" / f"{info.removesuffix('.dist-info')}-{label}.whl"
    _write(path, contents, epoch)
    return FinishedWheel(
        path=path,
        name=name,
        version=version,
        tag=label,
        requires_torch=requirement,
        marked=provenance.marks(origin),
    )


def local_version(public: str, recipe: Recipe, torch: Version) -> Version:
    """`0.3.21+cu130.torch2.12.0.sm120a.1`: dotted, so that numbers compare as numbers."""
    targets = [f"sm{arch.digits}{'ptx' if arch.ptx else ''}" for arch in sorted(recipe.build.architectures)]
    parts = [str(recipe.torch.cuda), f"torch{torch.public}", *targets, str(recipe.wheel.build)]
    return Version(f"{public}+{'.'.join(parts)}")


@dataclass(frozen=True)
class Raw:
    """A wheel in memory; `info` is its .dist-info directory, `files` holds all but RECORD."""

    info: str
    python: str
    abi: str
    files: Mapping[str, bytes]


def _read(path: Path) -> Raw:
    """Read a wheel, every file checked against RECORD."""
    try:
        with WheelFile(path) as wheel:
            assert wheel.parsed_filename is not None
            contents = {
                item.filename: wheel.read(item)
                for item in wheel.infolist()
                if not item.is_dir() and item.filename != wheel.record_path
            }
            info, words = wheel.dist_info_path, wheel.parsed_filename
    except (WheelError, zipfile.BadZipFile, OSError, KeyError) as error:
        raise BuildError(
            f"the built wheel cannot be read: {error}",
            where={"wheel": str(path)},
            next="remove the build tree and build again",
        ) from error
    for needed in ("METADATA", "WHEEL"):
        if f"{info}/{needed}" not in contents:
            raise BuildError(f"the built wheel has no {needed}", where={"wheel": str(path)})
    return Raw(info, words["pyver"], words["abi"], contents)


def compiled_tag(raw: Raw) -> str:
    """The tag of a wheel with libraries. Raises BuildError when there are none."""
    libraries = [(path, data) for path, data in raw.files.items() if data[:4] == b"\x7fELF"]
    if not libraries:
        raise BuildError("the built wheel holds no library: nothing was compiled into it")
    return f"{raw.python}-{raw.abi}-{platform_tag(libraries)}"


def pure_tag(raw: Raw) -> str:
    """The tag of a wheel of Python alone: for any platform. Raises BuildError when a library is in it."""
    libraries = [path for path, data in raw.files.items() if data[:4] == b"\x7fELF"]
    if libraries or raw.abi != "none":
        found = libraries[0] if libraries else f"the tag {raw.python}-{raw.abi}"
        raise BuildError(f"the built wheel is not of Python alone: {found}")
    return f"{raw.python}-{raw.abi}-any"


def _metadata_text(metadata: RawMetadata) -> bytes:
    """METADATA with its headers spelled as in the specification; packaging writes them in lower case."""
    headers, blank, body = Metadata.from_raw(metadata).as_rfc822().as_bytes().partition(b"\n\n")
    return re.sub(rb"^[a-z][a-z-]*(?=: )", _spell, headers, flags=re.MULTILINE) + blank + body


def _spell(header: re.Match[bytes]) -> bytes:
    return b"-".join(_WORDS.get(word, word.capitalize()) for word in header[0].split(b"-"))


def _wheel_text(text: bytes, tag: str) -> bytes:
    """WHEEL with our tag instead of the plain linux one; the generator stays who it was."""
    kept = [line for line in text.decode().splitlines() if line.strip() and not line.startswith("Tag:")]
    python, abi, platform = tag.split("-")
    tags = [f"Tag: {one}-{abi}-{platform}" for one in python.split(".")]
    return ("\n".join([*kept, *tags]) + "\n").encode()


class _FixedWheelFile(WheelFile):  # type: ignore[misc]
    """A wheel whose bytes depend on its contents and one point in time only."""

    def __init__(self, path: Path, epoch: int) -> None:
        super().__init__(path, "w")
        self._time = time.gmtime(max(epoch, _ZIP_EPOCH))[:6]

    def writestr(self, zinfo_or_arcname, data, compress_type=None):  # type: ignore[no-untyped-def]
        # WheelFile writes RECORD through here, by name and with the clock's time.
        name = getattr(zinfo_or_arcname, "filename", zinfo_or_arcname)
        item = zipfile.ZipInfo(name, date_time=self._time)
        item.create_system = 3  # Unix, on every host
        item.compress_type = zipfile.ZIP_DEFLATED
        item.external_attr = (0o100644) << 16
        super().writestr(item, data, compress_type)


def _write(path: Path, contents: Mapping[str, bytes], epoch: int) -> None:
    """Write a wheel in PyPA's order: the code, then .dist-info, RECORD last."""
    order = sorted(contents, key=lambda name: (".dist-info/" in name, name))
    path.parent.mkdir(parents=True, exist_ok=True)
    # A wheel can only be written under its own name, and another run may finish the same one meanwhile.
    with tempfile.TemporaryDirectory(prefix=f".{path.stem}.", dir=path.parent) as room:
        temporary = Path(room, path.name)
        with _FixedWheelFile(temporary, epoch) as wheel:
            for name in order:
                wheel.writestr(name, contents[name])
        temporary.replace(path)
    files.sync_directory(path.parent)
