"""One table for many torch releases."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from inspectworld import KERNEL, LIBRARY, TORCH, Source, World
from sglwheel.errors import ToolchainError
from sglwheel.files import Layout
from sglwheel.inspect import TorchSymbols, inspect, releases, symbols

OLD = TorchSymbols("2.9.1+cu128", "12.8", frozenset({KERNEL, "_ZN3c104goneEv"}))
NIGHTLY = TorchSymbols("2.13.0.dev20261101+cu130", "13.0", frozenset({KERNEL}))
CPU = TorchSymbols("2.9.0+cpu", None, frozenset({KERNEL, "_ZN3c104goneEv"}))


def test_which_releases_fit() -> None:
    table = releases.combine([TORCH, OLD, NIGHTLY, CPU])
    assert table.labels == ("2.9.0+cpu", "2.9.1+cu128", "2.12.0+cu130", "2.13.0.dev20261101+cu130")
    assert table.fitting([KERNEL], []) == table.labels
    assert table.fitting([KERNEL, "_ZN3c104goneEv"], []) == ("2.9.0+cpu", "2.9.1+cu128")
    assert table.fitting([KERNEL], ["libcudart.so.13", "libcuda.so.1"]) == table.labels[2:]
    assert table.fitting(["_ZN3c105neverEv"], []) == ()


def test_a_table_survives_writing(tmp_path: Path) -> None:
    table = releases.combine([TORCH, OLD])
    releases.write(table, tmp_path / "a.xz")
    releases.write(releases.combine([OLD, TORCH, OLD]), tmp_path / "b.xz")
    assert (tmp_path / "a.xz").read_bytes() == (tmp_path / "b.xz").read_bytes()
    again = releases.read(tmp_path / "a.xz")
    assert again == table
    assert again.symbols("2.12.0+cu130") == TORCH


@pytest.mark.parametrize("content", [b"", b"text"])
def test_a_damaged_table_is_told(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.xz").write_bytes(content)
    with pytest.raises(ToolchainError, match="table of torch releases"):
        releases.read(tmp_path / "x.xz")


def test_an_inspection_names_the_releases_that_fit(tmp_path: Path) -> None:
    source = replace(
        Source(),
        undefined=(KERNEL, "_ZN3c104goneEv"),
        needed=("libtorch.so", "libcudart.so.12", "libcuda.so.1"),
    )
    world = World(libraries={LIBRARY: source}, requires=())
    found = inspect(world.write(tmp_path), torch=TORCH, releases=releases.combine([TORCH, OLD, CPU]))
    assert found.fits == ("2.9.1+cu128",)
    remedies = [finding.remedy for finding in found.findings if finding.rule == "torch-abi"]
    assert remedies == ["use torch 2.9.1+cu128, or build it against 2.12.0+cu130"]


def test_a_pinned_torch_rules_out_other_minor_releases(tmp_path: Path) -> None:
    """Symbols do not show how classes are laid out; torch 2.8 and 2.9 differ in that."""
    patch = TorchSymbols("2.12.1+cu130", "13.0", TORCH.symbols)
    table = releases.combine([TORCH, patch, NIGHTLY])
    assert inspect(World().write(tmp_path), releases=table).fits == ("2.12.0+cu130", "2.12.1+cu130")


def test_the_shipped_table_answers_without_a_download(tmp_path: Path) -> None:
    shipped = releases.shipped()
    assert "2.12.0+cu130" in shipped.labels
    torch = symbols.find("2.12.0", Layout(tmp_path))
    assert torch.cuda == "13.0"
    # What the published 0.3.21 wheel misses in it, and what is there instead.
    assert "_ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_ib" not in torch.symbols
    assert "_ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_jb" in torch.symbols
