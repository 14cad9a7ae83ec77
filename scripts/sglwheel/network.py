"""What goes wrong between us and a server: what may pass, how long that is waited for, and words for it."""

from __future__ import annotations

import contextlib
import email.utils
import os
import re
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import tenacity

from sglwheel.errors import UsageError

ATTEMPTS = 4
WAIT = tenacity.wait_random_exponential(multiplier=0.5, max=10)
# What a server asks to wait is waited up to here: short where somebody else can be asked instead.
GRACE = 10.0
LAST_GRACE = 60.0
# RFC 9110, and RFC 6585 for 429: what says that the same question may have another answer later.
_PASSING = frozenset({408, 425, 429})
_PROXY = 407


class RefusedError(Exception):
    """A server's status instead of what was asked for; `after` is how many seconds it asks to wait."""

    def __init__(self, status: int, after: float | None = None) -> None:
        text = f"HTTP {status}"
        if status == _PROXY:
            text = _proxy()
        elif after is not None:
            text += f", and asks to wait {after:.0f} s"
        super().__init__(text)
        self.passing = status >= 500 or status in _PASSING
        self.after = after


def refusal(status: int, headers: Mapping[str, str]) -> RefusedError:
    """What a status other than success means, with the seconds or the date of `Retry-After`."""
    text = headers.get("Retry-After", "").strip()
    after: float | None = None
    if text.isdecimal():
        after = float(text)
    elif text:
        with contextlib.suppress(ValueError):
            after = max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    return RefusedError(status, after)


def retrying(
    passing: tuple[type[Exception], ...], *, last: bool, moved: Callable[[], bool] = lambda: False
) -> tenacity.Retrying:
    """Try again what may pass: `passing` are a client's errors of the transport, beside refusals.

    With `last` nobody else can be asked, so a server's wish to wait is followed for longer; one that wants
    more is left. What `moved` on since the attempt before counts as a first attempt.
    """
    grace = LAST_GRACE if last else GRACE
    idle = 0

    def again(error: BaseException) -> bool:
        if isinstance(error, RefusedError):
            return error.passing and (error.after or 0.0) <= grace
        return isinstance(error, passing) and not _lasting(error)

    def stop(_: tenacity.RetryCallState) -> bool:
        nonlocal idle
        idle = 1 if moved() else idle + 1
        return idle >= ATTEMPTS

    def wait(state: tenacity.RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome is not None else None
        asked = error.after if isinstance(error, RefusedError) else None
        return max(float(WAIT(state)), asked or 0.0)

    return tenacity.Retrying(retry=tenacity.retry_if_exception(again), stop=stop, wait=wait, reraise=True)


def words(error: BaseException) -> str:
    """An error of any client in words that a user can act on."""
    for one in _chain(error):
        if isinstance(one, ssl.SSLCertVerificationError):
            why = one.verify_message or str(one)
            return f"its certificate is not trusted ({why}); SSL_CERT_FILE names a file with your own CA"
        if isinstance(one, socket.gaierror):
            return f"host not found ({one.strerror or one})"
    if _refused_by_proxy(error):
        return _proxy()
    return str(error) or type(error).__name__


def trusted() -> str | None:
    """The file or directory of certificates that the standard variables name; None means the client's own.

    Raises UsageError for one that is not there: no client says which variable is wrong.
    """
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        if place := os.environ.get(name):
            if not Path(place).exists():
                raise UsageError(
                    f"{name} names no file", where={name: place}, next=f"unset {name}, or mend it"
                )
            return place
    return None


def tls() -> ssl.SSLContext | bool:
    """What httpx verifies servers with. Raises UsageError for certificates that cannot be read."""
    place = trusted()
    if place is None:
        return True
    try:
        if Path(place).is_dir():
            return ssl.create_default_context(capath=place)
        return ssl.create_default_context(cafile=place)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(
            f"cannot read the certificates of SSL_CERT_FILE: {error}", where={"SSL_CERT_FILE": place}
        ) from None


def _lasting(error: BaseException) -> bool:
    untrusted = any(isinstance(one, ssl.SSLCertVerificationError) for one in _chain(error))
    return untrusted or _refused_by_proxy(error)


def _refused_by_proxy(error: BaseException) -> bool:
    """Whether a tunnel was refused for want of a password: clients have no type for that."""
    named = any("Proxy" in type(one).__name__ for one in _chain(error))
    return named and re.search(rf"\b{_PROXY}\b", str(error)) is not None


def _proxy() -> str:
    return (
        f"HTTP {_PROXY}: the proxy wants a name and a password (HTTPS_PROXY=http://<name>:<password>@<proxy>)"
    )


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An error and what it was made of, also where a client keeps that among its arguments."""
    left, seen = [error], set[int]()
    while left:
        one = left.pop(0)
        if id(one) not in seen:
            seen.add(id(one))
            yield one
            inner = (one.__cause__, one.__context__, getattr(one, "reason", None), *one.args)
            left += [item for item in inner if isinstance(item, BaseException)]
