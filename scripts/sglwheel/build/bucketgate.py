"""A bucket as ccache can use it: ccache speaks plain HTTP, a bucket wants signed requests.

ccache has no word for S3 (docs/compiler-cache.md), so a build that shares a bucket serves it to its own
compilers on loopback. The address has a secret: without it no other user of this host gets at the bucket.
"""

from __future__ import annotations

import http.server
import secrets
import threading
from collections.abc import Callable
from datetime import timedelta
from http import HTTPStatus
from typing import TYPE_CHECKING

from sglwheel.buckets import open_bucket
from sglwheel.errors import UsageError

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_CONNECT, _OPERATION = timedelta(seconds=1), timedelta(seconds=5)


class BucketGate:
    """Serve GET, HEAD and PUT of a bucket at `address`, from when it is made until `close`."""

    def __init__(self, url: str) -> None:
        """Raises UsageError for an url that obstore refuses, and where obstore is not installed."""
        store = open_bucket(
            url,
            what="a compiler cache in a bucket",
            failure=UsageError,
            # Options in place of AWS_ALLOW_HTTP; who writes http:// into AWS_ENDPOINT means it.
            client_options={"connect_timeout": _CONNECT, "timeout": _OPERATION, "allow_http": True},
            retry_config={"max_retries": 1, "retry_timeout": _OPERATION},
        )
        self._server = _Server(store, f"/{secrets.token_urlsafe(16)}/")
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, name="bucket", daemon=True
        )
        self._thread.start()

    @property
    def address(self) -> str:
        """What ccache is told."""
        return f"http://127.0.0.1:{self._server.server_address[1]}{self._server.secret.rstrip('/')}"

    def answers(self) -> bool:
        """Whether the bucket's server says anything; a refusal is an answer, too."""
        status, _ = _asked(lambda: _there(self._server.store, "sglwheel-probe"))
        return status is not HTTPStatus.BAD_GATEWAY

    def close(self) -> None:
        """Serve no more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, store: ObjectStore, secret: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.store, self.secret = store, secret


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_GET(self) -> None:
        def get(store: ObjectStore, key: str) -> bytes:
            return bytes(store.get(key).bytes())

        self._answer(get)

    def do_HEAD(self) -> None:
        self._answer(_there)

    def do_PUT(self) -> None:
        data = self.rfile.read(int(self.headers.get("Content-Length", "0")))

        def put(store: ObjectStore, key: str) -> bytes:
            store.put(key, data)
            return b""

        self._answer(put)

    def _answer(self, ask: Callable[[ObjectStore, str], bytes]) -> None:
        status, data = HTTPStatus.NOT_FOUND, b""
        if self.path.startswith(self.server.secret):
            key = self.path.removeprefix(self.server.secret)
            status, data = _asked(lambda: ask(self.server.store, key))
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: what fails is counted by ccache and said once."""


def _there(store: ObjectStore, key: str) -> bytes:
    store.head(key)
    return b""


def _asked(ask: Callable[[], bytes]) -> tuple[HTTPStatus, bytes]:
    from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

    try:
        return HTTPStatus.OK, ask()
    except FileNotFoundError:
        return HTTPStatus.NOT_FOUND, b""
    except (PermissionDeniedError, UnauthenticatedError):
        return HTTPStatus.FORBIDDEN, b""
    except (BaseError, OSError):
        return HTTPStatus.BAD_GATEWAY, b""
