"""Reports that are kept: for the same question only, and only whole ones."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sglwheel.errors import SmokeError
from sglwheel.release.releasing import once
from sglwheel.smoke import Check, SmokeReport


@dataclass(frozen=True)
class Report:
    number: int

    def to_json(self) -> dict[str, Any]:
        return {"number": self.number}


def ask(record: Path, key: dict[str, Any], number: int) -> int:
    return once(record, key, lambda data: Report(**data), lambda: Report(number)).number


def test_a_report_answers_the_same_question_only(tmp_path: Path) -> None:
    record = tmp_path / "kept/report.json"
    assert ask(record, {"torch": "2.12.0"}, 1) == 1
    assert ask(record, {"torch": "2.12.0"}, 2) == 1
    assert ask(record, {"torch": "2.11.0"}, 3) == 3
    assert ask(record, {"torch": "2.12.0"}, 4) == 4


@pytest.mark.parametrize(
    "torn", [b"", b"{", b"[]", b'{"key": {"a": 1}}', b'{"key": {"a": 1}, "report": {"x": 1}}']
)
def test_a_torn_report_is_made_again(tmp_path: Path, torn: bytes) -> None:
    record = tmp_path / "report.json"
    record.write_bytes(torn)
    assert ask(record, {"a": 1}, 5) == 5
    assert ask(record, {"a": 1}, 6) == 5


def test_a_failure_is_not_kept(tmp_path: Path) -> None:
    def fail() -> Report:
        raise SmokeError("no")

    with pytest.raises(SmokeError):
        once(tmp_path / "report.json", {}, lambda data: Report(**data), fail)
    assert not (tmp_path / "report.json").exists()


def test_a_smoke_report_survives_the_round_trip(tmp_path: Path) -> None:
    checks = (Check("import x", "passed", ""), Check("gpu", "skipped", "no GPU on this host"))
    report = SmokeReport("a" * 64, "2.12.0+cu130", checks, 1.5, tmp_path / "log")
    assert SmokeReport.from_json(report.to_json(), log=tmp_path / "log") == report
    assert not report.gpu_checked
