"""Golden files, and an environment that no host setting reaches."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

# A user's own stores and mirrors are neither read nor written; the opt-in suites ask for them.
if not os.environ.get("SGLWHEEL_UPSTREAM"):
    for _name in ("SGLWHEEL_CACHE", "SGLWHEEL_ROOT", "SGLWHEEL_CONFIG", "SGLWHEEL_MIRRORS"):
        os.environ.pop(_name, None)

GOLDEN = Path(__file__).parent / "golden"
ROOT = Path(__file__).parent.parent


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="rewrite golden files; review them in the diff"
    )


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare user-visible text with `tests/golden/<name>`."""

    def compare(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        assert path.is_file(), f"{path} is missing: run pytest --update-golden and review it"
        assert text == path.read_text()

    return compare
