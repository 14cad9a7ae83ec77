"""The verbs over a whole checkout's locks: what each recipe needs for them, in which order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sglwheel import console, pipeline
from sglwheel.errors import SglwheelError
from sglwheel.files import Layout
from sglwheel.locks import findings, locking
from sglwheel.locks.findings import Finding
from sglwheel.locks.lockcheck import LockCheck
from sglwheel.locks.locking import Change
from sglwheel.patching import PatchedTree


def write(
    layout: Layout,
    name: str,
    *,
    upgrade: bool = False,
    overrides: Mapping[str, str] | None = None,
    published: Mapping[str, str] | None = None,
) -> tuple[Change, ...]:
    """Write a recipe's locks. Raises the error of the first stage that cannot be had."""
    context = pipeline.Context.load(layout, name)
    with console.step(f"lock {name}"):
        return locking.write(
            context.recipe, context.checkout, context.patch(), layout, context.mirrors,
            upgrade=upgrade, overrides=overrides, published=published,
        )  # fmt: skip


def renew(layout: Layout, name: str, overrides: Mapping[str, str]) -> list[str]:
    """Write the locks after a rebase; lines for its report, also where something cannot be had now.

    The rebase is done then: its locks are one command away.
    """
    try:
        return ["", *locking.render(write(layout, name, overrides=overrides))]
    except SglwheelError as error:
        where = [f"  {key}: {text}" for key, text in error.where.items()]
        return [
            "",
            f"The locks are still those of before: {error.what}",
            *where,
            f"next: sglwheel lock {name}",
        ]


def check(
    layout: Layout,
    names: Sequence[str],
    *,
    online: bool = True,
    overrides: Mapping[str, str] | None = None,
) -> dict[str, tuple[Finding, ...]]:
    """What is wrong with the locks of each recipe; `overrides` are not asked for at their places."""
    found: dict[str, tuple[Finding, ...]] = {}
    for name in names:
        context = pipeline.Context.load(layout, name)
        mirrors = context.mirrors if online else context.mirrors.without_network()
        with console.step(f"check the locks of {name}"):
            patched: PatchedTree | None = None
            more: tuple[Finding, ...] = ()
            try:
                patched = context.patch()
            except SglwheelError as error:
                file = layout.relative(layout.recipes / f"{name}.toml")
                more = (Finding(file, f"its patched tree cannot be had: {error.what}"),)
            checked = LockCheck(context.recipe, layout, mirrors, online, overrides or {})
            found[name] = (*more, *checked.run(patched))
    return found


def demand(found: Mapping[str, tuple[Finding, ...]]) -> None:
    """Raise ToolchainError if a check found anything; all of it is in the error."""
    wrong = {name: findings for name, findings in found.items() if findings}
    if wrong:
        raise findings.error(", ".join(wrong), tuple(one for findings in wrong.values() for one in findings))


def render(changed: Mapping[str, tuple[Change, ...]]) -> list[str]:
    """Lines for a person: per recipe, per file."""
    return [
        line
        for name, changes in changed.items()
        for line in ([f"{name}:"] if len(changed) > 1 else []) + locking.render(changes)
    ]
