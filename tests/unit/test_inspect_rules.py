"""For every rule a wheel that breaks it, and breaks no other."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from conftest import ROOT
from inspectworld import (
    EXPECT,
    KERNEL,
    LIBRARY,
    MACHINE,
    TORCH,
    Source,
    World,
    compiled,
    container,
    entry,
    inspected,
    write_zip,
)
from sglwheel.errors import InspectionError
from sglwheel.inspect import RULES, Expectation, Inspection, inspect

GOOD = World()


def library(**changes: object) -> World:
    return GOOD.changed(libraries={LIBRARY: replace(Source(), **changes)})  # type: ignore[arg-type]


def also(path: str, **changes: object) -> World:
    return GOOD.changed(libraries={**GOOD.libraries, path: replace(Source(), **changes)})  # type: ignore[arg-type]


def foreign_machine() -> World:
    content = bytearray(compiled(Source()))
    content[18:20] = (183 if MACHINE == "x86_64" else 62).to_bytes(2, "little")
    return GOOD.changed(libraries={LIBRARY: bytes(content)})


def truncated() -> World:
    # Beside the good one: a library that cannot be read has no operators and no targets either.
    return GOOD.changed(
        libraries={**GOOD.libraries, "sample_kernel/other.abi3.so": compiled(Source())[:2000]}
    )


def duplicated(world: World, directory: Path) -> Path:
    members = world.members()
    path = directory / world.file_name
    with pytest.warns(UserWarning, match="Duplicate name"):
        write_zip(path, [*members, members[0]])
    return path


def escaping(world: World, directory: Path) -> Path:
    changed = world.changed(files={"../../etc/profile.d/x.sh": b"echo\n"})
    return changed.write(directory)


def corrupt(world: World, directory: Path) -> Path:
    path = world.write(directory)
    with zipfile.ZipFile(path) as archive:
        member = archive.getinfo("sample_kernel/__init__.py")
        at = member.header_offset + 30 + len(member.filename) + member.compress_size // 2
    content = bytearray(path.read_bytes())
    content[at] ^= 0xFF
    path.write_bytes(bytes(content))
    return path


Write = Callable[[World, Path], Path]
BROKEN: list[tuple[str, str, World | tuple[World, Write], str]] = [
    ("archive", "crc", (GOOD, corrupt), "cannot be unpacked"),
    ("paths", "duplicate", (GOOD, duplicated), "stands twice"),
    ("paths", "escaping", (GOOD, escaping), "outside of site-packages"),
    # Found by fuzzing: zipfile's own is_dir() stumbles over it.
    ("paths", "no name", GOOD.changed(files={"": b""}), "outside of site-packages"),
    (
        "dist-info",
        "no WHEEL",
        GOOD.changed(without=(f"{GOOD.info}/WHEEL",), record={f"{GOOD.info}/WHEEL": ""}),
        "missing",
    ),
    (
        "dist-info",
        "two",
        GOOD.changed(files={"other-1.dist-info/METADATA": b"Name: other\n"}),
        "must hold one .dist-info",
    ),
    (
        "record",
        "other content",
        GOOD.changed(record={LIBRARY: f"{LIBRARY},sha256={'A' * 43},1"}),
        "other content",
    ),
    ("record", "not listed", GOOD.changed(unrecorded={"sample_kernel/x.py": b""}), "is not in RECORD"),
    ("record", "absent", GOOD.changed(record={"gone.py": "gone.py,sha256=AAAA,1"}), "not in the wheel"),
    ("record", "md5", GOOD.changed(record={LIBRARY: f"{LIBRARY},md5=AAAA,1"}), "no sha256"),
    ("names", "METADATA", GOOD.changed(metadata_version="0.3.21"), "says version '0.3.21'"),
    ("names", "other version", GOOD.changed(version="0.3.22"), "expected 0.3.21+cu130"),
    ("names", "other distribution", GOOD.changed(distribution="other-kernel"), "expected sample-kernel"),
    ("tags", "renamed", GOOD.changed(wheel_tag=f"cp310-abi3-linux_{MACHINE}"), "WHEEL says cp310-abi3-linux"),
    ("pure", "library", GOOD.changed(tag="py3-none-any"), "whose tag says any platform"),
    ("requires-torch", "none", GOOD.changed(requires=()), "requires no torch"),
    ("requires-torch", "range", GOOD.changed(requires=("torch>=2.8",)), "expected torch==2.12.0"),
    ("requires-torch", "other", GOOD.changed(requires=("torch==2.11.0",)), "expected torch==2.12.0"),
    ("elf", "truncated", truncated(), "no loader can load it"),
    ("machine", "foreign", foreign_machine(), "the tag says"),
    (
        "abi3",
        "name",
        also("sample_kernel/_x.cpython-310-x86_64-linux-gnu.so", fatbin=b""),
        "cpython-310 only",
    ),
    (
        "abi3",
        "symbol",
        library(undefined=("PyUnicode_AsUTF8", "PyFloat_GetInfo", "_PyObject_Vectorcall", KERNEL)),
        "_PyObject_Vectorcall",
    ),
    ("abi3", "too new", library(undefined=("PyType_GetName", KERNEL)), "PyType_GetName"),
    ("platform", "older", library(versions=(("arc4random", "GLIBC_2.36", "libc.so.6"),)), "manylinux_2_36"),
    ("rpath", "build host", library(rpath="/build/torch/lib"), "build host"),
    ("rpath", "stubs", library(rpath="/usr/local/cuda/lib64/stubs"), "stubs"),
    (
        "needed",
        "other CUDA",
        library(needed=("libtorch.so", "libcuda.so.1", "libcudart.so.12")),
        "of CUDA 12, beside a torch of CUDA 13",
    ),
    ("needed", "unknown", library(needed=("libtorch.so", "libcuda.so.1", "libfoo.so.3")), "libfoo.so.3"),
    (
        "needed",
        "python",
        library(needed=("libtorch.so", "libcuda.so.1", "libpython3.12.so.1.0")),
        "particular Python",
    ),
    ("runtime", "static", library(exported=("__cxa_throw",)), "a second C++ runtime"),
    ("driver", "dropped", library(needed=("libtorch.so",)), "undefined symbol: cuMemFree_v2"),
    (
        "undefined",
        "nobody",
        library(undefined=("forgotten_kernel_launch", KERNEL)),
        "forgotten_kernel_launch",
    ),
    ("fatbin", "corrupt", library(fatbin=container(entry()) + b"garbage!" * 4), "corrupt"),
    (
        "architectures",
        "other",
        also("sample_kernel/other.abi3.so", fatbin=container(entry(90))),
        "lacks sm_120a, holds sm_90a",
    ),
    ("architectures", "PTX", library(fatbin=container(entry(), entry(kind=1))), "holds compute_120a besides"),
    (
        "architectures",
        "family",
        also("sample_kernel/x.abi3.so", fatbin=container(entry(120, "f"))),
        "holds sm_120f besides",
    ),
    (
        "architectures",
        "plain",
        also("sample_kernel/x.abi3.so", fatbin=container(entry(120, ""))),
        "holds sm_120 besides",
    ),
    (
        "loads",
        "not there",
        GOOD.changed(libraries={LIBRARY.replace("sm100", "sm90"): Source()}),
        "which is not there",
    ),
    (
        "torch-abi",
        "removed",
        library(undefined=(KERNEL, "_ZN3c104goneEv")),
        "`c10::gone` is no longer exported",
    ),
    ("operators", "missing", library(schemas=()), "no library registers sample_kernel::rmsnorm"),
    (
        "size",
        "too large",
        GOOD.changed(files={"sample_kernel/t.bin": bytes(range(256)) * 5000}),
        "MiB, the recipe allows",
    ),
    (
        "strays",
        "static",
        GOOD.changed(files={"sample_kernel/lib.a": b"!<arch>\n"}),
        "only useful to a compiler",
    ),
    ("strays", "lib", GOOD.changed(files={"lib/x.txt": b""}), "belongs to nobody"),
]


def test_an_operator_that_should_be_gone_is_named_with_its_library(tmp_path: Path) -> None:
    expect = replace(EXPECT, operators=(), absent_operators=("sample_kernel::rmsnorm",))
    (finding,) = inspected(GOOD, tmp_path, expect=expect).findings
    assert (finding.rule, finding.severity, finding.file) == ("operators", "error", LIBRARY)
    assert "sample_kernel::rmsnorm, which the recipe calls absent" in finding.detail


def breaches(found: Inspection) -> set[str]:
    return {finding.rule for finding in found.findings if finding.severity != "info"}


def test_the_good_wheel_breaks_nothing(tmp_path: Path) -> None:
    found = inspected(GOOD, tmp_path)
    assert found.findings == ()
    assert found.ok
    assert found.operators == ("sample_kernel::rmsnorm",)


@pytest.mark.parametrize(
    ("rule", "broken", "says"),
    [(rule, broken, says) for rule, _, broken, says in BROKEN],
    ids=[f"{rule}: {label}" for rule, label, *_ in BROKEN],
)
def test_a_broken_wheel_is_caught_by_its_rule_alone(
    rule: str, broken: World | tuple[World, Write], says: str, tmp_path: Path
) -> None:
    world, write = broken if isinstance(broken, tuple) else (broken, World.write)
    expect = replace(EXPECT, max_size_mib=1)
    if rule == "size":
        world = world.changed(files={"sample_kernel/t.bin": noise(2 << 20)})
    found = inspect(write(world, tmp_path), expect=expect, torch=TORCH)
    assert breaches(found) == {rule}
    details = [finding.detail for finding in found.findings if finding.rule == rule]
    assert any(says in detail for detail in details), details


def noise(count: int) -> bytes:
    """Bytes that deflate cannot shrink, the same every time."""
    import random

    return random.Random(1).randbytes(count)


def test_every_rule_is_broken_once() -> None:
    assert {rule for rule, *_ in BROKEN} | {"conflicts"} == set(RULES)


def test_the_page_names_every_rule_in_its_own_words() -> None:
    page = (ROOT / "docs/inspection.md").read_text()
    for name, rule in RULES.items():
        assert f"| `{name}` | {(rule.__doc__ or '').rstrip('.')} |" in page


def test_conflicting_distributions_are_told(tmp_path: Path) -> None:
    world = GOOD.changed(distribution="sgl-kernel")
    found = inspect(world.write(tmp_path), expect=replace(EXPECT, distribution="sgl-kernel"), torch=TORCH)
    (finding,) = found.findings
    assert (finding.rule, finding.severity) == ("conflicts", "info")
    assert "sglang-kernel owns the same files" in finding.detail


def test_what_a_node_must_have_is_told(tmp_path: Path) -> None:
    found = inspected(library(needed=("libtorch.so", "libcuda.so.1", "libnuma.so.1")), tmp_path)
    assert found.ok
    (finding,) = found.findings
    assert finding.severity == "info"
    assert "libnuma1" in finding.detail


def test_json_and_lines_tell_the_same(tmp_path: Path) -> None:
    found = inspected(library(undefined=(KERNEL, "_ZN3c104goneEv")), tmp_path)
    data = json.loads(json.dumps(found.to_json()))
    assert data["ok"] is False
    assert data["libraries"][0]["sass"] == ["sm_120a"]
    assert data["torch_abi"][0]["symbols"][0]["demangled"] == "c10::gone()"
    text = "\n".join(found.render())
    for finding in data["findings"]:
        assert finding["detail"].splitlines()[0] in text
    assert text.endswith("does not fit: 1 error")


def test_without_a_torch_nothing_is_said_about_its_symbols(tmp_path: Path) -> None:
    found = inspect(library(undefined=(KERNEL, "_ZN3c104goneEv")).write(tmp_path))
    assert found.ok
    assert found.torch is None


@pytest.mark.parametrize("content", [b"", b"PK", b"not a zip at all" * 100])
def test_what_is_not_a_zip_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / GOOD.file_name
    path.write_bytes(content)
    with pytest.raises(InspectionError, match="not a wheel"):
        inspect(path)


def test_a_truncated_wheel_is_refused(tmp_path: Path) -> None:
    path = GOOD.write(tmp_path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(InspectionError, match="not a wheel"):
        inspect(path)


def test_a_missing_wheel_is_told(tmp_path: Path) -> None:
    with pytest.raises(InspectionError, match="No such file"):
        inspect(tmp_path / GOOD.file_name)


def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    path = tmp_path / GOOD.file_name
    write_zip(path, [("sample_kernel/zeros.so", bytes(64 << 20))])
    with pytest.raises(InspectionError, match="-fold"):
        inspect(path)


def test_a_wheel_of_something_else_is_judged_calmly(tmp_path: Path) -> None:
    world = World(distribution="six", version="1.0", tag="py3-none-any", requires=(), libraries={})
    found = inspect(world.write(tmp_path))
    assert found.ok
    assert found.platform is None


def test_loader_choices(tmp_path: Path) -> None:
    found = inspected(GOOD, tmp_path)
    chosen = {choice.capability: (choice.library, choice.runs) for choice in found.choices}
    assert chosen[(12, 0)] == (LIBRARY, "sm_120a")
    assert chosen[(12, 1)] == (LIBRARY, None)
    assert chosen[(9, 0)] == (None, None)


def test_kernels_are_told_only_where_asked_for(tmp_path: Path) -> None:
    """The plain run leaves GPU code out, and must not look for kernels in it."""
    path = GOOD.write(tmp_path)
    assert inspect(path, expect=EXPECT, torch=TORCH).libraries[0].kernels == ()
    # The payload here is no cubin: nothing is found, and nothing fails.
    found = inspect(path, expect=EXPECT, torch=TORCH, kernels=5)
    assert found.ok
    assert found.libraries[0].kernels == ()


def test_a_recipe_of_python_alone_and_its_wheel_agree(tmp_path: Path) -> None:
    expect = replace(EXPECT, sass=frozenset(), operators=(), pure=True)
    wheel = GOOD.changed(libraries={}, tag="py3-none-any")
    assert inspected(wheel, tmp_path, expect=expect).ok

    def says(world: World, expect: Expectation) -> list[str]:
        found = inspected(world, tmp_path, expect=expect).findings
        return [finding.detail for finding in found if finding.rule in ("pure", "requires-torch")]

    assert says(GOOD, expect) == [f"is for {GOOD.tag.split('-')[2]}, but the recipe is of Python alone"]
    assert says(wheel, replace(expect, pure=False)) == [
        "is for any platform, but the recipe's kernels are compiled"
    ]
    assert says(wheel.changed(requires=("torch==2.9.1",)), expect) == [
        "requires torch==2.9.1, expected torch==2.12.0"
    ]


def test_what_the_standard_library_defines_needs_no_version(tmp_path: Path) -> None:
    # std::basic_stringbuf<char>::str() const &, resolved by the linker from a torch that exports it, too.
    symbol = "_ZNKRSt7__cxx1115basic_stringbufIcSt11char_traitsIcESaIcEE3strEv"
    for needed, found in ((("libstdc++.so.6",), []), ((), ["undefined"])):
        plain = Source()
        source = replace(plain, undefined=(*plain.undefined, symbol), needed=(*plain.needed, *needed))
        findings = inspected(World(libraries={LIBRARY: source}), tmp_path).findings
        assert [each.rule for each in findings if each.severity == "error"] == found
