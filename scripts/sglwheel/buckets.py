"""Object stores (S3 and what else obstore speaks) by url, with the credentials of the usual variables."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sglwheel.errors import SglwheelError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from obstore.store import ObjectStore


def open_bucket(url: str, *, what: str, failure: type[SglwheelError], **options: Any) -> ObjectStore:
    """The store at `url`, for instance `s3://bucket/prefix`; `what` needs it. Nothing is asked yet.

    AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_ENDPOINT and AWS_ALLOW_HTTP say the rest;
    `options` are obstore's. Raises `failure` where obstore is not installed, or for an url that is none.
    """
    with _opening(url, what, failure):
        from obstore.store import from_url

        return from_url(url, **options)


def open_directory(path: Path, *, what: str, failure: type[SglwheelError]) -> ObjectStore:
    """A directory, made if need be, as a store. Raises as `open_bucket`."""
    with _opening(str(path), what, failure):
        from obstore.store import LocalStore

        return LocalStore(path, mkdir=True)


@contextmanager
def _opening(place: str, what: str, failure: type[SglwheelError]) -> Iterator[None]:
    try:
        from obstore.exceptions import BaseError
    except ImportError as error:
        raise failure(
            f"{what} needs obstore", next="uv pip install 'sglwheel[mirror]' in this environment"
        ) from error
    try:
        yield
    except (BaseError, OSError, ValueError) as error:
        said = (str(error).splitlines() or [type(error).__name__])[0]
        raise failure(f"{what} cannot use {place}: {said}", next="for a bucket: s3://name/prefix") from error
