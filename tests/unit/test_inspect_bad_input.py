"""Whatever is no good wheel, or no torch to judge it beside, as its user sees it: 7 and a sentence."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import ROOT
from inspectworld import LIBRARY, MACHINE, Source, World, compiled, container, entry, write_zip
from sglwheel import cli

GOOD = World()


def of(world: World) -> Callable[[Path], Path]:
    return world.write


def bytes_of(content: bytes) -> Callable[[Path], Path]:
    def write(directory: Path) -> Path:
        path = directory / GOOD.file_name
        path.write_bytes(content)
        return path

    return write


def truncated(directory: Path) -> Path:
    path = GOOD.write(directory)
    path.write_bytes(path.read_bytes()[:-100])
    return path


def bomb(directory: Path) -> Path:
    path = directory / GOOD.file_name
    write_zip(path, [("sample_kernel/zeros.so", bytes(64 << 20))])
    return path


def many(directory: Path) -> Path:
    path = directory / GOOD.file_name
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(50_001):
            archive.writestr(f"{number}", b"")
    return path


def library(content: bytes) -> World:
    return GOOD.changed(libraries={LIBRARY: content})


def foreign() -> bytes:
    content = bytearray(compiled(Source()))
    content[18:20] = (183 if MACHINE == "x86_64" else 62).to_bytes(2, "little")
    return bytes(content)


BAD: dict[str, Callable[[Path], Path]] = {
    "not a zip": bytes_of(b"not a zip at all"),
    "empty": bytes_of(b""),
    "truncated": truncated,
    "bomb": bomb,
    "too many files": many,
    "RECORD that lies": of(GOOD.changed(record={LIBRARY: f"{LIBRARY},sha256={'A' * 43},1"})),
    "broken headers": of(library(compiled(Source())[:2000])),
    "corrupt fatbin": of(library(compiled(Source(fatbin=container(entry()) + b"garbage!" * 4)))),
    "foreign architecture": of(library(foreign())),
}


def said(capsys: pytest.CaptureFixture[str], directory: Path, *words: str) -> str:
    with pytest.raises(SystemExit) as ended:
        cli.main(["inspect", *words])
    captured = capsys.readouterr()
    text = captured.err[captured.err.index("error: ") :]
    found = [line for line in captured.out.splitlines() if line.startswith(("error[", "  remedy"))]
    whole = "\n".join([*found, text]).replace(str(directory), "DIR").replace(GOOD.file_name, "WHEEL")
    # Which torch releases are known changes, and columns are as wide as paths.
    whole = re.sub(r"known  .*", "known  …", whole)
    whole = re.sub(r"bytes \d+ to \d+ of", "bytes N to M of", whole)
    whole = re.sub(r"(manylinux_\w+|aarch64|x86_64)", "MACHINE", whole)
    return re.sub(r"(?<=\S) {2,}", "  ", whole) + f"exit {ended.value.code}\n"


@pytest.mark.parametrize("name", BAD)
def test_a_bad_wheel(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Callable[[str, str], None]
) -> None:
    text = said(capsys, tmp_path, str(BAD[name](tmp_path)))
    golden(f"bad-input-inspect/{name.replace(' ', '-')}.txt", text)
    assert text.endswith("exit 7\n")


@pytest.mark.parametrize("torch", ["9.9.9", "nowhere", "empty directory", "no wheel"])
def test_a_torch_that_is_not_there(
    torch: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Callable[[str, str], None]
) -> None:
    place = {"empty directory": str(tmp_path), "no wheel": str(ROOT / "README.md")}.get(torch, torch)
    text = said(capsys, tmp_path, str(GOOD.write(tmp_path)), "--torch", place).replace(str(ROOT), "ROOT")
    golden(f"bad-input-inspect/torch-{torch.replace(' ', '-')}.txt", text)
    assert text.endswith("exit 7\n")
