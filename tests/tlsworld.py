"""Servers on loopback that nobody trusts, and a proxy that lets nobody through."""

from __future__ import annotations

import ssl
import subprocess
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from pathlib import Path


def certificate(directory: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that is signed by itself, and its key."""
    made, key = directory / "cert.pem", directory / "key.pem"
    words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1 -subj /CN=localhost"
    # uv takes no certificate that may also sign others.
    more = ["-addext", "subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=critical,CA:FALSE"]
    command = ["openssl", *words.split(), *more, "-keyout", key, "-out", made]
    subprocess.run(command, check=True, capture_output=True)
    return made, key


def serve(server: HTTPServer, made: Path, key: Path) -> None:
    """Let a server speak TLS alone."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)


@dataclass
class Proxy:
    """A proxy that asks for a password whoever comes; `asked` is for what."""

    asked: list[str] = field(default_factory=list)

    def __enter__(self) -> Proxy:
        own = self

        class Handler(BaseHTTPRequestHandler):
            # Kept open, as real ones do: the client answers with its password on the same connection.
            protocol_version = "HTTP/1.1"

            def do_CONNECT(self) -> None:
                own.asked.append(self.path)
                self.send_response(407, "Proxy Authentication Required")
                self.send_header("Proxy-Authenticate", 'Basic realm="proxy"')
                self.send_header("Content-Length", "0")
                self.end_headers()

            do_GET = do_HEAD = do_POST = do_CONNECT  # noqa: N815

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"
