"""Serve a wheelhouse to a LAN, read-only: Starlette and uvicorn, with PEP 691 content negotiation."""

from __future__ import annotations

import base64
import binascii
import hmac
import ipaddress
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.routing import Mount
from starlette.staticfiles import NotModifiedResponse, PathLike, StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from sglwheel.errors import WheelhouseError
from sglwheel.wheelhouse.compressed import SMALLEST, Compressed
from sglwheel.wheelhouse.house import Wheelhouse
from sglwheel.wheelhouse.sending import WholeFile

_JSON = "application/vnd.pypi.simple.v1+json"
_HTML = "application/vnd.pypi.simple.v1+html"
# A wheel never changes under its name; everything else may with the next publish.
_FOREVER = "public, max-age=31536000, immutable"
_ASK = "no-cache"
_BINARY = (".whl", ".pyz", ".metadata", ".sig")


@dataclass(frozen=True)
class Service:
    """How a wheelhouse is offered. A token is asked for as bearer, or as the password of any user."""

    root: Path
    host: str = "127.0.0.1"
    port: int = 8000
    token: str | None = None
    certificate: Path | None = None
    key: Path | None = None

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.certificate else 'http'}://{host}:{self.port}"

    @property
    def loopback(self) -> bool:
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


def application(service: Service) -> ASGIApp:
    """The ASGI application; also for whoever has a server of their own."""
    return Starlette(
        routes=[Mount("/", _Files(service.root))],
        middleware=[Middleware(_Token, token=service.token)] if service.token else [],
    )


def serve(service: Service) -> None:
    """Serve until interrupted. Raises WheelhouseError for what cannot be served this way."""
    Wheelhouse(service.root).demand()
    if service.token and not service.certificate and not service.loopback:
        raise WheelhouseError(
            "a token over plain http is readable for everybody on the network",
            where={"host": service.host},
            next="give --certificate and --key, or leave the token out",
        )
    for path in (service.certificate, service.key):
        if path is not None and not path.is_file():
            raise WheelhouseError("no such file for TLS", where={"file": str(path)})
    config = uvicorn.Config(
        application(service),
        host=service.host,
        port=service.port,
        ssl_certfile=service.certificate,
        ssl_keyfile=service.key,
        log_level="warning",
        access_log=False,
        server_header=False,
        # Longer than clients keep a connection in reserve, so that none is closed as its next request comes.
        timeout_keep_alive=120,
        timeout_graceful_shutdown=5,
    )
    try:
        uvicorn.Server(config).run()
    except (OSError, SystemExit) as error:
        raise WheelhouseError(
            f"cannot serve on {service.host} port {service.port}",
            where={"reason": str(error)} if isinstance(error, OSError) else {},
            next="choose another --port, or end what listens there",
        ) from error


class _Files(StaticFiles):
    """The wheelhouse's files: nothing hidden, nothing outside, an index for a directory."""

    def __init__(self, root: Path) -> None:
        # Symlinks are not followed: what lies outside is nobody's business.
        super().__init__(directory=root, html=True, follow_symlink=False)
        self._compressed = Compressed()

    def file_response(
        self, full_path: PathLike, stat_result: os.stat_result, scope: Scope, status_code: int = 200
    ) -> Response:
        response = WholeFile(full_path, status_code, stat_result=stat_result)
        known = self.is_not_modified(response.headers, Headers(scope=scope))
        return NotModifiedResponse(response.headers) if known else response

    async def get_response(self, path: str, scope: Scope) -> Response:
        parts = path.split("/")
        if any(part.startswith(".") and part != "." for part in parts):
            return PlainTextResponse("not found\n", 404)
        simple = path in ("simple", "simple/") or (
            parts[0] == "simple" and len(parts) in (2, 3) and "." not in parts[-1]
        )
        if simple and wants_json(Headers(scope=scope).get("accept", "")):
            response = await super().get_response("/".join([*filter(None, parts), "index.json"]), scope)
            if response.status_code in (200, 304):
                response.headers["content-type"] = _JSON
        else:
            response = await super().get_response(path, scope)
        # Never wheels: they are compressed, and ranges of them are asked for.
        if isinstance(response, FileResponse) and not path.endswith(_BINARY):
            response = await self._text(response, scope)
        if simple:
            response.headers.add_vary_header("Accept")
        forever = parts[0] == "builds" and path.endswith((".whl", ".metadata"))
        response.headers["cache-control"] = _FOREVER if forever and response.status_code < 300 else _ASK
        response.headers["x-content-type-options"] = "nosniff"
        return response

    async def _text(self, response: FileResponse, scope: Scope) -> Response:
        asked = Headers(scope=scope)
        response.headers.add_vary_header("Accept-Encoding")
        whole = scope["method"] == "GET" and response.status_code == 200 and "range" not in asked
        large = int(response.headers["content-length"]) >= SMALLEST
        if not (whole and large and "gzip" in asked.get("accept-encoding", "")):
            return response
        return await run_in_threadpool(self._compressed.answer, response)


def wants_json(accept: str) -> bool:
    """Whether a client prefers the JSON index (PEP 691)."""
    weights: dict[str, float] = {}
    for kind, weight in _accepted(accept):
        weights[kind] = max(weight, weights.get(kind, 0.0))
    json = max(weights.get(_JSON, 0.0), weights.get("application/vnd.pypi.simple.latest+json", 0.0))
    html = max(weights.get(_HTML, 0.0), weights.get("text/html", 0.0), weights.get("*/*", 0.0))
    return json > 0 and json >= html


def _accepted(accept: str) -> list[tuple[str, float]]:
    kinds = []
    for item in accept.split(","):
        kind, *options = (part.strip() for part in item.split(";"))
        weight = next((option[2:] for option in options if option.startswith("q=")), "1")
        try:
            kinds.append((kind.lower(), float(weight)))
        except ValueError:
            continue
    return kinds


class _Token:
    """Let in who knows the token."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._token = token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self._knows(Headers(scope=scope).get("authorization", "")):
            headers: dict[str, Any] = {"www-authenticate": 'Basic realm="wheelhouse"'}
            await PlainTextResponse("a token is needed\n", 401, headers)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _knows(self, header: str) -> bool:
        kind, _, value = header.partition(" ")
        given = value.strip().encode()
        if kind.lower() == "basic":
            try:
                given = base64.b64decode(given, validate=True).partition(b":")[2]
            except (binascii.Error, ValueError):
                return False
        elif kind.lower() != "bearer":
            return False
        return hmac.compare_digest(given, self._token)
