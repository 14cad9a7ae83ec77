"""Missing torch symbols are explained in words, the six of the published 0.3.21 wheel among them."""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglwheel.errors import ToolchainError
from sglwheel.files import Layout
from sglwheel.inspect import symbols
from sglwheel.inspect.abi import TorchSymbols, compare, is_torch
from sglwheel.inspect.demangle import demangle, parse

# Exports of torch 2.12.0 that carry the names of the six below.
NEW = frozenset(
    {
        "_ZN2at4cuda24getCurrentCUDABlasHandleEb",
        "_ZN3c1013MessageLoggerC1ENS_14SourceLocationEib",
        "_ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_jb",
        "_ZNK2at10TensorBase14const_data_ptrIiEEPKT_v",
        "_ZNR5torch7Library4_defEON3c1014FunctionSchemaEPNS1_12OperatorNameERKSt6vectorINS_10headeronly3TagESaIS8_EENS_17"
        "_RegisterOrVerifyE",
        "_ZNR5torch7Library4_defEOSt7variantIJN3c1012OperatorNameENS2_14FunctionSchemaEEEONS_11CppFunctionERKSt6vectorINS_"
        "10headeronly3TagESaISB_EE",
        "_ZN3c105ErrorC1Ev",
    }
)
OLD = [
    "_ZN2at4cuda24getCurrentCUDABlasHandleEv",
    "_ZN3c1013MessageLoggerC1EPKcii",
    "_ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_ib",
    "_ZNK2at10TensorBase14const_data_ptrIiLi0EEEPKT_v",
    "_ZNR5torch7Library4_defEON3c1014FunctionSchemaEPNS1_12OperatorNameERKSt6vectorIN2at3TagESaIS8_EENS_17_RegisterOrVerifyE",
    "_ZNR5torch7Library4_defEOSt7variantIJN3c1012OperatorNameENS2_14FunctionSchemaEEEONS_11CppFunctionERKSt6vectorIN2at3Tag"
    "ESaISB_EE",
]
TORCH = TorchSymbols("2.12.0+cu130", "13.0", NEW)


def test_all_six_causes_are_named() -> None:
    causes = compare([("common_ops.so", name) for name in [*OLD, "_ZN3c105ErrorC1Ev"]], TORCH)
    assert {cause.text: len(cause.symbols) for cause in causes} == {
        "`at::TensorBase::const_data_ptr`: template arguments changed from `<int, 0>` to `<int>`": 1,
        "`at::cuda::getCurrentCUDABlasHandle` takes a further parameter: `bool`": 1,
        "`c10::MessageLogger::MessageLogger`: parameter 1 changed from `char const*` to "
        "`c10::SourceLocation`, parameter 3 changed from `int` to `bool`": 1,
        "`c10::cuda::c10_cuda_check_implementation`: parameter 4 changed from `int` to `unsigned int`": 1,
        "type `at::Tag` is now `torch::headeronly::Tag`": 2,
    }
    assert sorted(missing.symbol for cause in causes for missing in cause.symbols) == sorted(OLD)
    assert all(missing.files == ("common_ops.so",) for cause in causes for missing in cause.symbols)


@pytest.mark.parametrize(
    ("wanted", "exported", "says"),
    [
        ("_ZN3c104goneEv", (), "`c10::gone` is no longer exported"),
        ("_ZN3c103fooEi", ("_ZN2at3fooEi",), "`c10::foo` is now `at::foo`"),
        ("_ZN3c103fooEib", ("_ZN3c103fooEi",), "`c10::foo` no longer takes `bool`"),
        ("_ZN3c101S3fooEv", ("_ZNK3c101S3fooEv",), "qualifiers changed from `` to `const`"),
        ("_ZTVN3c105ErrorE", (), "`c10::Error` is no longer exported"),
    ],
)
def test_causes_in_words(wanted: str, exported: tuple[str, ...], says: str) -> None:
    (cause,) = compare([("x.so", wanted)], TorchSymbols("9.9.9", None, frozenset(exported)))
    assert says in cause.text


@pytest.mark.parametrize(
    ("symbol", "torch"),
    [
        ("_ZN3c105ErrorC1Ev", True),
        ("_ZNK2at10TensorBase4sizeEl", True),
        ("_ZTIN5torch8autograd4NodeE", True),
        ("aoti_torch_new_tensor_handle", True),
        ("_ZN6fmt_v93fooEv", False),
        ("cublasCreate_v2", False),
        ("_Znwm", False),
    ],
)
def test_whose_symbol_it_is(symbol: str, torch: bool) -> None:
    assert is_torch(symbol) is torch


@pytest.mark.parametrize(
    ("text", "qualified", "template", "parameters"),
    [
        ("at::foo(int, std::map<int, bool> const&)", "at::foo", "", ("int", "std::map<int, bool> const&")),
        ("int const* at::T::ptr<int, 0>() const", "at::T::ptr", "<int, 0>", ()),
        (
            "(anonymous namespace)::f(void (*)(int, int))",
            "(anonymous namespace)::f",
            "",
            ("void (*)(int, int)",),
        ),
        (
            "c10::operator<<(std::ostream&, c10::Device const&)",
            "c10::operator<<",
            "",
            ("std::ostream&", "c10::Device const&"),
        ),
        ("c10::S::operator()(int)", "c10::S::operator()", "", ("int",)),
        ("vtable for c10::Error", "c10::Error", "", None),
        ("c10::detail::flag", "c10::detail::flag", "", None),
    ],
)
def test_signatures(text: str, qualified: str, template: str, parameters: tuple[str, ...] | None) -> None:
    found = parse(text)
    assert (found.qualified, found.template, found.parameters) == (qualified, template, parameters)


@given(st.text(alphabet="ab:<>(), *&operator~[]{}-", max_size=60))
def test_parsing_never_fails(text: str) -> None:
    assert parse(text).text == text


@given(st.text(max_size=80))
def test_demangling_never_fails(text: str) -> None:
    assert isinstance(demangle("_Z" + text.replace("\0", "")), str)


def test_absurdly_many_symbols_are_counted_not_explained() -> None:
    causes = compare([("x.so", f"_ZN3c10{len(f'gone{i}')}gone{i}Ev") for i in range(1000)], TORCH)
    assert sum(len(cause.symbols) for cause in causes) == 1000
    assert any(len(cause.symbols) == 600 for cause in causes)


def test_a_list_survives_the_store(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    path = symbols.save(TORCH, tmp_path / ".cache" / "torch-symbols")
    assert symbols.load(path) == TORCH
    assert symbols.find("2.12.0", layout) == TORCH
    assert symbols.find("2.12.0+cu130", layout) == TORCH
    assert symbols.find(str(path), layout) == TORCH


def test_symbols_of_a_torch_that_the_store_keeps(tmp_path: Path) -> None:
    library = tmp_path / "libtorch.so"
    code = b"void at_empty(void) {}"
    subprocess.run(["cc", "-shared", "-x", "c", "-", "-o", library], input=code, check=True)
    wheel = tmp_path / ".cache/wheels/ab/torch-2.99.0.dev20261101+cu130-cp311-cp311-linux_x86_64.whl"
    wheel.parent.mkdir(parents=True)
    with zipfile.ZipFile(wheel, "w") as made:
        made.writestr("torch/version.py", "__version__ = '2.99.0.dev20261101+cu130'\ncuda = '13.0'\n")
        made.write(library, "torch/lib/libtorch.so")
    found = symbols.find("2.99.0.dev20261101", Layout(tmp_path))
    assert "at_empty" in found.symbols and found.label == "2.99.0.dev20261101+cu130"
    wheel.unlink()
    assert symbols.find("2.99.0.dev20261101", Layout(tmp_path)) == found, "the list was kept"


@pytest.mark.parametrize("text", ["9.9.9", "/nowhere", "torch-9.whl"])
def test_a_torch_that_is_not_there(text: str, tmp_path: Path) -> None:
    with pytest.raises(ToolchainError):
        symbols.find(text, Layout(tmp_path))


@pytest.mark.parametrize("content", [b"", b"\xfd7zXZ", b"plain text"])
def test_a_damaged_list_is_told(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "torch-1.symbols.xz"
    path.write_bytes(content)
    with pytest.raises(ToolchainError, match="symbol list"):
        symbols.load(path)
