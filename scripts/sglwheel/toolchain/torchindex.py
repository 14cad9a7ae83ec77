"""Which torch builds an index serves, and the one that a person means: by version, by day, or the newest."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import packaging.tags
import pypi_simple
import requests
from packaging.tags import Tag
from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import InvalidVersion, Version
from pypi_simple import DistributionPackage, ProjectPage, PyPISimple

from sglwheel import network
from sglwheel.errors import ToolchainError, UsageError
from sglwheel.mirrors import Mirrors, local_path, redacted
from sglwheel.types import CudaLine, parse_torch_version

PYPI = "https://pypi.org/simple"
PYTORCH = "https://download.pytorch.org/whl"
_PATIENCE = 60
_PASSING = (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError)
_NIGHTLY = re.compile(r"nightly(?::(\d{4})-?(\d\d)-?(\d\d))?")


@dataclass(frozen=True)
class Offer:
    """One torch wheel on an index that fits this host's platform and the build's Python."""

    version: Version
    """With the index's local part: `2.12.0+cu130`."""
    filename: str
    url: str
    sha256: str | None
    size: int | None
    index: str

    @property
    def public(self) -> Version:
        return Version(self.version.public)

    @property
    def line(self) -> str | None:
        """`cu130`, where the index says it; PyPI does not."""
        return self.version.local

    @property
    def day(self) -> date | None:
        """The day of a nightly."""
        text = str(self.version.dev or "")
        try:
            return date(int(text[:4]), int(text[4:6]), int(text[6:8]))
        except ValueError:
            return None


def indexes(line: CudaLine, own: str | None = None) -> tuple[str, ...]:
    """The indexes that may have a torch for a CUDA line, a recipe's own first."""
    known = (PYPI, f"{PYTORCH}/{line}", f"{PYTORCH}/nightly/{line}")
    return tuple(dict.fromkeys((*([own] if own else []), *known)))


def default_index(version: Version, line: CudaLine) -> str:
    """The index that a recipe without `index-url` means."""
    return f"{PYTORCH}/nightly/{line}" if version.is_devrelease else PYPI


def offers(
    places: Iterable[str], mirrors: Mirrors, python: Version
) -> tuple[tuple[Offer, ...], dict[str, str]]:
    """What indexes serve for a Python on this platform, newest first; and which did not answer, with why."""
    found: list[Offer] = []
    silent: dict[str, str] = {}
    tags = frozenset(_tags(python))
    every = tuple(places)
    with ThreadPoolExecutor(len(every) or 1) as pool:
        asked = {index: pool.submit(page, index, "torch", mirrors) for index in every}
    for index, future in asked.items():
        try:
            listed = future.result()
        except ToolchainError as error:
            told = (why if place == index else f"{place}: {why}" for place, why in error.where.items())
            silent[index] = "\n".join(told) or error.what
            continue
        for package in listed:
            if offer := _offer(package, index, tags):
                found.append(offer)
    return tuple(sorted(found, key=lambda offer: offer.version, reverse=True)), silent


def page(index: str, project: str, mirrors: Mirrors) -> Sequence[DistributionPackage]:
    """The files that an index has of a project; none if it does not know it.

    Raises ToolchainError naming every place that was asked.
    """
    failures: dict[str, str] = {}
    candidates = mirrors.candidates(index)
    for candidate in candidates:
        try:
            return _ask(candidate, project, last=candidate == candidates[-1])
        except (
            requests.RequestException,
            network.RefusedError,
            OSError,
            UnicodeError,
            pypi_simple.UnsupportedRepoVersionError,
            pypi_simple.UnsupportedContentTypeError,
        ) as error:
            text = network.words(error).replace(candidate, redacted(candidate))
            failures[redacted(candidate)] = text[:300] or type(error).__name__
    raise ToolchainError(
        f"no index answers for {project}",
        where=failures or {redacted(index): "not reachable without network"},
        next=f"check the network, or name a mirror: SGLWHEEL_MIRRORS='{redacted(index)}=<url or directory>'",
    )


def choose(
    word: str, offered: Sequence[Offer], line: CudaLine, silent: dict[str, str], own: str | None = None
) -> Offer:
    """The one offer that `nightly`, `nightly:2026-03-07`, `2.12.0` or a full version means.

    Raises UsageError for other words, ToolchainError naming the nearest when there is none: another one is
    never taken.
    """
    nightly = _NIGHTLY.fullmatch(word)
    if nightly is None:
        return _by_version(word, offered, line, silent, own)
    nights = [offer for offer in offered if offer.day is not None and offer.line in (None, str(line))]
    if nightly[1] is None:
        if nights:
            return max(nights, key=lambda offer: (offer.day or date.min, offer.version))
        raise _nowhere(f"no nightly for {line}", offered, line, silent, [])
    try:
        day = date(int(nightly[1]), int(nightly[2]), int(nightly[3]))
    except ValueError:
        raise UsageError(f"{word!r} names no day", next="write it like nightly:2026-03-07") from None
    if that := [offer for offer in nights if offer.day == day]:
        return max(that, key=lambda offer: offer.version)
    before = max((o for o in nights if o.day and o.day < day), key=lambda o: o.day or day, default=None)
    after = min((o for o in nights if o.day and o.day > day), key=lambda o: o.day or day, default=None)
    nearest = [offer for offer in (before, after) if offer is not None]
    raise _nowhere(f"no nightly of {day} for {line}", offered, line, silent, nearest)


def _by_version(
    word: str, offered: Sequence[Offer], line: CudaLine, silent: dict[str, str], own: str | None
) -> Offer:
    base, plus, local = word.partition("+")
    try:
        # A plus with nothing behind it is no version, either.
        version = parse_torch_version(base if local else word)
    except ValueError as error:
        raise UsageError(
            str(error),
            where={"option": "--torch"},
            next="write nightly, nightly:2026-03-07, or a version; sglwheel torch list has them all",
        ) from None
    if plus and local != str(line):
        mine = [offer for offer in offered if offer.line in (None, str(line))]
        what = f"torch {word}: the recipe is for {line}"
        raise _nowhere(what, offered, line, silent, _near(version, mine), version)
    same = [offer for offer in offered if offer.public == version]
    fits = [offer for offer in same if offer.line in ((str(line),) if plus else (None, str(line)))]
    if fits:
        order = [*([own] if own else []), default_index(version, line)]
        return min(fits, key=lambda o: order.index(o.index) if o.index in order else len(order))
    mine = [offer for offer in offered if offer.line in (None, str(line))]
    what = f"no torch {word} for {line}"
    if same:
        lines = sorted({offer.line for offer in same if offer.line})
        what += f", only for {', '.join(lines)}" if lines else f", only {version} that names no CUDA"
    raise _nowhere(what, offered, line, silent, _near(version, mine), version)


def _near(version: Version, offered: Sequence[Offer]) -> list[Offer]:
    ordered = sorted(offered, key=lambda offer: offer.version)
    below = [offer for offer in ordered if offer.public < version][-1:]
    above = [offer for offer in ordered if offer.public > version][:1]
    same = [offer for offer in ordered if offer.public == version][:1]
    return [*below, *same, *above]


def _nowhere(
    what: str,
    offered: Sequence[Offer],
    line: CudaLine,
    silent: dict[str, str],
    nearest: Sequence[Offer],
    wanted: Version | None = None,
) -> ToolchainError:
    where: dict[str, str] = {}
    if nearest:
        where["nearest"] = "\n".join(
            f"{offer.version}" + (f" of {offer.day}" if offer.day else "") + f"  {offer.index}"
            for offer in nearest
        )
    elif not offered and not silent:
        where["offered"] = "nothing for this Python and platform"
    where |= {f"no answer from {index}": why for index, why in silent.items()}
    remedy = f"sglwheel torch list --cuda {line}"
    same = [offer for offer in nearest if offer.public == wanted]
    if silent and not same:
        # It may well have what is wanted; another torch is no answer to a network that is down.
        index = redacted(next(iter(silent)))
        remedy = f"check the network, or name a mirror: SGLWHEEL_MIRRORS='{index}=<url or directory>'"
    elif nearest:
        remedy = f"sglwheel pin <recipe> --torch {(same or nearest)[0].public}"
    return ToolchainError(
        what,
        where=where,
        next=remedy,
    )


class _Session(requests.Session):
    """Requests with the certificates that all other clients have: it knows SSL_CERT_FILE by other names."""

    def merge_environment_settings(self, *words: Any, **named: Any) -> Any:
        settings = super().merge_environment_settings(*words, **named)
        return settings | {"verify": network.trusted() or settings["verify"]}


def _ask(candidate: str, project: str, *, last: bool) -> Sequence[DistributionPackage]:
    local = local_path(candidate)
    if local is not None:
        return _from_directory(local, project)
    with _Session() as session:
        client = PyPISimple(endpoint=candidate, session=session)

        def attempt() -> Sequence[DistributionPackage]:
            try:
                return client.get_project_page(project, timeout=_PATIENCE).packages
            except pypi_simple.NoSuchProjectError:
                return ()
            except requests.HTTPError as error:
                if error.response is None:
                    raise
                raise network.refusal(error.response.status_code, error.response.headers) from None

        return network.retrying(_PASSING, last=last)(attempt)


def _from_directory(root: Path, project: str) -> Sequence[DistributionPackage]:
    """A mirror that is a directory: PEP 503 pages, or nothing but wheels."""
    if not root.is_dir():
        raise FileNotFoundError(f"no such directory: {root}")
    html = root / project / "index.html"
    if html.is_file():
        text = html.read_text("utf-8")
        base = f"{html.parent.absolute().as_uri()}/"
        return ProjectPage.from_html(project, text, base_url=base).packages
    wheels = sorted(root.glob(f"{project.replace('-', '_')}-*.whl"))
    return tuple(
        DistributionPackage.from_json_data(
            {"filename": path.name, "url": path.absolute().as_uri(), "hashes": {}}, project_hint=project
        )
        for path in wheels
    )


def _offer(package: DistributionPackage, index: str, tags: frozenset[Tag]) -> Offer | None:
    try:
        _, version, _, own = parse_wheel_filename(package.filename)
    except (InvalidWheelFilename, InvalidVersion):
        return None
    if not own & tags or package.is_yanked:
        return None
    digests = package.digests or {}
    return Offer(
        version,
        package.filename,
        package.url.partition("#")[0],
        digests.get("sha256"),
        package.size,
        index,
    )


def _tags(python: Version) -> Iterable[Tag]:
    minor = (python.major, python.minor)
    yield from packaging.tags.cpython_tags(minor)
    yield from packaging.tags.compatible_tags(minor, f"cp{minor[0]}{minor[1]}")
