"""Detached signatures that need no network: `ssh-keygen -Y`, which every node with OpenSSH can verify.

A signature says that a holder of the key published these bytes. It protects against a changed copy, mirror or
server. It does not protect against a stolen key, and says nothing about what the code does.
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
    target = path.with_name(f"{path.name}.sig")
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
    signature = path.with_name(f"{path.name}.sig")
    if not signature.is_file():
        return "is not signed"
    who: list[process.Argument] = ["-f", allowed_signers, "-I", principal]
    done = process.run(
        ["ssh-keygen", "-Y", "verify", *who, "-n", NAMESPACE, "-s", signature],
        failure=WheelhouseError,
        input=path.read_bytes(),
        accept=range(256),
        what="verifying a signature",
    )
    if done.returncode == 0:
        return None
    said = (done.stderr.strip() or done.stdout.strip()).splitlines()
    return said[-1] if said else "the signature is wrong"


def resign(house: Wheelhouse, changed: Iterable[Record]) -> None:
    """Keep signatures in step with a change: make them where a key is set, or drop one that no longer fits.

    `SGLWHEEL_SIGNING_KEY` names the key file.
    """
    key = os.environ.get("SGLWHEEL_SIGNING_KEY")
    if not key:
        house.catalogue.with_name(f"{house.catalogue.name}.sig").unlink(missing_ok=True)
        return
    for record in changed:
        wheel = house.builds / record.id / record.filename
        if not record.removed and not wheel.with_name(f"{wheel.name}.sig").exists():
            sign(wheel, Path(key))
    sign(house.catalogue, Path(key))


def sign_all(house: Wheelhouse, key: Path) -> list[Path]:
    """Sign each wheel that has no signature, and the catalogue, which names all hashes. Needs the lock."""
    signed = []
    for record in sorted(house.records().values(), key=Record.order):
        wheel = house.builds / record.id / record.filename
        if not record.removed and not wheel.with_name(f"{wheel.name}.sig").exists():
            signed.append(sign(wheel, key))
    signed.append(sign(house.catalogue, key))
    return signed


def unsigned(house: Wheelhouse, allowed_signers: Path) -> dict[str, str]:
    """What has no good signature, each with the reason."""
    paths = [
        house.builds / record.id / record.filename
        for record in sorted(house.records().values(), key=Record.order)
        if not record.removed
    ]
    why = {path: verify(path, allowed_signers) for path in [house.catalogue, *paths] if path.is_file()}
    return {str(path.relative_to(house.root)): reason for path, reason in why.items() if reason}
