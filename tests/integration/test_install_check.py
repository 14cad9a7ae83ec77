"""The tool's own install check, and the program that nodes run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sglwheel import recipe
from sglwheel.errors import WheelhouseError
from sglwheel.files import Layout
from sglwheel.nodecheck.needs import applies, meets
from sglwheel.wheelhouse import Lines, Release, Wheelhouse, install_check, pointers, publish
from sglwheel.wheelhouse.nodekit import Kit
from sglwheel.wheelhouse.settle import settle
from wheelworld import UV, Environment, http_directory, make_kernel, make_torch, make_wheel, reports

pytestmark = pytest.mark.integration

CHECKOUT = Layout(Path(__file__).parents[2])
PROVENANCE = {"recipe": {"id": "cu130"}, "flags": {"architectures": ["12.0a"]}}


@dataclass(frozen=True)
class World:
    root: Path
    layout: Layout
    release: Release
    torch: dict[str, Path]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    root = tmp_path_factory.mktemp("world")
    layout = Layout(root / "checkout")
    torch = {version: make_torch(root / "dist", version) for version in ("2.11.0", "2.12.0+cu130")}
    release = publish(*reports(make_kernel(root / "dist", provenance=PROVENANCE), gpu=True), layout)
    older = make_kernel(
        root / "dist", "0.3.21+cu130.torch2.11.0.sm120a.1", torch="2.11.0", provenance=PROVENANCE
    )
    publish(*reports(older, gpu=True, requires="torch==2.11.0"), layout)
    return World(root, layout, release, torch)


def offline(*wheels: Path) -> list[str]:
    return ["--offline", "--no-index", "--no-deps", *map(str, wheels)]


def test_the_printed_line_is_proven(world: World) -> None:
    report = install_check(world.release, world.layout, torch=offline(world.torch["2.12.0+cu130"]))
    assert report.demand() is report
    assert report.line == world.release.install_line
    assert [check.name for check in report.checks] == [
        "line",
        "only-this-wheel",
        "published-bytes",
        "installed-bytes",
        "import sgl_kernel",
        "node-check",
        "torch-unchanged",
    ]
    assert not report.environment.exists()


def test_a_build_without_network_proves_it_too(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("OFFLINE", "1"), ("NO_INDEX", "1"), ("FIND_LINKS", str(world.root / "dist"))):
        monkeypatch.setenv(f"UV_{name}", value)
    report = install_check(world.release, world.layout, torch=("--no-deps", "torch==2.12.0+cu130"))
    assert report.demand().ok


def test_the_other_torch_is_refused_and_left_alone(world: World) -> None:
    report = install_check(world.release, world.layout, torch=offline(world.torch["2.11.0"]))
    failed = {check.name: check.detail for check in report.checks if check.status == "failed"}
    assert failed.keys() == {"line"}
    assert "torch==2.12.0" in failed["line"]
    assert "torch==2.11.0" in failed["line"]
    with pytest.raises(WheelhouseError, match="does not install") as caught:
        report.demand()
    assert caught.value.exit_code == 9
    assert caught.value.where.keys() == {"line", "printed line", "environment"}
    assert "torch==2.11.0" in caught.value.where["line"], "what uv says"


def test_an_environment_can_be_reused_and_the_wheelhouse_served(world: World, tmp_path: Path) -> None:
    node = Environment(tmp_path / "venv", wheels=[world.torch["2.12.0+cu130"]], cache=tmp_path / "cache")
    with http_directory(world.release.root) as (url, _):
        for _ in range(2):
            install_check(world.release, world.layout, environment=node.path, location=url).demand()
    assert node.path.is_dir()


def test_a_wheel_that_does_not_import_or_was_swapped_is_caught(world: World, tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    broken = publish(*reports(make_kernel(tmp_path / "dist", content="import nothing_like_it\n")), layout)
    report = install_check(broken, layout, torch=offline(world.torch["2.12.0+cu130"]))
    failed = {check.name: check.detail for check in report.checks if check.status == "failed"}
    assert "nothing_like_it" in failed["import sgl_kernel"]
    other = make_kernel(tmp_path / "other", content="import torch.version\n")
    broken.path.unlink()
    shutil.copy(other, broken.path)
    report = install_check(broken, layout, torch=offline(world.torch["2.12.0+cu130"]))
    assert "published-bytes" in {check.name for check in report.checks if check.status == "failed"}


def test_variables_reach_the_import(world: World, tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    wheel = make_kernel(tmp_path / "dist", content="import os\nassert os.environ['LD_PRELOAD'] == ''\n")
    release = publish(*reports(wheel), layout)
    install_check(
        release, layout, torch=offline(world.torch["2.12.0+cu130"]), variables={"LD_PRELOAD": ""}
    ).demand()


# The program for nodes.

SMI = """#!/bin/sh
echo "{gpu}, {capability}, {driver}"
"""


class Node(Environment):
    """An environment with a GPU, as far as nvidia-smi goes."""

    def gpu(self, name: str, capability: str, driver: str = "580.65.06") -> None:
        path = self.path / "bin/nvidia-smi"
        path.write_text(SMI.format(gpu=name, capability=capability, driver=driver))
        path.chmod(0o755)

    def check(self, wheelhouse: Path | str, verb: str, *words: str) -> dict[str, Any]:
        program = str(self.path.parent / "install-check.pyz")
        if not str(wheelhouse).startswith("http"):
            shutil.copy(Path(wheelhouse) / "install-check.pyz", program)
        argv = [str(self.python), program, verb, "--wheelhouse", str(wheelhouse), "--json", *words]
        done = self.run(argv, ok=False)
        assert done.returncode in (0, 9), done.stderr
        value: dict[str, Any] = json.loads(done.stdout)
        assert value["ok"] == (done.returncode == 0)
        value["by"] = {item["name"]: (item["status"], item["detail"]) for item in value["results"]}
        return value


@pytest.fixture
def node(world: World, tmp_path: Path) -> Node:
    node = Node(tmp_path / "venv", wheels=[world.torch["2.12.0+cu130"]], cache=tmp_path / "cache")
    node.gpu("NVIDIA RTX PRO 6000", "12.0")
    return node


def test_a_node_is_told_which_release_is_right_and_that_it_got_it(world: World, node: Node) -> None:
    root = world.release.root
    before = node.check(root, "before")
    assert before["ok"], before
    assert before["release"] == world.release.id
    assert before["line"] == world.release.install_line
    assert before["by"]["gpu"] == ("passed", "NVIDIA RTX PRO 6000, 12.0")
    node.shell(before["line"])
    after = node.check(root, "after")
    assert after["ok"], after
    assert after["by"]["contents"][0] == after["by"]["torch"][0] == after["by"]["import"][0] == "passed"


@pytest.mark.parametrize(
    ("gpu", "capability", "driver", "rule", "said"),
    [
        ("NVIDIA GB10", "12.1", "580.1", "gpu", "NVIDIA GB10 is 12.1, wheel has code for 12.0a"),
        ("NVIDIA H100", "9.0", "580.1", "gpu", "NVIDIA H100 is 9.0"),
        ("NVIDIA RTX 5090", "12.0", "550.54", "driver", "550.54, CUDA 13 needs 580 or newer"),
    ],
)
def test_a_node_that_does_not_fit_is_told_why(
    world: World, node: Node, gpu: str, capability: str, driver: str, rule: str, said: str
) -> None:
    node.gpu(gpu, capability, driver)
    before = node.check(world.release.root, "before")
    assert not before["ok"]
    assert before["line"] is None
    assert before["by"][rule][0] == "failed"
    assert said in before["by"][rule][1]


def test_before_every_start_gpu_and_driver_are_looked_at_too(world: World, node: Node) -> None:
    root = world.release.root
    node.shell(node.check(root, "before")["line"])
    assert node.check(root, "start")["ok"]
    # The card was swapped after installing: the wheel is still ours, and has no code for this one.
    node.gpu("NVIDIA H100", "9.0")
    assert node.check(root, "after")["ok"]
    start = node.check(root, "start")
    assert {name for name, (status, _) in start["by"].items() if status == "failed"} == {"gpu"}


def test_a_node_without_torch_or_with_another_cuda_is_told(world: World, tmp_path: Path) -> None:
    bare = Node(tmp_path / "bare", cache=tmp_path / "cache")
    assert bare.check(world.release.root, "before")["by"]["torch"][1].startswith("none is installed")
    other = make_torch(tmp_path, "2.12.0", cuda="12.8")
    node = Node(tmp_path / "other", wheels=[other], cache=tmp_path / "cache")
    before = node.check(world.release.root, "before")
    assert before["by"]["cuda"] == ("failed", "torch is for 12.8, wheel needs 13.0")


def test_the_other_distribution_name_is_replaced_by_the_line(
    world: World, node: Node, tmp_path: Path
) -> None:
    root = world.release.root
    other = make_kernel(tmp_path / "dist", "0.4.0", name="sglang-kernel")
    node.run([UV, "pip", "install", *offline(other)])
    before = node.check(root, "before")
    assert before["by"]["rival"] == (
        "passed",
        "sglang-kernel 0.4.0 owns the same files: the line replaces it",
    )
    node.shell(world.release.install_line)
    assert node.check(root, "after")["by"]["rival"][0] == "failed", "the plain line leaves both"
    node.shell(before["line"])
    assert node.check(root, "after")["ok"]
    assert "sglang-kernel" not in node.packages()


@pytest.mark.parametrize("client", ["uv", "pip"])
def test_a_torch_whose_own_requirements_are_not_there_gets_a_line_that_works(
    world: World, client: str, tmp_path: Path
) -> None:
    """As in images that upgraded setuptools, or installed torch with --no-deps."""
    needs = ["filelock", "setuptools<82", "triton==3.7.0; platform_system == 'Linux'", "x; extra == 'y'"]
    torch = make_torch(tmp_path / "dist", "2.12.0", requires=needs)
    others = [make_wheel(tmp_path / "dist", *pair) for pair in (("setuptools", "84.2"), ("triton", "3.7.0"))]
    node = Node(tmp_path / "venv", wheels=[torch, *others], cache=tmp_path / "cache")
    if client == "pip":
        subprocess.run([UV, "pip", "install", "-q", "--target", tmp_path / "pip", "pip==26.3"], check=True)
        node.variables["PYTHONPATH"] = str(tmp_path / "pip")
        node.variables["PATH"] = f"{node.path / 'bin'}:/usr/bin:/bin"
    lines = Lines(world.release.record, str(world.release.root))
    refused = node.shell(lines.uv if client == "uv" else lines.pip, ok=False)
    assert refused.returncode != 0
    assert "filelock" in refused.stdout + refused.stderr or "setuptools<82" in refused.stderr
    before = node.check(world.release.root, "before")
    assert before["by"]["needs"] == (
        "unknown",
        "torch's own are not all here: filelock is missing, setuptools is 84.2, wanted is <82; "
        "so the line leaves them alone (--no-deps)",
    )
    assert before["line"].startswith("uv pip" if client == "uv" else "python -m pip")
    node.shell(before["line"])
    assert node.check(world.release.root, "after")["ok"]
    node.run([UV, "pip", "install", *offline(make_wheel(tmp_path / "more", "filelock", "3"))])
    node.run([UV, "pip", "install", *offline(make_wheel(tmp_path / "more", "setuptools", "81.0"))])
    assert "needs" not in node.check(world.release.root, "before")["by"]
    node.shell(lines.uv if client == "uv" else lines.pip)


@pytest.mark.parametrize(
    ("version", "specifiers", "met"),
    [
        ("84.2.1", "<82", False),
        ("81.0", "<82", True),
        ("13.0.2", "==13.0.2", True),
        ("13.0", "==13.0.0", True),
        ("13.1.1.2", "<=13.1.1.3,>=13.1.0.3", True),
        ("4.9", ">=4.10.0", False),
        ("3.7.0+git1", "==3.7.0", True),
        ("1.0", "~=2.0", True),
        ("1.0", "", True),
    ],
)
def test_numbers_judge_versions_as_installers_do(version: str, specifiers: str, met: bool) -> None:
    assert meets(version, specifiers) is met


def test_markers_that_cannot_be_judged_ask_for_nothing() -> None:
    assert applies("")
    assert applies(' platform_system == "Linux" and python_version >= "3.10"')
    assert not applies("python_version >= '4'")
    assert not applies("extra == 'cuda'")
    assert not applies("platform_system == 'Linux' or python_version < '3'")


@pytest.mark.parametrize("client", ["uv", "pip"])
def test_the_line_is_for_the_python_that_was_looked_at(
    world: World, node: Node, client: str, tmp_path: Path
) -> None:
    """Also where another environment is active, or none, as in images whose Python is the system's."""
    other = Environment(tmp_path / "other", wheels=[world.torch["2.12.0+cu130"]], cache=tmp_path / "cache")
    if client == "pip":
        subprocess.run([UV, "pip", "install", "-q", "--target", tmp_path / "pip", "pip==26.3"], check=True)
        node.variables["PYTHONPATH"] = str(tmp_path / "pip")
    uv = f"{Path(UV).parent}:" if client == "uv" else ""
    for active in (str(other.path), ""):
        node.variables["VIRTUAL_ENV"] = active
        node.variables["PATH"] = f"{other.path / 'bin'}:{uv}/usr/bin:/bin"
        node.shell(node.check(world.release.root, "before")["line"])
        assert "sgl-kernel" not in other.packages()
        assert node.check(world.release.root, "after")["by"]["contents"][0] == "passed"
        node.run([UV, "pip", "uninstall", "--python", str(node.python), "sgl-kernel"])


def test_a_rollback_reaches_nodes_by_the_line_that_they_are_told(node: Node, tmp_path: Path) -> None:
    layout = Layout(tmp_path / "checkout")
    for build in (1, 2, 3):
        version = f"0.3.21+cu130.torch2.12.0.sm120a.{build}"
        wheel = make_kernel(tmp_path / "dist", version, provenance=PROVENANCE, content=f"x = {build}\n")
        release = publish(*reports(wheel, gpu=True), layout)
    root = release.root
    node.shell(node.check(root, "before")["line"])
    assert node.packages()["sgl-kernel"].endswith("sm120a.3")
    house = Wheelhouse(root)
    with house.locked(), house.transaction():
        pointers.rollback(house, "cu130")
        settle(house)
    with http_directory(root) as (url, _):
        for words in ((), ("--line", "cu130")):
            before = node.check(url, "before", *words)
            assert before["release"].endswith("sm120a.2-py3-none-any")
            assert node.check(root, "before", *words)["release"] == before["release"]
        assert node.check(url, "before", "--line", "cu130.candidates")["release"].endswith("a.3-py3-none-any")
        none = node.check(url, "before", "--line", "cu999")
        assert none["by"]["check"] == ("failed", f"no release in line cu999 of {url}")
        node.shell(before["line"])
    assert node.packages()["sgl-kernel"].endswith("sm120a.2"), "back, by one line"


def test_later_steps_that_swap_something_are_caught(world: World, node: Node, tmp_path: Path) -> None:
    root = world.release.root
    line = node.check(root, "before")["line"]
    node.shell(line)
    version = world.release.record.version
    # A rebuild under the same name, as a second index could have it.
    strange = make_kernel(tmp_path / "a", content=f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    node.run([UV, "pip", "install", "--reinstall", *offline(strange)])
    swapped = node.check(root, "after")
    assert swapped["by"]["import"][0] == "unknown" and not (tmp_path / "ran").exists(), (
        "strange code runs not"
    )
    assert swapped["by"]["version"] == ("passed", f"sgl-kernel {version}, should be {version}")
    assert swapped["by"]["contents"] == (
        "failed",
        "another wheel of the same name and version is installed",
    )
    # Another version.
    node.run([UV, "pip", "install", "--reinstall", *offline(make_kernel(tmp_path / "b", "0.3.22"))])
    assert node.check(root, "after")["by"]["version"][0] == "failed"
    # Another torch.
    node.shell(line)
    node.run([UV, "pip", "install", *offline(world.torch["2.11.0"])])
    assert node.check(root, "after")["by"]["torch"] == ("failed", "was 2.12.0+cu130, is 2.11.0")
    # An edited file, and a removed one.
    node.run([UV, "pip", "install", *offline(world.torch["2.12.0+cu130"])])
    node.shell(line)
    path = node.site / "sgl_kernel/__init__.py"
    original = path.read_text()
    path.unlink()
    path.write_text(original + "\n")
    assert node.check(root, "after")["by"]["record"] == ("failed", "sgl_kernel/__init__.py was changed")
    path.unlink()
    assert "is missing" in node.check(root, "after")["by"]["record"][1]


def test_a_failed_import_is_told_by_what_caused_it(world: World, tmp_path: Path) -> None:
    cause = "- ImportError: libcuda.so.1: cannot open shared object file"
    advice = "\\n".join(["Could not load!", cause, "- x"])
    for project, module in (("sgl-kernel", "sgl_kernel"), ("sample-kernel", "sample_kernel")):
        layout = Layout(tmp_path / project)
        files = {f"{module}/__init__.py": f"raise ImportError('{advice}')\n", "other/__init__.py": ""}
        wheel = make_wheel(
            tmp_path / "dist", project, "1+cu130.1", requires=["torch==2.12.0"], contents=files
        )
        release = publish(*reports(wheel), layout)
        node = Node(tmp_path / module, wheels=[world.torch["2.12.0+cu130"]], cache=tmp_path / "cache")
        node.shell(release.install_line)
        assert node.check(release.root, "after")["by"]["import"] == (
            "failed",
            f"{module}: ImportError: libcuda.so.1: cannot open shared object file "
            "(there is no NVIDIA driver here)",
        )


def test_nothing_of_ours_installed_is_said(world: World, node: Node) -> None:
    after = node.check(world.release.root, "after")
    assert after["by"]["version"][0] == "failed"
    assert "no kernel wheel is installed" in after["by"]["version"][1]


def oldest_python() -> str | None:
    """A Python 3.8 that runs; a version manager's stand-in may not."""
    places = [
        shutil.which("python3.8"),
        *map(str, Path("~/.pyenv/versions").expanduser().glob("3.8.*/bin/python")),
    ]
    for place in filter(None, places):
        if subprocess.run([place, "-c", ""], check=False, capture_output=True).returncode == 0:
            return place
    return None


def test_over_http_and_by_the_oldest_python(world: World, node: Node, tmp_path: Path) -> None:
    shutil.copy(world.release.root / "install-check.pyz", tmp_path)
    with http_directory(world.release.root) as (url, _):
        assert node.check(url, "before")["ok"]
        old = oldest_python()
        if old is None:
            pytest.skip("no Python 3.8 here")
        done = subprocess.run(
            [old, str(tmp_path / "install-check.pyz"), "before", "--wheelhouse", url, "--json"],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
            env={"PATH": os.defpath},
        )
    results = {item["name"]: item for item in json.loads(done.stdout)["results"]}
    assert results["torch"]["status"] == "failed", done.stderr


def test_a_wheelhouse_that_is_none_is_said(node: Node, tmp_path: Path, world: World) -> None:
    shutil.copy(world.release.root / "install-check.pyz", tmp_path / "empty.pyz")
    done = node.run([str(node.python), str(tmp_path / "empty.pyz"), "before"], ok=False)
    assert done.returncode == 9
    assert "no catalogue in" in done.stdout


def test_a_node_kit_checks_its_release_while_the_wheelhouse_is_away(
    world: World, node: Node, tmp_path: Path
) -> None:
    kit = tmp_path / "kit"
    kit.mkdir()
    house = tmp_path / "wheelhouse"
    shutil.copytree(world.release.root, house)
    for name, text in Kit.of(world.release, recipe.load(CHECKOUT, "cu130")).files(str(house)).items():
        (kit / name).write_text(text)
    (kit / "install-check.pyz").write_bytes((house / "install-check.pyz").read_bytes())
    told = [line.strip() for line in (kit / "README.md").read_text().splitlines() if line.startswith("    ")]
    for line in told[:3]:
        node.shell(line, cwd=kit)
    shutil.rmtree(house)
    # Without the tool beside uv: nodes have the program alone.
    start = f"PATH={node.path}/bin:/usr/bin:/bin MODEL=/m PYTHON={node.python} bash {kit}/launch.sh"
    done = node.shell(start, ok=False)
    assert "is SGLang installed there?" in done.stderr, "the check was passed, and SGLang is not here"
    for name in ("version", "record", "contents", "torch", "gpu", "driver", "import"):
        assert f"ok    {name}" in done.stdout
    (node.site / "torch/version.py").unlink()
    done = node.shell(start, ok=False)
    assert done.returncode == 9
    assert "WRONG torch" in done.stdout
