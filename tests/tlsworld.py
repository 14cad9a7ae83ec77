"""A certificate that nobody trusts, and a proxy that lets nobody through."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path

from loopback import Loopback


def certificate(directory: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that is signed by itself, and its key."""
    made, key = directory / "cert.pem", directory / "key.pem"
    words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1 -subj /CN=localhost"
    # uv takes no certificate that may also sign others.
    more = ["-addext", "subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=critical,CA:FALSE"]
    command = ["openssl", *words.split(), *more, "-keyout", key, "-out", made]
    subprocess.run(command, check=True, capture_output=True)
    return made, key


@dataclass
class Proxy(Loopback):
    """A proxy that asks for a password whoever comes; `asked` is for what."""

    asked: list[str] = field(default_factory=list)
    # Kept open, as real ones do: the client answers with its password on the same connection.
    protocol = "HTTP/1.1"

    def answer(self, to: BaseHTTPRequestHandler) -> None:
        self.asked.append(to.path)
        to.send_response(407, "Proxy Authentication Required")
        to.send_header("Proxy-Authenticate", 'Basic realm="proxy"')
        to.send_header("Content-Length", "0")
        to.end_headers()
