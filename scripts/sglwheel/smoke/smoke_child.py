"""The part of the smoke test that runs inside the fresh environment: a program of its own, standard library
and torch only.

    python -I smoke_child.py plan.json events.jsonl

It appends one JSON line when a check starts and one when it ends, so that a crash says which check it was.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.machinery
import inspect
import json
import os
import runpy
import signal
import sys
import sysconfig
import traceback
import types
import warnings
from pathlib import Path
from typing import Any


def main(plan_file: str, events_file: str) -> int:
    plan = json.loads(Path(plan_file).read_text())
    checks = globals() | runpy.run_path(str(Path(__file__).with_name("smoke_operators.py")))
    with open(events_file, "a", buffering=1, encoding="utf-8") as events:  # noqa: PTH123

        def check(name: str, function: Any, *arguments: Any) -> Any:
            events.write(json.dumps({"start": name}) + "\n")
            try:
                status, detail, data = function(*arguments)
            except BaseException as error:
                status, data = "failed", None
                detail = f"{type(error).__name__}: {error}".strip()
                traceback.print_exc()
            events.write(json.dumps({"name": name, "status": status, "detail": detail, "data": data}) + "\n")
            return status

        if check("torch", import_torch) == "failed":
            return 0
        for title, function, *arguments in plan["checks"]:
            check(title, checks[function], *arguments)
    return 0


def import_torch() -> tuple[str, str, Any]:
    import torch

    return "passed", torch.__version__, {"version": torch.__version__, "cuda": torch.version.cuda}


def resolve(needed: list[str]) -> tuple[str, str, Any]:
    """Load every needed library by name: the missing ones are told all at once, each by its own name."""
    missing: dict[str, str] = {}
    for soname in needed:
        try:
            ctypes.CDLL(soname, mode=os.RTLD_NOW)
        except OSError as error:
            missing[soname] = str(error)
    return ("failed" if missing else "passed"), f"{len(needed)} needed", missing


def site_packages() -> Path:
    """Where the wheel is; torch may lie in another environment."""
    return Path(sysconfig.get_path("purelib"))


def load(libraries: list[str]) -> tuple[str, str, Any]:
    """Load every library in a process of its own: two variants register the same operators.

    RTLD_NOW binds every symbol at once; a lazily bound library with a missing one would kill the process
    later.
    """
    failures: dict[str, str] = {}
    site = site_packages()
    for library in libraries:
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            message = ""
            try:
                ctypes.CDLL(str(site / library), mode=os.RTLD_NOW)
            except BaseException as error:
                message = str(error) or type(error).__name__
            os.write(writer, message.encode()[:60000])
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader, "rb") as stream:
            message = stream.read().decode("utf-8", "replace")
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            message = f"kills the process: {signal.Signals(os.WTERMSIG(status)).name}"
        elif os.WEXITSTATUS(status) and not message:
            message = f"ends the process with status {os.WEXITSTATUS(status)}"
        if message:
            failures[library] = message.replace(f"{site}/", "")
    return ("failed" if failures else "passed"), f"{len(libraries)} loaded with RTLD_NOW", failures


def import_module(name: str) -> tuple[str, str, Any]:
    module = importlib.import_module(name)
    return "passed", f"version {version}" if (version := getattr(module, "__version__", None)) else "", None


def import_light(name: str) -> tuple[str, str, Any]:
    """Import a module whose wheel's requirements are not installed: that one is missing is no fault."""
    own = name.split(".")[0]
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = (error.name or "").split(".")[0]
        if missing in ("", own):
            raise
        return "skipped", f"needs {missing}, which is not installed here", None
    return "passed", f"version {version}" if (version := getattr(module, "__version__", None)) else "", None


def load_alone(name: str) -> tuple[str, str, Any]:
    """Load a module without running its parent packages; modules of its own package still resolve."""
    parts = name.split(".")
    for depth in range(1, len(parts)):
        package = ".".join(parts[:depth])
        if package not in sys.modules:
            spec = importlib.machinery.PathFinder.find_spec(package, _path_of(parts[: depth - 1]))
            if spec is None or spec.submodule_search_locations is None:
                return "failed", f"there is no package {package}", None
            stand_in = types.ModuleType(package)
            stand_in.__path__ = list(spec.submodule_search_locations)
            sys.modules[package] = stand_in
    try:
        module = importlib.import_module(name)
    finally:
        for depth in range(1, len(parts)):
            sys.modules.pop(".".join(parts[:depth]), None)
        for loaded in [one for one in sys.modules if one.startswith(f"{parts[0]}.")]:
            del sys.modules[loaded]
    sizes = {
        key: len(value) for key, value in vars(module).items() if key.isupper() and isinstance(value, dict)
    }
    return "passed", ", ".join(f"{key} has {size} entries" for key, size in sorted(sizes.items())), None


def _path_of(parts: list[str]) -> list[str] | None:
    return list(sys.modules[".".join(parts)].__path__) if parts else None


def syntax(sources: list[str]) -> tuple[str, str, Any]:
    """Compile every source file for this Python, running none."""
    site = site_packages()
    wrong = []
    for source in sources:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                compile((site / source).read_bytes(), source, "exec", dont_inherit=True)
        except (OSError, SyntaxError, ValueError) as error:
            wrong.append(f"{source}: {error}")
    return ("failed" if wrong else "passed"), "; ".join(wrong[:5]) or f"{len(sources)} files", None


def skip(why: str) -> tuple[str, str, Any]:
    """Say what is not tried here, and why."""
    return "skipped", why, None


def without_fa3(name: str, option: str) -> tuple[str, str, Any]:
    """Import works; using it fails with an error that says which build option is off."""
    module = importlib.import_module(name)
    candidates = [
        (label, value)
        for label, value in sorted(vars(module).items())
        if inspect.isfunction(value)
        and not label.startswith("_")
        and value.__module__ == name
        and ("attn" in label or "attention" in label)
    ]
    if not candidates:
        return "failed", f"{name} has no function to call", None
    texts: dict[str, str] = {}
    for label, function in candidates:
        required = [
            parameter
            for parameter in inspect.signature(function).parameters.values()
            if parameter.default is parameter.empty
            and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        ]
        try:
            function(*[None] * len(required))
        except Exception as error:
            texts[label] = f"{type(error).__name__}: {error}"
        else:
            return "failed", f"{label}() does not fail although FA3 is not in this build", texts
    unclear = {label: text for label, text in texts.items() if option not in text}
    if unclear:
        label, text = next(iter(unclear.items()))
        return "failed", f"{label}() fails without naming the build option {option}: {text}", texts
    return "passed", f"{', '.join(texts)} name{'s' if len(texts) == 1 else ''} {option}", texts


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1], sys.argv[2]))
