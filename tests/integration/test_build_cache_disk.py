"""A compiler cache whose disk takes nothing costs hits, and no build."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from buildworld import World

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(
    ("place", "options", "warning"),
    [
        # One that was never written, so not even the store's directory is there.
        ("", "size=64k,ro", "no compiler cache"),
        # ccache keeps nothing and compiles; what it says of its misses has no room either.
        ("compiler-cache", "size=24k", "later builds cannot say why they missed"),
    ],
)
def test_a_disk_that_takes_nothing_costs_no_build(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    place: str,
    options: str,
    warning: str,
) -> None:
    monkeypatch.delenv("SGLWHEEL_COMPILER_CACHE", raising=False)
    monkeypatch.setenv("SGLWHEEL_CACHE", str(tmp_path / "cache"))
    disk = tmp_path / "cache" / place
    disk.mkdir(parents=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", disk], stderr=subprocess.PIPE, text=True
    )
    if mounted.returncode:
        pytest.skip(f"may not mount a file system here: {mounted.stderr.strip()}")
    try:
        built = World(tmp_path / "world").build()
    finally:
        subprocess.run(["umount", "-l", disk], check=True)
    assert built.path.is_file()
    said = capsys.readouterr().err
    assert said.count("warning: ") == 1 and warning in " ".join(said.split())
