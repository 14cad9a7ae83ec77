"""What compilers and CMake print becomes an error that names unit, line and reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from sglwheel.build.buildtree import BuildTree
from sglwheel.build.diagnosis import compile_error, configure_error
from sglwheel.build.progress import Transcript
from sglwheel.errors import BuildError
from sglwheel.process import Completed

TREE = BuildTree(Path("/w/build-1"))
LOG = Path("/w/build.log")
OBJECT = "CMakeFiles/common_ops.dir/csrc/gemm/fp8_gemm_kernel.cu.o"


def failure(*lines: str, output: str = OBJECT) -> BuildError:
    said = Transcript()
    for line in ("[3/107 1.0] Building CXX object CMakeFiles/common_ops.dir/csrc/a.cc.o",
                 f"FAILED: [code=1] {output} ", "/usr/bin/python launch.py nvcc -c x.cu -o x.o",
                 *lines, "ninja: build stopped: subcommand failed."):  # fmt: skip
        said.feed(line)
    return compile_error(said, Completed(("uv",), 1, "", ""), LOG, TREE)


@pytest.mark.parametrize(
    ("line", "place", "message"),
    [
        (
            "/w/build-1/source/csrc/a.cc:12:5: error: 'x' was not declared",
            "csrc/a.cc:12",
            "'x' was not declared",
        ),
        ("/w/build-1/source/a.cc:1:10: fatal error: numa.h: No such file", "a.cc:1", "numa.h: No such file"),
        (
            "\x1b[01m\x1b[K/w/build-1/source/a.cc:7:1:\x1b[m\x1b[K \x1b[01;31m\x1b[Kerror: \x1b[m\x1b[Kbad",
            "a.cc:7",
            "bad",
        ),
        (
            '/w/build-1/source/csrc/k.cu(47): error: identifier "foo" is undefined',
            "csrc/k.cu:47",
            'identifier "foo" is undefined',
        ),
        ("k.cu(9): error #20-D: identifier undefined", "k.cu:9", "identifier undefined"),
        ("k.cu(9): catastrophic error: cannot open source file", "k.cu:9", "cannot open source file"),
        (
            "ptxas fatal   : Value 'sm_999' is not defined",
            "",
            "ptxas fatal   : Value 'sm_999' is not defined",
        ),
        ("nvcc fatal   : Unsupported gpu architecture", "", "nvcc fatal   : Unsupported gpu architecture"),
        ("c++: error: unrecognized option '-foo'", "", "c++: error: unrecognized option '-foo'"),
        (
            "/usr/bin/ld: cannot find -lnuma: No such file",
            "",
            "/usr/bin/ld: cannot find -lnuma: No such file",
        ),
    ],
)
def test_first_real_error(line: str, place: str, message: str) -> None:
    error = failure("In file included from x.h:1:", "a.cc:3:1: warning: unused", line, "1 error generated.")
    assert message in error.what
    assert "csrc/gemm/fp8_gemm_kernel.cu" in error.what
    assert error.where.get("error", "").startswith(place)
    assert error.exit_code == 6 and error.log == LOG


@pytest.mark.parametrize(
    "line",
    [
        "nvcc error   : 'cicc' died due to signal 9 (Kill signal)",
        "c++: fatal error: Killed signal terminated program cc1plus",
        "launch: error: the compiler was killed by SIGKILL",
        "Killed",
        "cc1plus: out of memory allocating 65536 bytes",
    ],
)
def test_a_killed_compiler_is_no_error_in_the_source(line: str) -> None:
    error = failure(line)
    assert "was killed" in error.what and "memory" in error.what
    assert error.where["unit"] == "csrc/gemm/fp8_gemm_kernel.cu"
    assert error.next is not None and "--jobs" in error.next


def test_a_real_error_is_told_before_a_killed_neighbour() -> None:
    said = Transcript()
    for line in (
        "FAILED: [code=137] CMakeFiles/a.dir/a.cu.o",
        "launch: error: the compiler was killed by SIGKILL",
        "FAILED: [code=1] CMakeFiles/b.dir/b.cu.o",
        "b.cu(3): error: expected a declaration",
    ):
        said.feed(line)
    error = compile_error(said, Completed(("uv",), 1, "", ""), LOG, TREE)
    assert "b.cu does not compile: expected a declaration" in error.what
    assert error.where["also failed"] == "a.cu"


def test_linking_is_called_linking() -> None:
    error = failure("x.cu.o: undefined reference to `cuMemMap'", output="common_ops.abi3.so")
    assert "common_ops.abi3.so does not link" in error.what


def test_cmake_error_with_place() -> None:
    said = Transcript()
    for line in (
        "-- Configuring",
        "CMake Error at cmake/architectures.cmake:13 (message):",
        "  SGL_KERNEL_ARCHITECTURES: unknown architecture '12'.  Write it like",
        "  12.0a.",
        "Call Stack (most recent call first):",
        "  CMakeLists.txt:269 (include)",
        "",
        "CMake Error at other.cmake:1 (message):",
    ):
        said.feed(line)
    error = configure_error(said, Completed(("uv",), 1, "", ""), LOG, TREE)
    assert error.where == {"file": "cmake/architectures.cmake:13"}
    assert error.what.endswith("unknown architecture '12'.  Write it like 12.0a.")


def test_an_error_of_no_line_says_what_it_is_about() -> None:
    said = Transcript()
    for line in (
        "CMake Error: The following variables are used in this project, but they are set to NOTFOUND.",
        "Please set them or make sure they are set and tested correctly in the CMake files:",
        "CUDA_nvrtc_LIBRARY (ADVANCED)",
        '    linked by target "ops" in directory /tree',
        "",
        "-- Generating done (0.1s)",
    ):
        said.feed(line)
    error = configure_error(said, Completed(("uv",), 1, "", ""), LOG, TREE)
    assert error.what.endswith('CUDA_nvrtc_LIBRARY (ADVANCED) linked by target "ops" in directory /tree')
    assert not error.where


def test_without_a_known_error_the_last_lines_are_shown() -> None:
    done = Completed(("uv",), 2, "one\n\x1b[31mtwo\x1b[0m\n", "")
    error = configure_error(Transcript(), done, LOG, TREE)
    assert error.where["output"] == "one\ntwo"


def test_counting_follows_ninja() -> None:
    said = Transcript()
    said.feed("[12/107 33.1] Linking CUDA shared library common_ops.abi3.so")
    assert (said.done, said.total) == (12, 107)
