"""One root, one exit code per kind, and what a user sees."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sglwheel import console, errors


def kinds() -> list[type[errors.SglwheelError]]:
    return errors.SglwheelError.__subclasses__()


def test_every_kind_has_its_own_exit_code() -> None:
    codes = {kind.__name__: kind.exit_code for kind in kinds()}
    assert sorted(codes.values()) == [2, 3, 4, 5, 6, 7, 8, 9, 10, 130], codes


def test_report_says_what_where_next(
    golden: Callable[[str, str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    console.report(
        errors.PatchError(
            "patch 2 of 6 does not apply: patches/0.3.21/cccl-include.patch",
            where={
                "onto": "sglang 4b817f5d7 (2026-06-17)",
                "file": "sgl-kernel/CMakeLists.txt:131\nand [bold]more[/]",
            },
            next="nox -s rebase -- cu130 --to 4b817f5d7",
            log=Path(".work/cu130/patch.log"),
        )
    )
    golden("errors/report.txt", capsys.readouterr().err)
