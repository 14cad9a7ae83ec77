"""Files of a wheelhouse, which is a directory or a url; a url may ask who is there."""

from __future__ import annotations

import base64
import functools
import netrc
import re
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path


@functools.lru_cache(maxsize=64)
def read(wheelhouse: str, name: str) -> bytes:
    """A file of the wheelhouse, asked for once. Raises OSError.

    Who verifies a signature and then asks again may get other bytes the second time.
    """
    if not re.match(r"https?://", wheelhouse):
        return (Path(wheelhouse) / name).read_bytes()
    parts = urllib.parse.urlsplit(f"{wheelhouse.rstrip('/')}/{name}")
    host = parts.netloc.rpartition("@")[2]
    request = urllib.request.Request(parts._replace(netloc=host).geturl())
    who = credentials(parts)
    if who:
        request.add_unredirected_header("Authorization", "Basic " + base64.b64encode(who.encode()).decode())
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return bytes(answer.read())
    except urllib.error.HTTPError as error:
        if error.code != 401:
            raise
        asked = "its token was refused" if who else "it asks for a token"
        raise OSError(
            f"{asked}: write `machine {parts.hostname} login x password <token>` to ~/.netrc"
        ) from None


def credentials(parts: urllib.parse.SplitResult) -> str | None:
    """`user:password` for a url: from itself, or from where uv and pip look, too."""
    if parts.username is not None:
        return f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
    try:
        known = netrc.netrc().authenticators(parts.hostname or "")
    except (OSError, netrc.NetrcParseError):
        return None
    return f"{known[0]}:{known[2]}" if known else None


def shown(wheelhouse: str) -> str:
    """Where it is, without a password."""
    return re.sub(r"://[^/@]*@", "://", wheelhouse)
