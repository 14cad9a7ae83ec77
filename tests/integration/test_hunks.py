"""Applying in memory gives what `git apply` gives, and fails where it fails."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from patchworld import World
from sglwheel.series import diffs, hunks
from sglwheel.series.hunks import MissError

pytestmark = pytest.mark.integration


def edited(rng: random.Random, lines: list[str]) -> list[str]:
    result = list(lines)
    for _ in range(rng.randint(1, 3)):
        at = rng.randint(0, len(result))
        match rng.choice(["insert", "delete", "change", "repeat"]):
            case "insert":
                result[at:at] = [f"new {rng.randint(0, 9)}"]
            case "delete":
                del result[at : at + rng.randint(1, 2)]
            case "change" if at < len(result):
                result[at] = f"changed {rng.randint(0, 9)}"
            case "repeat":
                result[at:at] = result[max(at - 4, 0) : at]
    return result


def joined(rng: random.Random, lines: list[str]) -> str:
    return "\n".join(lines) + ("\n" if lines and rng.random() < 0.9 else "")


@pytest.mark.parametrize("seed", range(4))
def test_the_same_as_git_apply(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    world = World(tmp_path)
    agreed = {"applied": 0, "refused": 0}
    for _ in range(12):
        # Few different lines: context that fits in several places is where offsets matter.
        before = [rng.choice(["{", "}", "a", "b", f"line {n}"]) for n in range(rng.randint(0, 24))]
        base = joined(rng, before)
        after = joined(rng, edited(rng, before))
        target = joined(rng, edited(rng, before) if rng.random() < 0.8 else before)
        if base == after:
            continue
        world.commit({"f": base})
        (world.repository / "f").write_text(after)
        text = world.git_bytes("diff", "--full-index")
        (world.repository / "f").write_text(target)
        if world.git("status", "--porcelain"):
            world.commit_all("target")
        world.commit({"f": target, "count": str(rng.random())})
        found, flaws = diffs.parse(text.splitlines(keepends=True), 1)
        assert not flaws
        try:
            mine: bytes | None = hunks.apply(found[0], target.encode())
        except MissError:
            mine = None
        (tmp_path / "p.diff").write_bytes(text)
        try:
            world.git("apply", "--whitespace=nowarn", str(tmp_path / "p.diff"))
            theirs: bytes | None = (world.repository / "f").read_bytes()
        except AssertionError:
            theirs = None
        assert mine == theirs, f"{text!r} on {target!r}"
        agreed["applied" if theirs is not None else "refused"] += 1
        world.git("checkout", "--quiet", "--force", "HEAD")
    assert agreed["applied"]


def test_creation_and_deletion() -> None:
    ids = b"index 1111111..2222222\n"
    create = (
        b"diff --git a/f b/f\nnew file mode 100644\n" + ids + b"--- /dev/null\n+++ b/f\n@@ -0,0 +1 @@\n+x\n"
    )
    delete = (
        b"diff --git a/f b/f\ndeleted file mode 100644\n"
        + ids
        + b"--- a/f\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n"
    )
    (made,), _ = diffs.parse(create.splitlines(keepends=True), 1)
    (gone,), _ = diffs.parse(delete.splitlines(keepends=True), 1)
    assert hunks.apply(made, None) == b"x\n"
    assert hunks.apply(gone, b"x\n") is None
    for diff, content in ((made, b""), (gone, None), (gone, b"x\ny\n"), (gone, b"y\n")):
        with pytest.raises(MissError):
            hunks.apply(diff, content)
