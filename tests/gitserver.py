"""Git over HTTP on loopback, by git's own backend, which can be told to behave badly."""

from __future__ import annotations

import base64
import os
import subprocess
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path

from loopback import Loopback

_BACKEND = (
    "git -c safe.directory=* -c uploadpack.allowFilter=true -c uploadpack.allowAnySHA1InWant=true"
    " http-backend"
)


@dataclass
class GitServer(Loopback):
    """Serves the repositories below `root`; `faults` are what goes wrong with the next packs, in turn.

    A status refuses, `cut` ends in the middle, `stall` sends nothing for a while, `flip` changes a byte.
    """

    root: Path
    faults: list[str] = field(default_factory=list)
    login: str = ""
    """`user:password` that is asked for; all are welcome if it is empty."""
    packs: int = 0
    tls: tuple[Path, Path] | None = None
    """Certificate and key."""

    def of(self, name: str, who: str = "") -> str:
        """The url of a repository."""
        return f"{self.at(who)}/{name}"

    def answer(self, to: BaseHTTPRequestHandler) -> None:
        path, _, query = to.path.partition("?")
        body = to.rfile.read(int(to.headers.get("Content-Length") or 0))
        said = to.headers.get("Authorization", "").removeprefix("Basic ")
        if base64.b64decode(said).decode() != self.login:
            to.send_response(401)
            to.send_header("WWW-Authenticate", 'Basic realm="git"')
            to.send_header("Content-Length", "0")
            to.end_headers()
            return
        done = subprocess.run(
            _BACKEND.split(),
            input=body,
            capture_output=True,
            check=False,
            env={
                "PATH": os.environ["PATH"],
                "GIT_PROJECT_ROOT": str(self.root),
                "GIT_HTTP_EXPORT_ALL": "1",
                "REQUEST_METHOD": to.command,
                "PATH_INFO": path,
                "QUERY_STRING": query,
                "CONTENT_TYPE": to.headers.get("Content-Type", ""),
                "HTTP_CONTENT_ENCODING": to.headers.get("Content-Encoding", ""),
                "GIT_PROTOCOL": to.headers.get("Git-Protocol", ""),
                "GIT_CONFIG_NOSYSTEM": "1",
                "HOME": "/nonexistent",
            },
        )
        head, _, content = done.stdout.partition(b"\r\n\r\n")
        fields = dict(line.split(": ", 1) for line in head.decode().splitlines())
        status = int(fields.pop("Status", "200").split()[0])
        fault = ""
        if b"PACK" in content:
            self.packs += 1
            fault = self.faults.pop(0) if self.faults else ""
        if fault.isdecimal():
            status, content = int(fault), b""
        to.send_response(status)
        for name, value in fields.items():
            to.send_header(name, value)
        to.send_header("Content-Length", str(len(content)))
        to.end_headers()
        try:
            if fault == "stall":
                time.sleep(5)
            elif fault == "cut":
                content = content[: content.index(b"PACK") + 40]
            elif fault == "flip":
                at = content.index(b"PACK") + 30
                content = content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
            to.wfile.write(content)
        except OSError:
            pass
        to.close_connection = True
