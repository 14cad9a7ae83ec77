"""Mirrors to a directory and to an S3 server, and signatures that travel with them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from obstore.store import from_url

import bucketserver
from sglwheel.errors import WheelhouseError
from sglwheel.files import Layout
from sglwheel.wheelhouse import Lines, Release, Wheelhouse, pointers, publish, signing
from sglwheel.wheelhouse.gc import Policy, collect
from sglwheel.wheelhouse.life import yank
from sglwheel.wheelhouse.mirror import mirror
from sglwheel.wheelhouse.settle import settle
from sglwheel.wheelhouse.verify import verify
from wheelworld import Environment, http_directory, make_kernel, make_torch, reports

pytestmark = pytest.mark.integration


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Wheelhouse:
    monkeypatch.setattr(os, "fsync", lambda _: None)
    return Wheelhouse(tmp_path / "wheelhouse")


def put(house: Wheelhouse, build: int) -> Release:
    wheel = make_kernel(house.root.parent / "dist", f"0.3.21+cu130.torch2.12.0.sm120a.{build}")
    return publish(*reports(wheel, gpu=True), Layout(house.root.parent), root=house.root)


def contents(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and ".state" not in path.parts and path.name != "mirror.json"
    }


def test_a_directory_mirror_is_a_wheelhouse(house: Wheelhouse, tmp_path: Path) -> None:
    first = put(house, 1)
    target = tmp_path / "copy"
    seen = mirror(house, str(target), dry_run=True)
    assert f"builds/{first.id}/{first.record.filename}" in seen.copied
    assert not list(target.glob("*.whl"))
    done = mirror(house, str(target))
    assert done.copied[-1] == "index.html", "the page last"
    assert contents(target) == contents(house.root)
    assert verify(Wheelhouse(target)).findings == ()
    again = mirror(house, str(target))
    assert again.copied == [] and again.unchanged > 5
    second = put(house, 2)
    more = mirror(house, str(target))
    assert not [path for path in more.copied if path.startswith(f"builds/{first.id}/")], "incremental"
    assert f"builds/{second.id}/{second.record.filename}" in more.copied
    assert not (target / f"lines/cu130/{first.record.filename}").exists(), "lines move there, too"
    assert verify(Wheelhouse(target)).findings == ()
    node = Environment(tmp_path / "venv", wheels=[make_torch(tmp_path, "2.12.0")], cache=tmp_path / "cache")
    node.shell(Lines(second.record, str(target)).uv)
    assert node.packages()["sgl-kernel"] == second.record.version


def test_what_was_removed_and_yanked_here_goes_there_too(house: Wheelhouse, tmp_path: Path) -> None:
    releases = [put(house, build) for build in (1, 2, 3, 4, 5, 6)]
    target = tmp_path / "copy"
    mirror(house, str(target))
    yank(house, releases[5].id, "wrong", force=True)
    collect(house, Policy(keep_days=0, keep_generations=2), dry_run=False)
    done = mirror(house, str(target))
    assert any(path.endswith(releases[0].record.filename) for path in done.removed)
    assert contents(target) == contents(house.root)
    assert verify(Wheelhouse(target)).findings == ()


def test_an_interrupted_mirror_goes_on_and_never_promises_too_much(
    house: Wheelhouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sglwheel.wheelhouse import mirror as module

    for build in (1, 2, 3):
        put(house, build)
    target = tmp_path / "copy"
    real, calls = module._put, 0

    def failing(store: object, item: object) -> object:
        nonlocal calls
        calls += 1
        if calls == 15:
            raise OSError("the network went away")
        return real(store, item)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "_STRIDE", 4)
    monkeypatch.setattr(module, "_put", failing)
    with pytest.raises(WheelhouseError, match="the network went away") as caught:
        mirror(house, str(target), workers=1)
    assert "goes on where it stopped" in str(caught.value.next)
    assert not (target / "index.html").exists()
    done = mirror(house, str(target), workers=1)
    assert done.unchanged >= 12
    assert (target / "index.html").read_bytes() == (house.root / "index.html").read_bytes()


PUBLIC = {
    "Version": "2012-10-17",
    "Statement": [
        {"Effect": "Allow", "Principal": "*", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::wheels/*"}
    ],
}


@pytest.fixture(scope="session")
def bucket() -> Iterator[str]:
    """A server with a bucket that everybody may read."""
    with bucketserver.serving() as url:
        assert httpx.put(f"{url}/wheels").is_success
        assert httpx.put(f"{url}/wheels?policy", json=PUBLIC).is_success
        yield url


@pytest.fixture
def store(bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """A place in the bucket, and what the usual environment variables say of it."""
    for name, value in bucketserver.variables(bucket).items():
        monkeypatch.setenv(name, value)
    return Bucket(f"wheels/{tmp_path.name}", bucket)


@dataclass(frozen=True)
class Bucket:
    path: str
    server: str

    @property
    def target(self) -> str:
        return f"s3://{self.path}"

    @property
    def url(self) -> str:
        return f"{self.server}/{self.path}"

    def contents(self) -> dict[str, bytes]:
        store = from_url(self.target)
        found = [item["path"] for batch in store.list() for item in batch]
        return {path: bytes(store.get(path).bytes()) for path in found if path != "mirror.json"}


def named(root: Path) -> dict[str, bytes]:
    """A wheelhouse's files, less the second names of wheels: a bucket has no links."""
    files = contents(root)
    return {name: data for name, data in files.items() if name.startswith("builds/") or ".whl" not in name}


def test_a_bucket_can_be_installed_from(house: Wheelhouse, tmp_path: Path, store: Bucket) -> None:
    """By every page that leads to the wheel: a bucket knows no index for a directory."""
    release = put(house, 1)
    assert mirror(house, store.target).copied[-1] == "index.html"
    assert store.contents() == named(house.root)
    page = httpx.get(f"{store.url}/index.html")
    assert page.status_code == 200, page.text
    assert page.headers["content-type"].startswith("text/html")
    torch = make_torch(tmp_path, "2.12.0")
    lines = Lines(release.record, store.url)
    places = [f"{store.url}/{name}" for name in ("index.html", "lines/cu130/index.html")]
    (tmp_path / "requirements.txt").write_text(lines.requirements)
    for number, line in enumerate(
        (
            lines.uv,
            "uv pip install -r ../requirements.txt",
            *(f"uv pip install --no-index --find-links {place} sgl-kernel" for place in places),
        )
    ):
        node = Environment(tmp_path / f"venv-{number}", wheels=[torch], cache=tmp_path / "cache")
        node.shell(line, cwd=node.path)
        assert node.packages()["sgl-kernel"] == release.record.version, line


def test_a_bucket_gets_what_changed_and_loses_what_was_removed(house: Wheelhouse, store: Bucket) -> None:
    releases = [put(house, build) for build in (1, 2, 3, 4)]
    mirror(house, store.target)
    again = mirror(house, store.target)
    assert (again.copied, again.removed) == ([], [])
    releases.append(put(house, 5))
    more = mirror(house, store.target)
    assert {path.split("/")[1] for path in more.copied if path.startswith("builds/")} == {releases[4].id}
    yank(house, releases[4].id, "wrong", force=True)
    collect(house, Policy(keep_days=0, keep_generations=1), dry_run=False)
    done = mirror(house, store.target)
    assert f"builds/{releases[0].id}/{releases[0].record.filename}" in done.removed
    assert store.contents() == named(house.root)
    assert releases[4].record.filename.replace("+", "%2B") not in httpx.get(f"{store.url}/index.html").text


# One file after the other, and a death before the 61st.
KILLED = """
import os, signal, sys
from pathlib import Path
from sglwheel.wheelhouse import Wheelhouse, mirror
real, left = mirror._put, iter(range(60))
def put(*words):
    if next(left, None) is None:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*words)
mirror._put, mirror._STRIDE = put, 8
mirror.mirror(Wheelhouse(Path(sys.argv[1])), sys.argv[2], workers=1)
"""


def test_a_mirror_that_is_killed_goes_on_in_the_bucket(house: Wheelhouse, store: Bucket) -> None:
    for build in range(1, 13):
        put(house, build)
    total = len(mirror(house, store.target, dry_run=True).copied)
    died = subprocess.run([sys.executable, "-c", KILLED, house.root, store.target], check=False)
    assert died.returncode == -signal.SIGKILL
    assert "index.html" not in store.contents(), "the page last"
    done = mirror(house, store.target)
    assert total - 60 <= len(done.copied) <= total - 60 + 8, "less than a stride is repeated"
    assert store.contents() == named(house.root)


def test_a_bucket_that_is_not_there_is_said(house: Wheelhouse, monkeypatch: pytest.MonkeyPatch) -> None:
    put(house, 1)
    with pytest.raises(WheelhouseError, match="mirroring cannot use nonsense://x"):
        mirror(house, "nonsense://x")


# Signatures.


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", path], check=True)
    (tmp_path / "allowed").write_text(f"sglwheel {path.with_suffix('.pub').read_text()}")
    return path


def test_signatures_are_made_and_checked_offline(
    house: Wheelhouse, key: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    allowed = tmp_path / "allowed"
    release = put(house, 1)
    assert set(signing.unsigned(house, allowed).values()) == {"is not signed"}
    with house.locked():
        signing.sign_all(house, key)
    assert signing.unsigned(house, allowed) == {}
    assert verify(house).findings == ()
    # The next publish without the key drops the catalogue's, with the key renews it.
    put(house, 2)
    assert "releases.json" in signing.unsigned(house, allowed)
    monkeypatch.setenv("SGLWHEEL_SIGNING_KEY", str(key))
    put(house, 3)
    with house.locked():
        signing.sign_all(house, key)
    assert signing.unsigned(house, allowed) == {}
    # A node sees a changed catalogue, and a key that is not allowed.
    node = Environment(tmp_path / "venv", wheels=[make_torch(tmp_path, "2.12.0")], cache=tmp_path / "cache")
    words = [
        str(node.python),
        str(house.root / "install-check.pyz"),
        "before",
        "--allowed-signers",
        str(allowed),
    ]
    good = node.run(words, ok=False).stdout
    assert "Good" in good and "signature" in good
    copy = tmp_path / "copy"
    mirror(house, str(copy))
    with http_directory(copy) as (url, requests):
        assert "Good" in node.run([*words, "--wheelhouse", url], ok=False).stdout
        assert requests.count("/releases.json") == 1, "what is judged is what was verified"
        (copy / "releases.json").write_text(
            (copy / "releases.json").read_text().replace(release.sha256, "0" * 64)
        )
        bad = node.run([*words, "--wheelhouse", url], ok=False)
    assert bad.returncode == 9
    assert "WRONG signature" in bad.stdout
    other = tmp_path / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", other], check=True)
    with house.locked():
        signing.sign(house.catalogue, other)
    assert "releases.json" in signing.unsigned(house, allowed)


def test_a_node_follows_a_line_only_where_a_signer_pointed_it(
    house: Wheelhouse, key: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    allowed = tmp_path / "allowed"
    monkeypatch.setenv("SGLWHEEL_SIGNING_KEY", str(key))
    put(house, 1)
    put(house, 2)
    with house.locked(), house.transaction():
        pointers.rollback(house, "cu130")
        settle(house)
    assert signing.unsigned(house, allowed) == {}
    node = Environment(tmp_path / "venv", wheels=[make_torch(tmp_path, "2.12.0")], cache=tmp_path / "cache")
    program = [str(node.python), str(house.root / "install-check.pyz"), "before"]
    words = [*program, "--allowed-signers", str(allowed)]
    assert "sm120a.1" in node.run([*words, "--line", "cu130"], ok=False).stdout
    line = house.root / "lines/cu130/line.json"
    signed = line.read_bytes(), signing.signature(line).read_bytes()
    forged = line.read_text().replace("sm120a.1", "sm120a.2")
    line.write_text(forged)
    # Both who names the line, and who takes what its line prefers.
    for more in (["--line", "cu130"], []):
        bad = node.run([*words, *more], ok=False)
        assert bad.returncode == 9
        assert "WRONG check" in bad.stdout and "lines/cu130/line.json" in bad.stdout
        assert "uv pip install" not in bad.stdout
    assert "lines/cu130/line.json" in signing.unsigned(house, allowed)
    # What was signed for another line is not for this one.
    other = house.root / "lines/cu130.candidates/line.json"
    line.write_bytes(other.read_bytes())
    signing.signature(line).write_bytes(signing.signature(other).read_bytes())
    assert "is of another line" in node.run([*words, "--line", "cu130"], ok=False).stdout
    line.write_bytes(signed[0])
    signing.signature(line).write_bytes(signed[1])
    # A move without the key leaves none that would speak for it.
    monkeypatch.delenv("SGLWHEEL_SIGNING_KEY")
    with house.locked(), house.transaction():
        pointers.point(house, "cu130", [house.find("sm120a.2").id])
        settle(house)
    assert signing.unsigned(house, allowed)["lines/cu130/line.json"] == "is not signed"


def test_a_missing_key_is_said(house: Wheelhouse, tmp_path: Path) -> None:
    put(house, 1)
    with pytest.raises(WheelhouseError, match=r"signing .* failed"), house.locked():
        signing.sign_all(house, tmp_path / "no-key")
    shutil.rmtree(house.root)
