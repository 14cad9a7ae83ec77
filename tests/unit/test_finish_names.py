"""Versions of finished wheels: upstream's public part stays, the local part compares as numbers."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from sglwheel.errors import BuildError
from sglwheel.finish import licences, local_version
from sglwheel.finish.platformtag import platform_tag
from sglwheel.types import CudaArch, CudaLine


def recipe(*architectures: str, build: int = 1) -> Any:
    return SimpleNamespace(
        torch=SimpleNamespace(cuda=CudaLine.parse("cu130")),
        build=SimpleNamespace(architectures=tuple(CudaArch.parse(text) for text in architectures)),
        wheel=SimpleNamespace(build=build),
    )


@pytest.mark.parametrize(
    ("architectures", "torch", "expected"),
    [
        (("12.0a",), "2.12.0", "0.3.21+cu130.torch2.12.0.sm120a.7"),
        (("12.0a",), "2.13.0.dev20261101", "0.3.21+cu130.torch2.13.0.dev20261101.sm120a.7"),
        (("12.0a", "9.0a"), "2.12.0+cu130", "0.3.21+cu130.torch2.12.0.sm90a.sm120a.7"),
        (("9.0+PTX",), "2.12.0", "0.3.21+cu130.torch2.12.0.sm90ptx.7"),
    ],
)
def test_local_version(architectures: tuple[str, ...], torch: str, expected: str) -> None:
    version = local_version("0.3.21", recipe(*architectures, build=7), Version(torch))
    assert str(version) == expected
    assert version in SpecifierSet("==0.3.21")


@given(
    older=st.tuples(st.integers(0, 99), st.integers(0, 99)),
    newer=st.tuples(st.integers(0, 99), st.integers(0, 99)),
    builds=st.tuples(st.integers(1, 999), st.integers(1, 999)),
)
def test_order_follows_torch_then_build(
    older: tuple[int, int], newer: tuple[int, int], builds: tuple[int, int]
) -> None:
    versions = [
        local_version("1.0", recipe("12.0a", build=build), Version(f"2.{minor}.{patch}"))
        for (minor, patch), build in zip((older, newer), builds, strict=True)
    ]
    first, second = (
        (minor, patch, build) for (minor, patch), build in zip((older, newer), builds, strict=True)
    )
    assert (versions[0] < versions[1]) == (first < second)


def test_what_is_no_library_gets_no_tag() -> None:
    with pytest.raises(BuildError, match=r"x\.so is not a library"):
        platform_tag([("x.so", b"\x7fELF" + b"\0" * 80)])
    with pytest.raises(BuildError, match="one machine"):
        platform_tag([])


def test_headers_bring_their_licences(tmp_path: Path) -> None:
    for name in ("torch-2.12.0.dist-info/licenses/LICENSE", "torch-2.12.0.dist-info/licenses/NOTICE",
                 "torch-2.12.0.dist-info/METADATA", "nvidia_cuda_cccl-13.0.85.dist-info/licenses/License.txt",
                 "torchvision-0.27.dist-info/LICENSE"):  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    assert set(licences.of_headers(tmp_path)) == {
        "torch/LICENSE", "torch/NOTICE", "nvidia_cuda_cccl/License.txt",
    }  # fmt: skip
    assert licences.of_headers(tmp_path / "nowhere") == {}
