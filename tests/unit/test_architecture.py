"""The one-way flow, kept by reading the imports."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "scripts/sglwheel"
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")
# Layers of docs/architecture.md; a module may import from lower layers, and from its own without a cycle.
LAYERS: dict[str, int] = {
    name: layer
    for layer, names in enumerate(
        [
            "errors",
            "console process files types network",
            "recipe git mirrors sample transfer buckets bundle uptodate",
            "series",
            "source patching",
            "toolchain drift",
            "build storage locks rebase",
            "finish timeline proving",
            "inspect smoke nodecheck gpucheck programs",
            "wheelhouse nodedoctor builddoctor",
            "release reproduce",
            "kinds",
            "pipeline",
            "vendoring lockverb bench",
            "cli",
        ]
    )
    for name in names.split()
}


# What runs inside another interpreter is a program of its own, not part of the flow.
PROGRAMS = ("smoke/smoke_child.py", "build/data/", "bench/data/", "nodecheck/", "gpucheck/")


def module_name(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    """Names of sglwheel's own modules that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            if node.module == "sglwheel":
                found |= {f"sglwheel.{alias.name}" for alias in node.names}
            else:
                found.add(node.module)
    return {name.split(".")[1] for name in found if name.startswith("sglwheel.")} - {"__version__"}


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_imports_point_downwards(path: Path) -> None:
    name = module_name(path)
    if str(path.relative_to(PACKAGE)).startswith(PROGRAMS):
        # A program of its own: it may know its own package, and nothing else of ours.
        assert imports(path) <= {name}
        return
    assert name in LAYERS, f"give {name} a layer in docs/architecture.md and here"
    for other in imports(path):
        assert LAYERS[other] <= LAYERS[name], f"{name} imports {other}, which is above it"


def test_no_import_cycle() -> None:
    graph = {}
    for path in MODULES:
        graph.setdefault(module_name(path), set()).update(imports(path) - {module_name(path)})
    while graph:
        leaves = [name for name, needs in graph.items() if not needs & graph.keys()]
        assert leaves, f"import cycle among {sorted(graph)}"
        for name in leaves:
            del graph[name]


def calls(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            found.add(ast.unparse(node.func))
    return found


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_one_module_starts_processes_and_one_prints(path: Path) -> None:
    name = module_name(path)
    if str(path.relative_to(PACKAGE)).startswith(PROGRAMS):
        return
    tree = ast.parse(path.read_text())
    modules = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    modules |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    if name != "process":
        assert not modules & {"subprocess", "pty", "multiprocessing"}
        assert not any(
            call.startswith(("os.exec", "os.spawn", "os.fork", "os.system", "os.popen"))
            for call in calls(path)
        )
    if name != "console":
        assert "print" not in calls(path)
        assert not any(call.startswith(("sys.stdout", "sys.stderr", "click.echo")) for call in calls(path))


def test_noxfile_never_imports_the_package() -> None:
    path = PACKAGE.parents[1] / "noxfile.py"
    tree = ast.parse(path.read_text())
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not any(name.split(".")[0] in {"sglwheel", "tomllib", "tomlkit"} for name in names)
