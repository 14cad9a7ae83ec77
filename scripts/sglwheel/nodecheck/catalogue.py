"""What a wheelhouse offers, read from a directory or a url."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import tempfile
import urllib.parse
import urllib.request
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sglwheel.nodecheck.node import Result


class StopError(Exception):
    """The check itself cannot go on."""


def read(wheelhouse: str, name: str) -> bytes:
    """A file of the wheelhouse, which is a directory or a url."""
    if re.match(r"https?://", wheelhouse):
        url = urllib.parse.urljoin(wheelhouse.rstrip("/") + "/", name)
        with urllib.request.urlopen(url, timeout=60) as answer:
            return bytes(answer.read())
    return (Path(wheelhouse) / name).read_bytes()


def releases(wheelhouse: str) -> list[dict[str, Any]]:
    try:
        found = json.loads(read(wheelhouse, "releases.json"))["releases"]
        return [dict(item) for item in found]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StopError(f"no catalogue in {wheelhouse}: {error}") from error


def release_id(release: dict[str, Any]) -> str:
    return str(release["filename"])[: -len(".whl")].replace("+", "_")


def available(found: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """What may be recommended, best first: releases before candidates, newest first."""
    shown = [item for item in found if item.get("yanked") is None and not item.get("removed")]
    return sorted(
        shown, key=lambda item: (item.get("status") == "release", item.get("serial", 0)), reverse=True
    )


def alone(release: dict[str, Any]) -> bool:
    """Whether a release is of Python alone: its many requirements are the node's business."""
    return release.get("kind") == "python"


def install_line(client: str, subindex: str, pin: str, *, alone: bool = False) -> str:
    """The line that installs one release and nothing else, for `uv pip` or `python -m pip`.

    `alone` leaves every requirement to the node, torch with them: nothing but the wheel can change.

    `list`, because `freeze` shows a torch that came from a file or url as `torch @ …`; `;`, because without a
    torch the resolver's own explanation should be seen.
    """
    if alone:
        words = f"--no-deps --no-index {fresh(client, pin)}--find-links {quoted(subindex)}"
        return f"{client} install {words} {shlex.quote(pin)}"
    frozen = f"{client} list --format=freeze | grep '^torch==' > node-torch.txt"
    return f"{frozen}; {client} install {arguments(client, subindex, pin)}"


def subindex(wheelhouse: str, id: str) -> str:
    """Where only one release lies. Over http the page is named: a bucket knows no index for a directory."""
    page = "index.html" if wheelhouse.startswith(("http://", "https://")) else ""
    return f"{wheelhouse.rstrip('/')}/builds/{id}/{page}"


def arguments(client: str, subindex: str, pin: str) -> str:
    """What makes an install exact: one wheel in sight, no other torch, and the node's own as a constraint."""
    words = f"--no-index {fresh(client, pin)}--find-links {quoted(subindex)}"
    return f"{words} --constraint node-torch.txt {shlex.quote(pin)}"


def fresh(client: str, pin: str) -> str:
    """Has uv read the wheel itself, not what it remembers of a file of that name at that place.

    uv keys what it unpacked from a flat index by the index's address and the file's name, and takes it for
    another wheelhouse that later has the same path, too (seen with uv 0.13.9). pip remembers no local files
    and asks again over http.
    """
    return f"--refresh-package {pin.partition('==')[0]} " if client.startswith("uv") else ""


def quoted(text: str) -> str:
    """As a shell takes it; `$WHEELHOUSE` stays a variable."""
    return f'"{text}"' if text.startswith("$WHEELHOUSE") else shlex.quote(text)


def signed(wheelhouse: str, allowed_signers: str, signer: str) -> Result:
    """Verify the catalogue's signature, and with it every hash that it names."""
    data, signature = read(wheelhouse, "releases.json"), read(wheelhouse, "releases.json.sig")
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "releases.json.sig"
        path.write_bytes(signature)
        words = [
            "ssh-keygen",
            "-Y",
            "verify",
            "-f",
            allowed_signers,
            "-I",
            signer,
            "-n",
            "sglwheel",
            "-s",
            str(path),
        ]
        try:
            done = subprocess.run(
                words, input=data, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
            )
        except OSError as error:
            raise StopError(f"ssh-keygen: {error}") from error
    said = done.stdout.decode("utf-8", "replace").strip().splitlines()
    return Result("signature", "failed" if done.returncode else "passed", said[-1] if said else "")
