"""The toolchain stage without tools: what is asked for, what is refused, what users read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from packaging.version import Version

from sglwheel import recipe, toolchain
from sglwheel.errors import ToolchainError
from sglwheel.files import Layout
from sglwheel.recipe import KernelRecipe, Recipe
from sglwheel.toolchain import (
    combination,
    cudahome,
    driverstub,
    hermetic,
    host,
    packages,
    preflight,
    probe,
    torchpin,
    uvtool,
)
from sglwheel.types import CudaLine

RECIPE = """
schema = 1
summary = "test"
[source]
git = "https://example.invalid/x.git"
commit = "6ffc74efd7d23627c0245efb61af7f62cde4a970"
directory = "x"
series = "x"
[torch]
version = "{torch}"
cuda = "cu130"
[build]
cuda-toolkit = "13.0"
architectures = ["12.0a", "9.0a"]
{build}
[build.environment]
MY_SWITCH = "1"
[wheel]
build = 1
max-size-mib = 9
[smoke]
imports = ["x"]
"""
HEADER = """
#define cuMemAlloc                          cuMemAlloc_v2
#define cuMemcpyHtoD                        __CUDA_API_PTDS(cuMemcpyHtoD_v2)
#define cuStreamWaitEvent                   __CUDA_API_PTSZ(cuStreamWaitEvent)
#define CU_NOT_A_FUNCTION 7
/* CUresult CUDAAPI cuOnlyInAComment(int x); */
// CUresult CUDAAPI cuAlsoAComment(int x);
CUresult CUDAAPI cuInit(unsigned int Flags);
CUresult CUDAAPI cuMemAlloc(CUdeviceptr *dptr, size_t bytesize);
__CUDA_DEPRECATED CUresult CUDAAPI cuCtxAttach(CUcontext *pctx, unsigned int flags);
CUresult CUDAAPI
cuOverTwoLines(
    int x);
CUresult CUDAAPI cuGetErrorString(CUresult error, const char **pStr);
CUresult CUDAAPI cuGetProcAddress(const char *symbol, void **pfn, int cudaVersion);
static inline CUresult cuGetProcAddress_v2_ptsz(const char *symbol) { return cuGetProcAddress_v2(symbol); }
"""


def make(build: str = "", torch: str = "2.12.0") -> Recipe:
    return recipe.parse(RECIPE.format(build=build, torch=torch).encode(), name="test", path="test.toml")


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path)


@pytest.fixture
def good_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that lacks nothing; tests take single things away."""
    compiler = host.Compiler(Path("/usr/bin/gcc"), Path("/usr/bin/g++"), "g++ 12.2.0")
    monkeypatch.setattr(host, "compiler", lambda: compiler)
    monkeypatch.setattr(host, "git_version", lambda: Version("2.39.0"))
    monkeypatch.setattr(host, "interpreter", lambda _: host.Interpreter(Path("/p"), Version("3.11.7"), True))
    monkeypatch.setattr(host, "numa", lambda _: host.Library("numa", {}))
    monkeypatch.setattr(host, "free_bytes", lambda _: 10**12)
    monkeypatch.setattr(host, "memory_bytes", lambda: 10**11)
    monkeypatch.setattr(host, "distribution", lambda: frozenset({"debian"}))


def test_stub_has_old_new_and_per_thread_names() -> None:
    assert set(driverstub.symbols(HEADER)) == {
        "cuInit",
        "cuMemAlloc",
        "cuMemAlloc_v2",
        "cuMemcpyHtoD_v2",
        "cuMemcpyHtoD_v2_ptds",
        "cuStreamWaitEvent",
        "cuStreamWaitEvent_ptsz",
        "cuCtxAttach",
        "cuOverTwoLines",
        "cuGetErrorString",
        "cuGetProcAddress",
    }


def test_stub_source_defines_each_symbol_once() -> None:
    text = driverstub.source(driverstub.symbols(HEADER))
    for name in driverstub.symbols(HEADER):
        assert text.count(f"int {name}(") == 1


def test_resolve_is_the_recipes_versions() -> None:
    made = make('cmake-version = "4.1.2"')
    versions = toolchain.resolve(made, torchpin.pin(made))
    assert (versions.cmake, versions.torch, versions.cuda) == (
        Version("4.1.2"),
        Version("2.12.0"),
        Version("13.0"),
    )


def test_nightlies_come_from_pytorchs_index() -> None:
    pin = torchpin.pin(make(torch="2.13.0.dev20261101"))
    assert pin.requirement == "torch==2.13.0.dev20261101"
    assert pin.index_url == "https://download.pytorch.org/whl/nightly/cu130"
    assert torchpin.pin(make()).index_url is None


def fake_torch(site: Path, version: str, cuda: str) -> Path:
    (site / "torch").mkdir(parents=True)
    (site / "torch/version.py").write_text(
        "from typing import Optional\n"
        f"__version__ = '{version}'\ncuda: Optional[str] = {cuda}\n"
        "git_version = 'abc'\nhip: Optional[str] = None\n"
    )
    return site


def test_torch_is_read_without_importing_it(tmp_path: Path) -> None:
    torch = torchpin.read(fake_torch(tmp_path, "2.12.0+cu130", "'13.0'"))
    assert (str(torch.version), torch.full_version, torch.cuda, torch.git_version, torch.cxx11_abi) == (
        "2.12.0",
        "2.12.0+cu130",
        "13.0",
        "abc",
        True,
    )
    torchpin.verify(torch, torchpin.pin(make()))


def test_old_abi_is_seen(tmp_path: Path) -> None:
    site = fake_torch(tmp_path, "2.6.0+cu124", "'12.4'")
    config = site / "torch/share/cmake/Torch/TorchConfig.cmake"
    config.parent.mkdir(parents=True)
    config.write_text('set(TORCH_CXX_FLAGS "-D_GLIBCXX_USE_CXX11_ABI=0")\n')
    assert not torchpin.read(site).cxx11_abi


def test_torch_without_cuda_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ToolchainError, match=r"torch 2\.12\.0\+cpu is built without CUDA") as caught:
        torchpin.read(fake_torch(tmp_path, "2.12.0+cpu", "None"))
    assert caught.value.exit_code == 5
    assert "index-url" in (caught.value.next or "")


def test_missing_torch_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ToolchainError, match="no torch"):
        torchpin.read(tmp_path)


def test_torch_of_another_cuda_or_version_names_both(tmp_path: Path) -> None:
    torch = torchpin.read(fake_torch(tmp_path, "2.12.0+cu128", "'12.8'"))
    with pytest.raises(ToolchainError, match=r"CUDA 12\.8, the recipe names cu130"):
        torchpin.verify(torch, torchpin.pin(make()))
    with pytest.raises(ToolchainError, match=r"2\.12\.0\+cu128 is installed, the recipe names 2\.11\.0"):
        torchpin.verify(torch, torchpin.pin(make(torch="2.11.0")))


def test_another_cuda_is_foreseen_before_the_download() -> None:
    pin = torchpin.pin(make(torch="2.10.0"))
    with pytest.raises(
        ToolchainError, match=r"torch 2\.10\.0 is built for CUDA 12\.8, the recipe names cu130"
    ):
        torchpin.foresee(Version("12.8.90"), pin)
    torchpin.foresee(Version("13.0.96"), pin)
    torchpin.foresee(None, pin)


def test_toolkit_of_another_release_names_both() -> None:
    with pytest.raises(
        ToolchainError, match=r"CUDA 12\.9 \(12\.9\.86\), the recipe names cuda-toolkit 13\.0"
    ):
        cudahome.verify(Version("12.9.86"), Version("13.0"), Path("/usr/local/cuda"))
    cudahome.verify(Version("13.0.88"), Version("13.0.2"), Path("/usr/local/cuda"))


def test_cuda_home_without_nvcc_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ToolchainError, match="CUDA_HOME has no bin/nvcc"):
        cudahome.find_system({"CUDA_HOME": str(tmp_path), "PATH": ""})


@pytest.mark.usefixtures("good_host")
def test_a_good_host_lacks_nothing(layout: Layout) -> None:
    made = make('host-libraries = ["numa"]')
    assert preflight.check(made, layout) == ()
    assert preflight.require(made, layout).python.minor == "3.11"


@pytest.mark.usefixtures("good_host")
def test_everything_missing_is_reported_at_once(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "git_version", lambda: Version("2.20.1"))
    monkeypatch.setattr(host, "interpreter", lambda _: host.Interpreter(Path("/p"), Version("3.11.7"), False))
    monkeypatch.setattr(host, "numa", lambda _: None)
    monkeypatch.setattr(host, "free_bytes", lambda _: 3 * 10**9)
    monkeypatch.setattr(host, "memory_bytes", lambda: 8 * 10**9)
    monkeypatch.delenv("NUMA_ROOT_DIR", raising=False)
    made = make('host-libraries = ["numa"]\nlargest-unit-mib = 15000\nbuild-tree-mib = 3000')
    with pytest.raises(ToolchainError, match="this host lacks 5 things that test needs") as caught:
        preflight.require(made, layout)
    where = caught.value.where
    assert list(where) == ["git", "disk", "Python headers", "libnuma headers", "memory"]
    assert "apt-get install libnuma-dev" in where["libnuma headers"]
    assert "NUMA_ROOT_DIR" in where["libnuma headers"]
    assert "3.0 GB are free" in where["disk"]
    assert "15.7 GB" in where["memory"]


@pytest.mark.usefixtures("good_host")
@pytest.mark.parametrize(
    ("place", "shown"),
    [("a b", "space"), ("a,b", ","), ("a;b", ";"), ("a'b", "'"), ("a(b) c", "( ) space"), ("a\tb", r"\t")],
)
def test_a_path_that_compilers_would_split_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, shown: str
) -> None:
    with pytest.raises(ToolchainError) as caught:
        preflight.require(make(), Layout(tmp_path / place / "checkout"))
    assert caught.value.where["path of the checkout"].split(" at: ")[1] == f"{shown}\nmove the checkout"
    monkeypatch.setenv("SGLWHEEL_CACHE", str(tmp_path / place))
    (problem,) = preflight.check(make(), Layout(tmp_path))
    assert (problem.subject, "SGLWHEEL_CACHE=" in problem.remedy) == ("path of the caches", True)


@pytest.mark.usefixtures("good_host")
@pytest.mark.parametrize("place", ["ünï", "a+b@c~d%e", "a=b", "a-b_c.d"])
def test_a_path_that_comes_out_as_one_word_will_do(tmp_path: Path, place: str) -> None:
    assert preflight.check(make(), Layout(tmp_path / place)) == ()


@pytest.mark.usefixtures("good_host")
def test_disk_counts_what_is_already_there(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "free_bytes", lambda _: 2 * 10**9)
    assert [problem.subject for problem in preflight.check(make(), layout)] == ["disk"]
    for kind, version in (("envs", "2.12.0"), ("toolkits", "13.0.88")):
        marker = layout.cache / kind / "0" / "complete.json"
        marker.parent.mkdir(parents=True)
        marker.write_text(f'{{"name": "torch", "version": "{version}"}}')
    assert preflight.check(make(), layout) == ()


@pytest.mark.usefixtures("good_host")
@pytest.mark.parametrize(
    ("ids", "command"),
    [
        ({"ubuntu", "debian"}, "apt-get install libnuma-dev"),
        ({"rocky", "rhel", "fedora"}, "dnf install numactl-devel"),
        ({"arch"}, "pacman -S numactl"),
        ({"alpine"}, "apk add numactl-dev"),
        ({"opensuse-leap", "suse"}, "zypper install libnuma-devel"),
    ],
)
def test_the_package_is_this_distributions(
    layout: Layout, monkeypatch: pytest.MonkeyPatch, ids: set[str], command: str
) -> None:
    monkeypatch.setattr(host, "numa", lambda _: None)
    monkeypatch.setattr(host, "distribution", lambda: frozenset(ids))
    (problem,) = preflight.check(make('host-libraries = ["numa"]'), layout)
    assert problem.remedy.splitlines()[0] == command


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("#error -- unsupported GNU version! gcc versions later than 15 are not supported!", "CXX=g++-14"),
        (
            'error: exception specification is incompatible with that of previous function "cospi"',
            "glibc 2.41",
        ),
        ('error: identifier "__SVFloat64_t" is undefined', "SVE"),
        ("nvcc fatal   : Unsupported gpu architecture 'compute_120a'", "build.cuda-toolkit"),
    ],
)
def test_known_failures_of_the_probe_have_a_remedy(text: str, advice: str) -> None:
    assert advice in (probe.remedy(text) or "")


def test_only_where_packages_come_from_is_the_users_to_say(monkeypatch: pytest.MonkeyPatch) -> None:
    for key in ("PIP_INDEX_URL", "UV_CONSTRAINT", "UV_PRERELEASE", "PYTHONPATH", "VIRTUAL_ENV", "UV_PYTHON"):
        monkeypatch.setenv(key, "x")
    monkeypatch.setenv("UV_DEFAULT_INDEX", "https://mirror.invalid/simple")
    environment = uvtool.environment()
    assert "x" not in {environment.get(key) for key in ("PIP_INDEX_URL", "UV_CONSTRAINT", "UV_PRERELEASE")}
    assert not {"PYTHONPATH", "VIRTUAL_ENV", "UV_PYTHON"} & environment.keys()
    assert environment["UV_DEFAULT_INDEX"] == "https://mirror.invalid/simple"
    assert uvtool.has_own_index()


LOCK = """
lock-version = "1.0"
created-by = "uv"
[[packages]]
name = "a"
version = "1.0"
marker = "python_full_version < '3.12'"
wheels = [{{ url = "https://x.invalid/a-1.0-py3-none-any.whl", hashes = {{ sha256 = "{one}" }} }}]
[[packages]]
name = "a"
version = "2.0"
marker = "python_full_version >= '3.12'"
wheels = [
    {{ url = "file:///a-2.0-cp312-cp312-manylinux_2_28_x86_64.whl", hashes = {{ sha256 = "{two}" }} }},
    {{ url = "file:///a-2.0-cp312-cp312-manylinux_2_28_aarch64.whl", hashes = {{ sha256 = "{three}" }} }},
]
"""
ONE, TWO, THREE = ("1" * 64, "2" * 64, "3" * 64)


def test_lock_becomes_hash_checked_requirements(tmp_path: Path) -> None:
    path = tmp_path / "pylock.x.toml"
    text = LOCK.format(one=ONE, two=TWO, three=THREE)
    path.write_text(text + '[tool.sglwheel]\nrequirements = ["a"]\n')
    lock = packages.read(path)
    assert lock is not None and lock.requirements == ("a",)
    assert lock.text() == (
        f'a==1.0 ; python_full_version < "3.12" \\\n    --hash=sha256:{ONE}\n'
        f'a==2.0 ; python_full_version >= "3.12" \\\n    --hash=sha256:{TWO} \\\n    --hash=sha256:{THREE}\n'
    )
    assert lock.version("a", "b") == Version("2.0")
    assert lock.version("b") is None
    tags = frozenset({"cp312-cp312-manylinux_2_28_aarch64"})
    assert lock.sha256("a", Version("2.0"), tags) == THREE


def test_a_lock_that_is_not_ours_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "pylock.x.toml"
    assert packages.read(path) is None
    path.write_text(LOCK.format(one=ONE, two=TWO, three=THREE))
    with pytest.raises(ToolchainError, match="not a lock that we wrote") as caught:
        packages.read(path)
    assert caught.value.next == "delete pylock.x.toml: the next build writes it again"


def test_the_builds_environment_is_complete_and_nobody_elses(
    layout: Layout, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LD_PRELOAD", "/evil.so")
    home = tmp_path / "cuda"
    cuda = cudahome.CudaHome(home, Version("13.0.88"), "Build x", home / "lib64/stubs")
    compiler = host.Compiler(Path("/opt/gcc/bin/gcc"), Path("/opt/gcc/bin/g++"), "g++ 12.2.0")
    environment = hermetic.clean_environment(make(), layout, tmp_path / "env/bin", cuda, compiler)
    assert environment["PATH"].split(":") == [
        str(tmp_path / "env/bin"),
        str(home / "bin"),
        "/opt/gcc/bin",
        "/usr/bin",
        "/bin",
    ]
    assert environment["TORCH_CUDA_ARCH_LIST"] == "12.0a;9.0a"
    assert environment["MY_SWITCH"] == "1"
    assert "LD_PRELOAD" not in environment and "LIBRARY_PATH" not in environment
    assert Path(environment["HOME"]).is_dir() and Path(environment["TMPDIR"]).is_dir()
    outside = hermetic.clean_environment(
        make(), layout, tmp_path / "env/bin", replace(cuda, stub=tmp_path / "stubs/1"), compiler
    )
    assert outside["LIBRARY_PATH"] == outside["CMAKE_LIBRARY_PATH"] == str(tmp_path / "stubs/1")


def test_what_does_not_compile_does_not_change_the_identity(tmp_path: Path) -> None:
    made = make()
    torch = torchpin.InstalledTorch(
        Version("2.12.0"), "2.12.0+cu130", "13.0", "abc", tmp_path, "0" * 64, True
    )
    cuda = cudahome.CudaHome(tmp_path, Version("13.0.88"), "Build x", tmp_path)
    found = preflight.Host(
        host.Compiler(Path("gcc"), Path("g++"), "g++ 12.2.0"),
        host.Interpreter(Path("python"), Version("3.11.7"), True),
        {},
    )

    def identity(*names: str, compiler: str = "g++ 12.2.0") -> str:
        every = tuple(packages.Package(name, Version("1"), None) for name in names)
        other = replace(found, compiler=replace(found.compiler, description=compiler))
        return hermetic.identity(made, torch, cuda, other, every)

    assert identity("torch", "sympy") == identity("torch")
    assert identity("torch", "nvidia-cuda-nvcc") != identity("torch")
    assert identity("torch", compiler="g++ 13.1.0") != identity("torch")


def test_pins_of_cuda_lines_parse() -> None:
    assert torchpin.pin(make()).cuda == CudaLine(13, 0)


@pytest.mark.parametrize(
    ("toolkit", "architecture", "line", "reason"),
    [
        ("12.9", "12.0a", "cu130", "12.9 beside a torch for CUDA 13.0"),
        ("12.8", "12.1a", "cu128", "CUDA 12.9 and newer have it"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_fetched(
    toolkit: str, architecture: str, line: str, reason: str
) -> None:
    text = RECIPE.format(torch="2.12.0", build="").replace('["12.0a", "9.0a"]', f'["{architecture}"]')
    text = text.replace('cuda-toolkit = "13.0"', f'cuda-toolkit = "{toolkit}"').replace("cu130", line)
    made = recipe.parse(text.encode(), name="test", path="test.toml")
    assert isinstance(made, KernelRecipe)
    with pytest.raises(ToolchainError, match="do not go together") as caught:
        combination.require(made, torchpin.pin(made))
    assert reason in str(caught.value.where)


def test_a_newer_toolkit_beside_torch_is_no_trouble() -> None:
    made = make()
    newer = made.model_copy(update={"build": made.build.model_copy(update={"cuda_toolkit": Version("13.5")})})
    combination.require(newer, torchpin.pin(newer))
