"""Detached signatures that need no network: `ssh-keygen -Y`, which every node with OpenSSH can verify.

A signature says that a holder of the key published these bytes. It protects against a changed copy, mirror or
server. It does not protect against a stolen key, nor against who withholds a file or shows an older state,
which was signed as well, and says nothing about what the code does.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from sglwheel import files, process
from sglwheel.errors import WheelhouseError
from sglwheel.wheelhouse.house import Wheelhouse
from sglwheel.wheelhouse.record import Record

# What else the key signs (commits, logins) is no signature of ours, and ours is none there.
NAMESPACE = "sglwheel"
PRINCIPAL = "sglwheel"


def sign(path: Path, key: Path) -> Path:
    """Write `<path>.sig`; `key` is a private key, or a public one whose private half the agent holds.

    Raises WheelhouseError.
    """
    target = signature(path)
    done = process.run(
        ["ssh-keygen", "-q", "-Y", "sign", "-f", key, "-n", NAMESPACE],
        failure=WheelhouseError,
        input=path.read_bytes(),
        what=f"signing {path.name}",
        next="give --key a private key without passphrase, or a public one of the agent's",
    )
    files.write_atomic(target, done.stdout)
    return target


def verify(path: Path, allowed_signers: Path, *, principal: str = PRINCIPAL) -> str | None:
    """Why `<path>.sig` is no good signature of `path` by one of the allowed, or None if it is one."""
    there = signature(path)
    if not there.is_file():
        return "is not signed"
    who: list[process.Argument] = ["-f", allowed_signers, "-I", principal]
    done = process.run(
        ["ssh-keygen", "-Y", "verify", *who, "-n", NAMESPACE, "-s", there],
        failure=WheelhouseError,
        input=path.read_bytes(),
        accept=range(256),
        what="verifying a signature",
    )
    if done.returncode == 0:
        return None
    said = (done.stderr.strip() or done.stdout.strip()).splitlines()
    return said[-1] if said else "the signature is wrong"


def drop(path: Path) -> None:
    """Before `path` says something else: what was signed is no longer there."""
    signature(path).unlink(missing_ok=True)


def resign(house: Wheelhouse, changed: Iterable[Record]) -> None:
    """Keep signatures in step with a change: make them where a key is set, or drop those that no longer fit.

    `SGLWHEEL_SIGNING_KEY` names the key file.
    """
    key = os.environ.get("SGLWHEEL_SIGNING_KEY")
    drop(house.catalogue)
    if key:
        _sign(house, changed, Path(key))


def sign_all(house: Wheelhouse, key: Path) -> list[Path]:
    """Sign each wheel and line that has no signature, and the catalogue, which names all hashes.

    Needs the lock.
    """
    return _sign(house, sorted(house.records().values(), key=Record.order), key)


def unsigned(house: Wheelhouse, allowed_signers: Path) -> dict[str, str]:
    """What has no good signature, each with the reason."""
    records = sorted(house.records().values(), key=Record.order)
    paths = [house.catalogue, *_lines(house), *_wheels(house, records)]
    why = {path: verify(path, allowed_signers) for path in paths if path.is_file()}
    return {str(path.relative_to(house.root)): reason for path, reason in why.items() if reason}


def _sign(house: Wheelhouse, records: Iterable[Record], key: Path) -> list[Path]:
    missing = [path for path in (*_wheels(house, records), *_lines(house)) if not signature(path).exists()]
    return [sign(path, key) for path in (*missing, house.catalogue)]


def _wheels(house: Wheelhouse, records: Iterable[Record]) -> list[Path]:
    return [house.builds / record.id / record.filename for record in records if not record.removed]


def _lines(house: Wheelhouse) -> list[Path]:
    """What says where each line points: a node that follows one installs what stands there."""
    return sorted(house.root.glob("lines/*/line.json"))


def signature(path: Path) -> Path:
    """Where the signature of `path` lies."""
    return path.with_name(f"{path.name}.sig")
