"""From a finished wheel to a release: judge it, publish it, install it by its printed line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from sglwheel import console, files, inspect, wheelhouse
from sglwheel import smoke as smoking
from sglwheel.errors import InspectionError, SglwheelError, SmokeError, WheelhouseError
from sglwheel.files import Layout
from sglwheel.finish import FinishedWheel
from sglwheel.inspect import symbols
from sglwheel.recipe import Recipe
from sglwheel.toolchain import driverstub


@dataclass(frozen=True)
class Released:
    """A published wheel, and what every check said of it."""

    release: wheelhouse.Release
    inspection: inspect.Inspection
    smoke: smoking.SmokeReport
    check: wheelhouse.InstallReport

    def facts(self) -> dict[str, Any]:
        """For scripts."""
        return {
            "release": self.release.id,
            "path": str(self.release.path),
            "status": self.release.status,
            "install": self.release.install_line,
            "inspection": self.inspection.to_json(),
            "smoke": self.smoke.to_json(),
            "install_check": self.check.to_json(),
        }

    def summary(self, layout: Layout) -> tuple[str, ...]:
        """For people."""
        size = self.release.path.stat().st_size
        checks = self.smoke.checks
        unproven = [f"{check.name} ({check.detail})" for check in checks if check.status == "skipped"]
        return (
            "",
            f"{self.release.status}: {layout.relative(self.release.path)}  {console.format_bytes(size)}",
            *(
                f"  {library.path}: {', '.join((*library.sass, *library.ptx)) or 'no GPU code'}"
                for library in self.inspection.libraries
            ),
            *(f"  not proven: {text}" for text in unproven),
            "install on a node that has its torch:",
            f"  {self.release.install_line}",
        )


def release(
    finished: FinishedWheel,
    recipe: Recipe,
    env: smoking.Environment,
    layout: Layout,
    who: Mapping[str, Any],
) -> Released:
    """Inspect, smoke-test, publish and install a finished wheel; `who` says who built it, and when.

    Raises the failing stage's error; what was published before stays as it is.
    """
    with stage("inspect", InspectionError):
        inspection = inspect.inspect(
            finished.path,
            expect=inspect.Expectation.of(recipe, distribution=finished.name, version=finished.version),
            torch=symbols.installed(env.torch.path),
        )
        judge(inspection, layout)
    with stage("smoke", SmokeError):
        smoke = _smoked(finished, recipe, env, layout)
    with stage("publish", WheelhouseError):
        published = wheelhouse.publish(finished, inspection, smoke, layout, provenance=who)
        console.detail(f"{layout.relative(published.path)} ({published.status})")
    with stage("install check", WheelhouseError):
        check = _install_checked(published, recipe, env, layout)
        console.detail(f"{len(check.checks)} checks passed")
    return Released(published, inspection, smoke, check)


@contextmanager
def stage(title: str, failure: type[SglwheelError]) -> Iterator[None]:
    """Narrate a stage, and let what the system refuses (a full disk) end with the stage's own code."""
    with console.step(title):
        try:
            yield
        except OSError as error:
            raise failure(
                f"{title}: {error.strerror or error}",
                where={"file": str(error.filename)} if error.filename else None,
                next="run the same command again: it continues",
            ) from error


def judge(inspection: inspect.Inspection, layout: Layout) -> None:
    """Say warnings, raise InspectionError for errors: the place where findings become a verdict."""
    for finding in inspection.findings:
        if finding.severity == "warning":
            console.warn(f"{finding.rule}: {finding.detail}" + (f" ({finding.file})" if finding.file else ""))
    errors = [finding for finding in inspection.findings if finding.severity == "error"]
    if errors:
        where: dict[str, str] = {}
        for finding in errors:
            text = finding.detail + (f" [{finding.file}]" if finding.file else "")
            text += f"\n→ {finding.remedy}" if finding.remedy else ""
            where[finding.rule] = f"{where[finding.rule]}\n{text}" if finding.rule in where else text
        raise InspectionError(
            f"{inspection.wheel.path.name} is not what it should be:"
            f" {console.counted(len(errors), 'finding')}",
            where=where,
            next=f"sglwheel inspect {layout.relative(inspection.wheel.path)}",
        )


def judge_smoke(report: smoking.SmokeReport) -> None:
    """Say every check, raise SmokeError for those that failed."""
    for check in report.checks:
        console.detail(f"{check.status:<8} {check.name}" + (f": {check.detail}" if check.detail else ""))
    failed = {check.name: check.detail for check in report.checks if check.status == "failed"}
    if failed:
        raise SmokeError(f"{len(failed)} smoke checks failed", where=failed)


def install_check(
    release: wheelhouse.Release, recipe: Recipe, env: smoking.Environment, layout: Layout
) -> wheelhouse.InstallReport:
    """Run a release's printed line in a new environment. Raises WheelhouseError for what it did wrong."""
    return wheelhouse.install_check(
        release,
        layout,
        torch=(*env.sources, f"torch=={env.torch.version}"),
        imports=recipe.node_imports,
        variables={"LD_PRELOAD": str(env.stub / driverstub.SONAME)} if env.stub is not None else {},
    ).demand()


def _smoked(
    finished: FinishedWheel, recipe: Recipe, env: smoking.Environment, layout: Layout
) -> smoking.SmokeReport:
    """Smoke-test once for these bytes, this torch and these demands. Raises SmokeError."""
    sha256 = files.sha256(finished.path)
    key = {
        "torch": env.torch.full_version,
        "smoke": recipe.smoke.model_dump(mode="json"),
        "options": dict(recipe.options),
        "operators": [*recipe.operators, *(f"no {name}" for name in recipe.absent_operators)],
        "gpu": Path("/dev/nvidiactl").exists(),
        "test": smoking.version(),
    }

    def make() -> smoking.SmokeReport:
        report = smoking.run(finished.path, recipe, env, layout)
        judge_smoke(report)
        return report

    def read(data: dict[str, Any]) -> smoking.SmokeReport:
        report = smoking.SmokeReport.from_json(data, log=layout.work / recipe.id / "smoke.log")
        console.detail(f"{len(report.checks)} checks, done before for these bytes")
        return report

    return once(layout.work / recipe.id / "smoked" / f"{sha256}.json", key, read, make)


def _install_checked(
    release: wheelhouse.Release, recipe: Recipe, env: smoking.Environment, layout: Layout
) -> wheelhouse.InstallReport:
    """Check once for these bytes, this line and this torch: a wheel that passed does not change."""
    record = layout.work / recipe.id / "install-checked" / f"{release.sha256}.json"
    key = {"line": release.install_line, "torch": env.torch.full_version}
    return once(
        record,
        key,
        wheelhouse.InstallReport.from_json,
        lambda: install_check(release, recipe, env, layout),
    )


class _Report(Protocol):
    def to_json(self) -> dict[str, Any]: ...


_R = TypeVar("_R", bound=_Report)


def once(
    record: Path, key: Mapping[str, Any], read: Callable[[dict[str, Any]], _R], make: Callable[[], _R]
) -> _R:
    """The report that `record` keeps for the same key, or a new one; one that raises is not kept."""
    try:
        known = json.loads(record.read_text())
        if known["key"] == key:
            return read(known["report"])
    except (OSError, ValueError, KeyError, TypeError):
        pass  # none yet, torn, or of another form: a new one takes its place
    report = make()
    files.write_atomic(record, json.dumps({"key": key, "report": report.to_json()}, indent=1))
    return report
