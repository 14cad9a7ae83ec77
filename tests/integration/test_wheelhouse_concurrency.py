"""Several publishers at once, killed at random: nothing lost, nothing torn, the index true.

`nox -s bench-wheelhouse -- publishers` does it with eight publishers of 200 wheels each.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from killedpublishers import publish_and_kill
from sglwheel.wheelhouse.verify import verify

pytestmark = pytest.mark.integration


def test_killed_publishers_lose_and_tear_nothing(tmp_path: Path) -> None:
    done = publish_and_kill(tmp_path, publishers=3, each=6)
    assert done.kills > 0
    assert {path.name for path in done.house.root.glob("*.whl")} == done.names
    found = {finding.rule for finding in verify(done.house).findings}
    assert found <= {"leftover"}, "what a killed one was copying is all that may be left"
    assert verify(done.house, repair=True).ok
    assert verify(done.house).findings == ()
