"""What others say of sources that this host cannot fetch; their first fetch is held to it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from sglwheel import console
from sglwheel.errors import UsageError
from sglwheel.recipe import Recipe
from sglwheel.source.fetched import FetchedSource
from sglwheel.source.sourcelock import Pin

_COMMIT, _SHA256 = re.compile(r"[0-9a-f]{40}"), re.compile(r"[0-9a-f]{64}")


def locked(
    recipe: Recipe, found: Sequence[FetchedSource], known: Mapping[str, Pin], published: Mapping[str, str]
) -> list[Pin]:
    """The pins of a lock: of what was fetched as it is, of what came from elsewhere as it is known.

    Raises UsageError with every identity that cannot be one.
    """
    identities = {name.lower(): text for name, text in published.items()}
    mistakes: dict[str, str] = {}
    pins: list[Pin] = []
    for source in found:
        text = identities.pop(source.name, None)
        pin = known.get(source.name)
        if source.via != "override":
            if text is not None:
                mistakes[source.name] = "is fetched here: what it is needs no telling"
            pins.append(pin or source.pin)
        elif text is not None:
            try:
                pins.append(_pin(source, text))
            except ValueError as error:
                mistakes[source.name] = str(error)
        elif pin is not None and (pin.kind, pin.url, pin.requested) == _asked(source):
            pins.append(pin)
        elif (own := _declared(source)) is not None:
            pins.append(_pin(source, own))
        else:
            # Checking names it as well, until somebody says what it is or can fetch it.
            console.warn(f"{source.name} is not in the lock: nothing says what it is (--published)")
    mistakes |= dict.fromkeys(identities, "the build fetches no such source")
    if mistakes:
        raise UsageError(
            "these sources cannot be what was said of them",
            where=mistakes,
            next=f"sglwheel lock {recipe.id} --override … --published <name>=<commit or SHA256>",
        )
    return pins


def _asked(source: FetchedSource) -> tuple[str, str, str]:
    return source.kind, source.url, source.requested


def _declared(source: FetchedSource) -> str | None:
    """The identity that upstream's own CMake gives a source: nobody else needs to say it."""
    if source.kind == "git":
        return source.requested if _COMMIT.fullmatch(source.requested) else None
    algorithm, _, digest = source.requested.partition("=")
    return digest.lower() if algorithm.upper() == "SHA256" else None


def _pin(source: FetchedSource, text: str) -> Pin:
    git = source.kind == "git"
    if not (_COMMIT if git else _SHA256).fullmatch(text):
        raise ValueError(f"{text!r} is no {'full commit id' if git else 'SHA-256'}")
    own = _declared(source)
    if own is not None and own != text:
        raise ValueError(f"the build asks for {own}, not {text}")
    asked = (source.name, *_asked(source))
    return Pin(*asked, commit=text) if git else Pin(*asked, sha256=text)
