"""Check a node before and after it installs a kernel wheel from a wheelhouse.

    python install-check.pyz before    does this environment fit, and which release is right for it?
    python install-check.pyz after     is what is installed ours, to the byte, and is torch what it was?
    python install-check.pyz start     all of `after`, and do GPU and driver run it? launch.sh asks this

It needs Python 3.8 and nothing else, writes nothing but its own state file, and imports the wheel only in a
process of its own. Exit status: 0 all is well, 9 something is not, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from sglwheel.nodecheck.catalogue import Signers, StopError, release_id, releases, signed
from sglwheel.nodecheck.choosing import choose
from sglwheel.nodecheck.fits import fits
from sglwheel.nodecheck.node import KERNELS, Node, Result, contents, installed_version, look, modules
from sglwheel.nodecheck.reading import shown

STATE = "sglwheel-node.json"
# What the dynamic loader says of a library that it cannot load.
_LOADER = re.compile("cannot open shared object file|undefined symbol|version `.*' not found")


def before(options: argparse.Namespace) -> dict[str, Any]:
    """Judge the node, choose a release, and remember what torch is."""
    node = look()
    chosen = choose(
        node,
        options.wheelhouse,
        release=options.release,
        line=options.line,
        signers=_signers(options),
    )
    id = release_id(chosen.release)
    if chosen.line:
        state = {"torch": _torch_state(node), "release": id}
        Path(options.state).write_text(json.dumps(state, indent=1) + "\n")
    return report("before", chosen.results, release=id, line=chosen.line)


def _signers(options: argparse.Namespace) -> Signers | None:
    return Signers(options.allowed_signers, options.signer) if options.allowed_signers else None


def _torch_state(node: Node) -> dict[str, Any] | None:
    return {"version": node.torch.version, **contents("torch")} if node.torch else None


def after(options: argparse.Namespace) -> dict[str, Any]:
    """Hold what is installed against the catalogue and against what was remembered."""
    node = look()
    state = _state(options.state)
    wanted = options.release or state.get("release")
    catalogue = {release_id(item): item for item in releases(options.wheelhouse)}
    results: list[Result] = []
    release = catalogue.get(wanted) if wanted else None
    if release is None:
        # Kernels first: they are what a node installs from here before all else.
        there = [item for item in catalogue.values() if installed_version(item["name"]) == item["version"]]
        release = min(there, key=lambda item: item["name"] not in KERNELS, default=None)
    if release is None:
        said = ", ".join(f"{name} {version}" for name, version in node.kernels.items()) or "no kernel wheel"
        return report(
            "after",
            [Result("version", "failed", f"{said} is installed; {shown(options.wheelhouse)} has no such")],
        )
    name = str(release["name"])
    version = installed_version(name)
    results.append(
        Result(
            "version",
            "passed" if version == release["version"] else "failed",
            f"{name} {version or 'is missing'}, should be {release['version']}",
        )
    )
    if version is not None:
        results += _ours(name, release)
    for other in KERNELS:
        if name in KERNELS and other != name and other in node.kernels:
            results.append(Result("rival", "failed", f"{other} {node.kernels[other]} owns the same files"))
    results.append(_torch_unchanged(node, state))
    if options.check == "start":
        results += [result for result in fits(node, release) if result.name not in ("python", "torch")]
    strange = any(result.status == "failed" for result in results if result.name in ("record", "contents"))
    for module in () if options.no_import else options.imports or modules(name):
        # Importing runs what is installed.
        unasked = Result("import", "unknown", f"{module}: not tried, as it is not the published wheel")
        results.append(unasked if strange else _import(module))
    return report("after", results, release=release_id(release))


def _ours(name: str, release: dict[str, Any]) -> list[Result]:
    seen = contents(name)
    results = []
    wrong = seen["wrong"]
    detail = f"{seen['files']} files" if not wrong else "; ".join(wrong[:5])
    results.append(Result("record", "failed" if wrong else "passed", detail))
    same = seen["sha256"] == release.get("contents_sha256")
    other = "another wheel of the same name and version is installed"
    said = "the published wheel's" if same else "not the published wheel's" if wrong else other
    results.append(Result("contents", "passed" if same else "failed", said))
    return results


def _torch_unchanged(node: Node, state: dict[str, Any]) -> Result:
    was = state.get("torch")
    if was is None:
        return Result("torch", "unknown", "nothing was remembered: run `before` first")
    now = _torch_state(node)
    if now is None:
        return Result("torch", "failed", f"{was['version']} is gone")
    if now["version"] != was["version"]:
        return Result("torch", "failed", f"was {was['version']}, is {now['version']}")
    ok = now["sha256"] == was["sha256"]
    return Result(
        "torch", "passed" if ok else "failed", f"{now['version']}, {'the same bytes' if ok else 'changed'}"
    )


def _import(module: str) -> Result:
    try:
        done = subprocess.run(
            [sys.executable, "-c", f"import {module}"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=300,
            check=False,
            cwd="/",
        )
    except subprocess.TimeoutExpired:
        return Result("import", "failed", f"{module}: no end after 300 s")
    if done.returncode < 0:
        return Result("import", "failed", f"{module}: killed by signal {-done.returncode}")
    if done.returncode == 0:
        return Result("import", "passed", module)
    return Result("import", "failed", f"{module}: {cause(done.stderr.decode('utf-8', 'replace'))}")


def cause(text: str) -> str:
    """What a failed import says that explains it: SGLang's loader wraps it in twenty lines of advice."""
    lines = [line.strip(" -") for line in text.splitlines() if line.strip()]
    told = [line for line in lines if _LOADER.search(line)] or lines[-1:] or ["it says nothing"]
    missing = " (there is no NVIDIA driver here)" if "libcuda.so.1: cannot open" in told[-1] else ""
    return told[-1] + missing


def _state(path: str) -> dict[str, Any]:
    try:
        value = json.loads(Path(path).read_text())
        return value if isinstance(value, dict) else {}
    except (OSError, ValueError):
        return {}


def report(verb: str, results: list[Result], **more: Any) -> dict[str, Any]:
    ok = all(result.status != "failed" for result in results)
    return {"check": verb, "ok": ok, "results": [result._asdict() for result in results], **more}


def beside() -> str:
    """The wheelhouse that this program lies in."""
    return str(Path(sys.argv[0]).resolve().parent)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("check", choices=("before", "after", "start"))
    parser.add_argument("--wheelhouse", default=beside(), help="directory or url")
    parser.add_argument("--release", help="id, version or file name; otherwise the best that fits")
    parser.add_argument("--line", help="before: take what this line points to, such as cu130")
    parser.add_argument("--state", default=STATE, help="where `before` remembers for `after`")
    parser.add_argument("--imports", nargs="*", help="modules to import; otherwise the wheel's own")
    parser.add_argument("--no-import", action="store_true")
    parser.add_argument(
        "--allowed-signers",
        help="an ssh allowed_signers file: check who signed catalogue and lines",
    )
    parser.add_argument("--signer", default="sglwheel", help="the principal in that file")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    try:
        signers = _signers(options)
        signature = signed(options.wheelhouse, "releases.json", signers) if signers else None
        if signature and signature.status == "failed":
            done = report(options.check, [signature])
        else:
            done = before(options) if options.check == "before" else after(options)
            if signature:
                done["results"].insert(0, signature._asdict())
    except (StopError, OSError) as error:
        done = report(options.check, [Result("check", "failed", str(error))])
    if options.json:
        print(json.dumps(done, indent=1))
        return 0 if done["ok"] else 9
    marks = {"passed": "ok    ", "failed": "WRONG ", "unknown": "?     "}
    for result in done["results"]:
        print(f"{marks[result['status']]}{result['name']:<10} {result['detail']}")
    if done.get("line"):
        print(f"\n{done['line']}")
    elif not done["ok"] and options.check == "before":
        print(f"\nNothing was installed. Nearest release: {done.get('release', 'none')}")
    return 0 if done["ok"] else 9
