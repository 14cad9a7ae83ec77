"""From what the child reported to checks, with what is known of the wheel's files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sglwheel.inspect import Inspection, sonames
from sglwheel.recipe import Recipe
from sglwheel.smoke.report import Check


def torch_symbols(facts: Inspection) -> Check:
    """The torch that is installed, against what the wheel asks of it."""
    if facts.causes:
        text = "; ".join(cause.text for cause in facts.causes)
        return Check("torch symbols", "failed", f"not exported by torch {facts.torch}: {text}")
    return Check("torch symbols", "passed", f"all exported by torch {facts.torch}")


def judge(events: list[dict[str, Any]], facts: Inspection, recipe: Recipe, site: Path) -> list[Check]:
    """One check for each event; a process that ended early fails the check that ran."""
    checks: list[Check] = []
    running: str | None = None
    for event in events:
        if "start" in event:
            running = event["start"]
        elif "ended" in event:
            says = f": {event['says']}" if event["says"] else ""
            checks.append(Check(running or "start", "failed", f"the process ended ({event['ended']}){says}"))
        else:
            checks.append(_interpret(event, facts, recipe, site))
            running = None
    return checks


def _interpret(event: Mapping[str, Any], facts: Inspection, recipe: Recipe, site: Path) -> Check:
    name, status, detail, data = event["name"], event["status"], event["detail"], event["data"]
    if name == "libraries" and data:
        lines = []
        for soname, error in sorted(data.items()):
            users = ", ".join(library.path for library in facts.libraries if soname in library.needed)
            package = sonames.package_for(soname)
            remedy = f"install {package}" if package else error
            lines.append(f"{soname} is missing, needed by {users}: {remedy}")
        return Check(name, status, "; ".join(lines))
    if name == "load" and data:
        return Check(
            name, status, "; ".join(f"{library}: {error}" for library, error in sorted(data.items()))
        )
    if name == "operators" and status == "passed":
        return _operators(data, detail, facts, recipe, site)
    return Check(name, status, detail)


def _operators(data: Mapping[str, Any], detail: str, facts: Inspection, recipe: Recipe, site: Path) -> Check:
    """Registered = what the recipe names and what was read from the libraries that are loaded."""
    registered = set(data["registered"])
    short = {name.split("::")[1].split(".")[0] for name in registered}
    mapped = {os.path.realpath(path) for path in data["mapped"]}
    problems = [f"{name} is not registered" for name in recipe.operators if name not in registered]
    problems += [
        f"{name} is registered, and should be absent"
        for name in recipe.absent_operators
        if name in registered
    ]
    static = 0
    for library in facts.libraries:
        if os.path.realpath(site / library.path) not in mapped:
            continue
        names = facts.operators_by_library.get(library.path, ())
        static += len(names)
        problems += [
            f"{library.path} has a schema of {name}, but does not register it"
            for name in names
            if name not in registered and not (name.startswith("?::") and name[3:].split(".")[0] in short)
        ]
    if problems:
        return Check("operators", "failed", "; ".join(problems[:20]))
    return Check("operators", "passed", f"{detail}, {static} of them read from the libraries before")
