"""What a wheelhouse offers, read from a directory or a url."""

from __future__ import annotations

import json
import shlex
import subprocess
import tempfile
import urllib.parse
from collections.abc import Container, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from sglwheel.nodecheck.node import Result
from sglwheel.nodecheck.reading import read, shown


class StopError(Exception):
    """The check itself cannot go on."""


class Signers(NamedTuple):
    """Whose signature counts: an allowed_signers file, and the principal in it."""

    file: str
    principal: str


def releases(wheelhouse: str) -> list[dict[str, Any]]:
    try:
        found = json.loads(read(wheelhouse, "releases.json"))["releases"]
        return [dict(item) for item in found]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StopError(f"no catalogue in {shown(wheelhouse)}: {error}") from error


def release_id(release: dict[str, Any]) -> str:
    return str(release["filename"])[: -len(".whl")].replace("+", "_")


def available(found: Iterable[dict[str, Any]], pointed: Container[str] = ()) -> list[dict[str, Any]]:
    """What may be recommended, best first: releases before candidates, what a line points to, newest."""
    shown = [item for item in found if item.get("yanked") is None and not item.get("removed")]
    return sorted(
        shown,
        key=lambda item: (
            item.get("status") == "release",
            release_id(item) in pointed,
            item.get("serial", 0),
        ),
        reverse=True,
    )


def members(wheelhouse: str, line: str, signers: Signers | None = None) -> list[str]:
    """What a line points to; nothing where there is no such line.

    Raises StopError where nobody of `signers` signed that, or signed it for another line.
    """
    name = f"lines/{urllib.parse.quote(line)}/line.json"
    try:
        pointer = json.loads(read(wheelhouse, name))
        history = pointer["history"]
        found = [str(id) for id in history[-1]["members"]] if history else []
    except (OSError, ValueError, KeyError, TypeError):
        return []
    if signers is not None:
        result = signed(wheelhouse, name, signers)
        if result.status == "failed" or pointer.get("name") != line:
            raise StopError(f"{name}: {result.detail if result.status == 'failed' else 'is of another line'}")
    return found


def pointed(wheelhouse: str, found: Iterable[dict[str, Any]], signers: Signers | None = None) -> set[str]:
    """What the lines of these releases point to: after a rollback that is not the newest.

    A line's own pointer speaks for releases, the one of its candidates for candidates only.
    """
    by_line: dict[str, set[str]] = {}
    for item in found:
        if item.get("line"):
            line = str(item["line"]) + ("" if item.get("status") == "release" else ".candidates")
            by_line.setdefault(line, set()).add(release_id(item))
    return {
        id for line, ids in by_line.items() for id in ids.intersection(members(wheelhouse, line, signers))
    }


def alone(release: dict[str, Any]) -> bool:
    """Whether a release is of Python alone: its many requirements are the node's business."""
    return release.get("kind") == "python"


def install_line(client: str, subindex: str, pin: str, *, alone: bool = False) -> str:
    """The line that installs one release and nothing else, for `uv pip` or `python -m pip`.

    `alone` leaves every requirement to the node, torch with them: nothing but the wheel can change.
    """
    freeze, words = _install(client, subindex, pin, alone=alone)
    return f"{freeze}{client} install {words}"


def replacing_line(client: str, subindex: str, pin: str, names: Iterable[str], *, alone: bool = False) -> str:
    """The same for an environment that has these distributions of the same files: tried first, then replaced.

    All go, because removing one takes files of the others along.
    """
    freeze, words = _install(client, subindex, pin, alone=alone)
    yes = "" if client.startswith("uv") else "--yes "
    return (
        f"{freeze}{client} install --dry-run {words} && {client} uninstall {yes}{' '.join(names)} && "
        f"{client} install {words}"
    )


def _install(client: str, subindex: str, pin: str, *, alone: bool) -> tuple[str, str]:
    """What freezes torch, and what makes an install exact: one wheel in sight, and no other torch.

    `list`, because `freeze` shows a torch that came from a file or url as `torch @ …`; `;`, because without a
    torch the resolver's own explanation should be seen.
    """
    sight = f"--no-index {fresh(client)}--find-links {quoted(subindex)}"
    if alone:
        return "", f"--no-deps {sight} {shlex.quote(pin)}"
    frozen = f"{client} list --format=freeze | grep '^torch==' > node-torch.txt; "
    return frozen, f"{sight} --constraint node-torch.txt {shlex.quote(pin)}"


def subindex(wheelhouse: str, id: str) -> str:
    """Where only one release lies. Over http the page is named: a bucket knows no index for a directory."""
    page = "index.html" if wheelhouse.startswith(("http://", "https://")) else ""
    return f"{wheelhouse.rstrip('/')}/builds/{id}/{page}"


def fresh(client: str) -> str:
    """Has uv read the wheel itself, not what it remembers of a file of that name at that place.

    uv keys what it unpacked from a flat index by the index's address and the file's name, and takes it for
    another wheelhouse that later has the same path, too (seen with uv 0.13.9). `--refresh-package` would do,
    but is refused where a node sets UV_OFFLINE. pip remembers no local files and asks again over http.
    """
    return "--no-cache " if client.startswith("uv") else ""


def quoted(text: str) -> str:
    """As a shell takes it; `$WHEELHOUSE` stays a variable."""
    return f'"{text}"' if text.startswith("$WHEELHOUSE") else shlex.quote(text)


def signed(wheelhouse: str, name: str, signers: Signers) -> Result:
    """Verify a document's signature; the catalogue's also vouches for every hash that it names."""
    try:
        data, signature = read(wheelhouse, name), read(wheelhouse, f"{name}.sig")
    except OSError as error:
        return Result("signature", "failed", f"none for {name}: {error}")
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "signature"
        path.write_bytes(signature)
        who = ["-f", signers.file, "-I", signers.principal, "-n", "sglwheel"]
        words = ["ssh-keygen", "-Y", "verify", *who, "-s", str(path)]
        try:
            done = subprocess.run(
                words, input=data, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
            )
        except OSError as error:
            raise StopError(f"ssh-keygen: {error}") from error
    said = done.stdout.decode("utf-8", "replace").strip().splitlines()
    return Result("signature", "failed" if done.returncode else "passed", said[-1] if said else "")
