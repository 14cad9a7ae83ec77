"""One file over a bad network: retries with backoff, resume, a check of what came, and the next place."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from sglwheel import network
from sglwheel.errors import SglwheelError, SourceError
from sglwheel.mirrors import local_path, redacted

# A server that is silent for so many seconds, or sends less than so many bytes in them, is not there.
PATIENCE = 60.0
_FLOOR = 10_000

Check = Callable[[Path], None]
OnBytes = Callable[[int], None]


@dataclass(frozen=True)
class Delivery:
    """Which place delivered, and how many bytes came over the wire."""

    place: str
    received: int


class _StalledError(Exception):
    """A server that sends next to nothing."""


def fetch(
    url: str,
    candidates: Sequence[str],
    target: Path,
    *,
    check: Check,
    failure: type[SglwheelError],
    what: str,
    resume: bool = True,
    on_bytes: OnBytes | None = None,
) -> Delivery:
    """Have `target` from the first place whose bytes pass `check`, which raises SourceError for others.

    With `resume` what an interrupted run left in `<target>.part` is continued, whoever sent it: the check
    decides. Raises `failure` with every place that was tried and what it did wrong.
    """
    failures: dict[str, str] = {}
    part = target.with_name(f"{target.name}.part")
    part.parent.mkdir(parents=True, exist_ok=True)
    if not resume:
        part.unlink(missing_ok=True)
    for left, candidate in zip(range(len(candidates) - 1, -1, -1), candidates, strict=True):
        for _ in range(2):
            had = part.stat().st_size if part.is_file() else 0
            try:
                received = _get(candidate, part, on_bytes, last=not left)
                try:
                    check(part)
                except SourceError:
                    part.unlink(missing_ok=True)
                    raise
            except SourceError as error:
                failures[redacted(candidate)] = error.what
                # What was there already may have been the wrong half: once more, from the first byte.
                if had and not part.is_file():
                    continue
                break
            part.replace(target)
            return Delivery(candidate, received)
    raise failure(
        f"cannot get {what} with the right content" if failures else f"no place is known for {what}",
        where=failures or {"url": redacted(url)},
        next=f"name a mirror: SGLWHEEL_MIRRORS='{redacted(url)}=<url or path>'",
    )


def _get(candidate: str, part: Path, on_bytes: OnBytes | None, *, last: bool) -> int:
    local = local_path(candidate)
    if local is not None:
        if not local.is_file():
            raise SourceError("no such file")
        shutil.copyfile(local, part)
        return part.stat().st_size
    received = seen = 0

    def moved() -> bool:
        nonlocal seen
        more, seen = received - seen, received
        return more >= _FLOOR

    def attempt() -> None:
        nonlocal received
        for count in _stream(candidate, part):
            received += count
            if on_bytes is not None:
                on_bytes(count)

    passing = (httpx.TransportError, _StalledError)
    try:
        network.retrying(passing, last=last, moved=moved)(attempt)
    except (httpx.HTTPError, httpx.InvalidURL, network.RefusedError, _StalledError) as error:
        raise SourceError(network.words(error).replace(candidate, redacted(candidate))) from None
    return received


def _stream(candidate: str, part: Path) -> Iterator[int]:
    had = part.stat().st_size if part.is_file() else 0
    # Encoded content could not be continued in the middle, and would not have the bytes of its hash.
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={had}-"} if had else {})
    client = httpx.Client(verify=network.tls(), timeout=PATIENCE, follow_redirects=True)
    with client, client.stream("GET", candidate, headers=headers) as response:
        status = response.status_code
        if had and status == 416:
            return  # there is no more: the check judges
        if status not in (200, 206):
            raise network.refusal(status, response.headers)
        started, inside = time.monotonic(), 0
        with part.open("ab" if status == 206 else "wb") as stream:
            for chunk in response.iter_raw():
                stream.write(chunk)
                inside += len(chunk)
                yield len(chunk)
                if time.monotonic() - started > PATIENCE:
                    if inside < _FLOOR:
                        raise _StalledError(f"{inside} bytes in {PATIENCE:.0f} s")
                    started, inside = time.monotonic(), 0
