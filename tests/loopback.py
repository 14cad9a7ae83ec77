"""HTTP servers on loopback: one thread each, gone with their `with`."""

from __future__ import annotations

import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from typing import Self


class Loopback:
    """Hands every request to `answer`; with `tls` (certificate, key) over TLS alone."""

    tls: tuple[Path, Path] | None = None
    protocol: ClassVar[str] = "HTTP/1.0"

    def answer(self, to: BaseHTTPRequestHandler) -> None:
        raise AssertionError(f"{type(self).__name__} answers nobody")

    def __enter__(self) -> Self:
        own = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = own.protocol

            def do_GET(self) -> None:
                own.answer(self)

            do_HEAD = do_POST = do_CONNECT = do_GET  # noqa: N815

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        if self.tls is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*self.tls)
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()

    @property
    def url(self) -> str:
        return self.at()

    def at(self, who: str = "") -> str:
        """The server's url, for a `user:password@` if given."""
        scheme = "http" if self.tls is None else "https"
        return f"{scheme}://{who}127.0.0.1:{self.server.server_port}"
