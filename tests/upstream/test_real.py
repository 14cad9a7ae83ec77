"""The real upstream, through the network or a mirror; a whole build only when asked for.

SGLWHEEL_UPSTREAM=1      sources and patches
SGLWHEEL_UPSTREAM=build  the wheel as well (hours on a small host)
SGLWHEEL_OVERRIDES       space-separated NAME=PATH|REV|PATH@REV, as `--override` takes them
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sglwheel import pipeline, source
from sglwheel.files import Layout

ROOT = Path(__file__).parents[2]
WANTED = os.environ.get("SGLWHEEL_UPSTREAM", "")
OVERRIDES = dict(text.split("=", 1) for text in os.environ.get("SGLWHEEL_OVERRIDES", "").split())
FP4 = {
    f"sgl_kernel::{name}"
    for name in (
        "cutlass_scaled_fp4_mm",
        "scaled_fp4_quant",
        "cutlass_fp4_group_mm",
        "scaled_fp4_experts_quant",
        "silu_and_mul_scaled_fp4_experts_quant",
    )
}

pytestmark = [
    pytest.mark.upstream,
    pytest.mark.skipif(not WANTED, reason="skipped: set SGLWHEEL_UPSTREAM=1 (network or SGLWHEEL_MIRRORS)"),
]


@pytest.fixture
def context() -> pipeline.Context:
    return pipeline.Context.load(Layout(ROOT), "cu130", pipeline.Options(overrides=OVERRIDES))


def test_checkout_and_series(context: pipeline.Context) -> None:
    assert context.checkout.commit == "6ffc74efd7d23627c0245efb61af7f62cde4a970"
    states = {state.name: state.state for state in context.patch().patches}
    # CMake 3.31.10 knows the policies and nvcc's SYSTEM_INCLUDES, and still accepts dlpack's minimum.
    assert {name for name, state in states.items() if state == "not-needed"} == {
        "cmake-policy",
        "cccl-include",
        "dlpack-cmake4",
        "cxx20",
    }
    assert {name for name, state in states.items() if state == "applied"} == {
        "fa3-build-guard",
        "fa3-import-fallback",
        "architectures",
    }


def test_every_source_is_found_and_nothing_is_fetched_twice(context: pipeline.Context) -> None:
    patched = context.patch()
    arguments = (patched, context.recipe, context.layout, context.mirrors, OVERRIDES)
    found = {one.name for one in source.dependencies(*arguments).sources}
    assert found == {
        "repo-cutlass",
        "repo-deepgemm",
        "repo-flash-attention",
        "repo-flashinfer",
        "repo-fmt",
        "repo-mscclpp",
        "repo-triton",
        "json",
    }
    assert source.dependencies(*arguments).bytes_fetched == 0


@pytest.mark.skipif(WANTED != "build", reason="skipped: set SGLWHEEL_UPSTREAM=build (compiles for an hour)")
def test_the_wheel(context: pipeline.Context) -> None:
    done = pipeline.run(Layout(ROOT), "cu130", context.options)
    found = done.facts["inspection"]
    assert set(found["operators"]) >= FP4
    assert {target for library in found["libraries"] for target in library["sass"]} == {"sm_120a"}
    assert done.release.path.stat().st_size < 9 * 2**20
