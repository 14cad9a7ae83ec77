"""The toolchain stage with real compilers, on toolkits and environments of our own making."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from packaging.version import Version

from sglwheel import recipe, toolchain
from sglwheel.errors import ToolchainError
from sglwheel.files import Layout
from sglwheel.toolchain import (
    cudahome,
    driverstub,
    environments,
    hermetic,
    host,
    hosttoolkit,
    preflight,
    probe,
    torchpin,
)
from toolworld import fake_toolkit, make

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Layout:
    monkeypatch.delenv("SGLWHEEL_CACHE", raising=False)
    monkeypatch.delenv("NUMA_ROOT_DIR", raising=False)
    monkeypatch.setattr(host, "free_bytes", lambda _: 10**12)
    return Layout(tmp_path / "checkout")


@pytest.fixture
def compiler() -> Iterator[host.Compiler]:
    found = host.compiler()
    assert found is not None, "these tests need a C++ compiler"
    yield found


def tags(path: Path, kind: str) -> list[str]:
    with path.open("rb") as stream:
        section = ELFFile(stream).get_section_by_name(".dynamic")
        assert isinstance(section, DynamicSection)
        attribute = {"DT_NEEDED": "needed", "DT_SONAME": "soname"}[kind]
        return [getattr(tag, attribute) for tag in section.iter_tags(kind)]


def exports(path: Path) -> set[str]:
    with path.open("rb") as stream:
        table = ELFFile(stream).get_section_by_name(".dynsym")
        return {symbol.name for symbol in table.iter_symbols() if symbol["st_shndx"] != "SHN_UNDEF"}


def test_stub_defines_the_drivers_symbols(tmp_path: Path, compiler: host.Compiler) -> None:
    library = driverstub.build_stub(fake_toolkit(tmp_path / "cuda"), tmp_path / "stubs", cc=compiler.cc)
    assert {"cuInit", "cuMemFree", "cuMemFree_v2", "cuGetErrorString", "cuGetProcAddress"} <= exports(library)
    assert tags(library, "DT_SONAME") == ["libcuda.so.1"]
    assert tags(library, "DT_NEEDED") == []
    assert (library.parent / "libcuda.so.1").resolve() == library


def test_what_links_against_the_stub_needs_a_driver(tmp_path: Path, compiler: host.Compiler) -> None:
    library = driverstub.build_stub(fake_toolkit(tmp_path / "cuda"), tmp_path / "stubs", cc=compiler.cc)
    code = tmp_path / "user.c"
    code.write_text("int cuMemFree_v2(unsigned long long); int use(void) { return cuMemFree_v2(0); }\n")
    user = tmp_path / "libuser.so"
    subprocess.run(
        [
            compiler.cc,
            "-shared",
            "-fPIC",
            "-Wl,--as-needed",
            "-o",
            user,
            code,
            f"-L{library.parent}",
            "-lcuda",
        ],
        check=True,
    )
    assert "libcuda.so.1" in tags(user, "DT_NEEDED")


def test_stub_says_that_it_is_one(tmp_path: Path, compiler: host.Compiler) -> None:
    library = driverstub.build_stub(fake_toolkit(tmp_path / "cuda"), tmp_path / "stubs", cc=compiler.cc)
    # In a process of its own: once loaded, it would be this process's driver for every later test.
    asked = """
import ctypes, sys
stub, text = ctypes.CDLL(sys.argv[1]), ctypes.c_char_p()
print(stub.cuInit(0), stub.cuGetProcAddress(b"cuInit", None, 13000))
print(stub.cuGetErrorString(34, ctypes.byref(text)), text.value.decode())
"""
    said = subprocess.run(
        [sys.executable, "-c", asked, library], check=True, capture_output=True, text=True
    ).stdout
    assert said.splitlines() == ["34 34", "34 no CUDA driver: this is a stub"]


def test_stub_needs_a_real_header(tmp_path: Path, compiler: host.Compiler) -> None:
    with pytest.raises(ToolchainError, match=r"no cuda\.h"):
        driverstub.build_stub(tmp_path, tmp_path / "stubs", cc=compiler.cc)
    (tmp_path / "include").mkdir()
    (tmp_path / "include/cuda.h").write_text("/* nothing */\n")
    with pytest.raises(ToolchainError, match="declares no driver functions"):
        driverstub.build_stub(tmp_path, tmp_path / "stubs", cc=compiler.cc)


@pytest.mark.parametrize("parts", [("cu13",), ("cuda_nvcc", "cuda_runtime")], ids=["cuda-13", "cuda-12"])
def test_wheels_become_a_cuda_home(tmp_path: Path, parts: tuple[str, ...]) -> None:
    compiling = tmp_path / "site/nvidia" / parts[0]
    running = tmp_path / "site/nvidia" / parts[-1]
    for path, name in (
        (compiling, "bin/nvcc"),
        (compiling, "bin/nvcc.profile"),
        (compiling, "nvvm/bin/cicc"),
        (running, "include/cuda_runtime.h"),
        (running, "include/__init__.py"),
        (running, "lib/libcudart.so.13"),
        (running, "lib/libcudart_static.a"),
        (running, "lib/libnvrtc-builtins.so.13.0"),
    ):
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(name)
    home = tmp_path / "cuda"
    cudahome.assemble(tmp_path / "site", home)
    assert not (home / "bin/nvcc").is_symlink()
    assert (home / "bin/nvcc").stat().st_ino == (compiling / "bin/nvcc").stat().st_ino
    assert (home / "bin/nvcc").stat().st_mode & 0o111
    assert (home / "nvvm/bin/cicc").stat().st_mode & 0o111
    assert (home / "lib64/libcudart.so").readlink() == Path("libcudart.so.13")
    assert (home / "lib64/libnvrtc-builtins.so").exists()
    assert (home / "lib/libcudart_static.a").exists()
    assert not (home / "include/__init__.py").exists()


def test_wheels_without_nvcc_are_no_toolkit(tmp_path: Path) -> None:
    (tmp_path / "site/nvidia/cu13/include").mkdir(parents=True)
    with pytest.raises(ToolchainError, match="hold no nvcc"):
        cudahome.assemble(tmp_path / "site", tmp_path / "cuda")


def test_the_hosts_toolkit_gets_a_stub_of_ours(
    layout: Layout, tmp_path: Path, compiler: host.Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = fake_toolkit(tmp_path / "host cuda")
    monkeypatch.setenv("CUDA_HOME", str(home))
    found = cudahome.system(layout, Version("13.0"), cc=compiler.cc)
    assert (found.path, found.nvcc_version) == (home, Version("13.0.88"))
    assert found.stub.is_relative_to(layout.cache)
    assert (found.stub / "libcuda.so.1").exists()
    assert cudahome.system(layout, Version("13.0"), cc=compiler.cc) == found
    environment = hermetic.clean_environment(make(), layout, tmp_path / "bin", found, compiler)
    assert environment["LIBRARY_PATH"] == str(found.stub)


def test_the_hosts_toolkit_of_another_release_is_refused(
    layout: Layout, tmp_path: Path, compiler: host.Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_HOME", str(fake_toolkit(tmp_path / "cuda", release="12.9")))
    with pytest.raises(
        ToolchainError, match=r"CUDA 12\.9 \(12\.9\.88\), the recipe names cuda-toolkit 13\.0"
    ):
        cudahome.system(layout, Version("13.0"), cc=compiler.cc)


def test_a_toolkit_without_its_libraries_is_refused_before_anything_is_fetched(
    layout: Layout, tmp_path: Path, compiler: host.Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = fake_toolkit(tmp_path / "cuda")
    monkeypatch.setenv("CUDA_HOME", str(home))
    monkeypatch.setattr(host, "distribution", lambda: frozenset({"rocky", "rhel"}))
    system = make('provider = "system"')
    assert hosttoolkit.find(system, layout, compiler).path == home
    (home / "include/cusparse.h").unlink()
    (home / "lib64/libnvrtc.so").unlink()
    with pytest.raises(ToolchainError, match="lacks 2 files") as caught:
        toolchain.prepare(system, torchpin.pin(system), layout)
    assert caught.value.where == {"toolkit": str(home), "missing": "cusparse.h, libnvrtc.so"}
    assert (caught.value.next or "").startswith("dnf install cuda-libraries-devel-13-0;")
    assert not (layout.cache / "envs").exists()


def test_no_compiler_on_path(layout: Layout, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolchainError) as caught:
        toolchain.prepare(make(), torchpin.pin(make()), layout)
    assert caught.value.exit_code == 5
    assert {"C++ compiler", "git"} <= caught.value.where.keys()
    assert "g++" in caught.value.where["C++ compiler"]
    assert not layout.cache.exists()


def test_a_compiler_that_is_not_there_is_named(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "g++-99")
    (problem,) = preflight.check(make(), layout)
    assert (problem.subject, problem.detail) == ("C++ compiler", "CXX=g++-99 is not there")


def test_too_little_disk(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "free_bytes", lambda _: 10**9)
    with pytest.raises(ToolchainError, match="lacks 1 thing") as caught:
        toolchain.prepare(make(), torchpin.pin(make()), layout)
    assert caught.value.exit_code == 5
    assert "1.0 GB are free" in caught.value.where["disk"]


def test_unpacked_numa_headers_are_found(
    tmp_path: Path, compiler: host.Compiler, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "numa"
    libraries = root / "usr/lib/x86_64-linux-gnu"
    (root / "usr/include").mkdir(parents=True)
    libraries.mkdir(parents=True)
    (root / "usr/include/numa.h").write_text("int numa_available(void);\n")
    (libraries / "libnuma.so").symlink_to("libnuma.so.1")
    monkeypatch.setenv("NUMA_ROOT_DIR", str(root))
    made = make('host-libraries = ["numa"]')
    (problem,) = preflight.check(made, layout)
    assert "NUMA_ROOT_DIR" in problem.detail
    (libraries / "libnuma.so.1").write_bytes(b"")
    assert preflight.require(made, layout).cmake == {
        "NUMA_ROOT_DIR": str(root),
        "NUMA_INCLUDE_DIR": str(root / "usr/include"),
        "NUMA_LIB_DIR": str(libraries),
    }


def test_a_probe_that_fails_says_what_to_do(tmp_path: Path, layout: Layout, compiler: host.Compiler) -> None:
    home = fake_toolkit(tmp_path / "cuda", says="#error -- unsupported GNU version! gcc is too new", status=1)
    made = make()
    with pytest.raises(ToolchainError, match="cannot compile five lines") as caught:
        probe.compile_probe(
            home / "bin/nvcc", compiler, made.build.architectures, {"PATH": "/usr/bin:/bin"}, layout
        )
    assert "unsupported GNU version" in caught.value.where["says"]
    assert "CXX=g++-14" in (caught.value.next or "")


def test_a_compiler_that_links_its_own_runtime_is_refused(
    tmp_path: Path, layout: Layout, compiler: host.Compiler
) -> None:
    static = tmp_path / "g++"
    static.write_text(f'#!/bin/sh\nexec {compiler.cxx} -static-libstdc++ "$@"\n')
    static.chmod(0o755)
    home = fake_toolkit(tmp_path / "cuda")
    with pytest.raises(ToolchainError, match="without the shared libstdc") as caught:
        probe.compile_probe(
            home / "bin/nvcc",
            replace(compiler, cxx=static),
            make().build.architectures,
            {"PATH": "/usr/bin:/bin"},
            layout,
        )
    assert str(static) in caught.value.where["compiler"]
    assert not list((layout.cache / "probes").glob("[0-9a-f]*"))


def test_a_probe_that_passes_is_not_repeated(tmp_path: Path, layout: Layout, compiler: host.Compiler) -> None:
    home = fake_toolkit(tmp_path / "cuda")
    for _ in range(2):
        probe.compile_probe(
            home / "bin/nvcc", compiler, make().build.architectures, {"PATH": "/usr/bin:/bin"}, layout
        )
    assert len([path for path in (layout.cache / "probes").iterdir() if path.name != "CACHEDIR.TAG"]) == 1


def test_an_environment_that_was_interrupted_is_made_anew(tmp_path: Path) -> None:
    root = tmp_path / "envs/1"
    with pytest.raises(RuntimeError), environments.made(root, needs=root / "python") as data:
        assert data == {}
        root.mkdir()
        (root / "half").touch()
        raise RuntimeError
    with environments.made(root, needs=root / "python") as data:
        assert data == {}
        assert not (root / "half").exists()
        root.mkdir()
        (root / "python").touch()
        data["packages"] = []
    with environments.made(root, needs=root / "python") as data:
        assert data == {"packages": []}
    (root / "python").unlink()
    with environments.made(root, needs=root / "python") as data:
        assert data == {}, "its interpreter went away"


@pytest.fixture(scope="module")
def prepared() -> toolchain.BuildEnv:
    """The sample recipe's environment, when a build has made it: tests download no gigabytes."""
    layout = Layout(ROOT)
    made = recipe.load(layout, "sample")
    if not list((layout.cache / "envs").glob("*/complete.json")):
        pytest.skip("no build environment yet: run nox -s build-sample")
    return toolchain.prepare(made, torchpin.pin(made), layout)


def test_the_real_toolkit_is_the_one_that_torch_runs_with(prepared: toolchain.BuildEnv) -> None:
    assert prepared.nvcc_version.release[:2] == (13, 0)
    assert prepared.torch.cuda == "13.0"
    assert [package.name for package in prepared.packages].count("nvidia-cublas") == 1
    assert all(package.sha256 for package in prepared.packages)
    assert len(exports(prepared.stub / "libcuda.so") - {""}) > 500
    assert (prepared.cuda_home / "lib64/libcudart_static.a").is_file()


def test_preparing_again_makes_nothing(prepared: toolchain.BuildEnv) -> None:
    made = recipe.load(Layout(ROOT), "sample")
    assert toolchain.prepare(made, torchpin.pin(made), Layout(ROOT)).identity == prepared.identity


def test_an_interpreter_that_no_host_has_is_named(layout: Layout) -> None:
    made = make('python = "3.99"')
    (problem,) = preflight.check(made, layout)
    assert problem.subject == "Python"
    assert "3.99" in problem.detail and "uv python install 3.99" in problem.remedy
