from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglwheel import series
from sglwheel.errors import PatchError
from sglwheel.files import Layout
from sglwheel.series import Proof, Status
from sglwheel.series.patchfile import Patch, parse_patch

GOOD = """\
From 0000000000000000000000000000000000000000 Mon Sep 17 00:00:00 2001
From: =?UTF-8?q?J=C3=B6rg?= <j@example.invalid>
Date: Fri, 6 Mar 2026 00:00:00 +0000
Subject: [PATCH] policy: set only what this CMake
 knows

Old CMake stops at a policy that it
does not know.

Upstream-Status: Submitted https://example.invalid/pull/1
Needed-When: cmake < 3.31
Proves: file kernel/CMakeLists.txt contains if(POLICY CMP0169)
Proves: cache FOO=BAR
---
 kernel/CMakeLists.txt | 4 +++-
 kernel/new.txt        | 1 +
 2 files changed, 4 insertions(+), 1 deletion(-)
 create mode 100644 kernel/new.txt

diff --git a/kernel/CMakeLists.txt b/kernel/CMakeLists.txt
index eabdc0f80e9e08d5ff3e98bceaa7e85a51089e6d..33652e41a62e2a573495be1c3567fbaeaf01bd80 100644
--- a/kernel/CMakeLists.txt
+++ b/kernel/CMakeLists.txt
@@ -1,4 +1,6 @@ project(x)
 one
-cmake_policy(SET CMP0169 OLD)
+if(POLICY CMP0169)
+  cmake_policy(SET CMP0169 OLD)
+endif()
 three
 four
diff --git a/kernel/new.txt b/kernel/new.txt
new file mode 100644
index 0000000000000000000000000000000000000000..33652e41a62e2a573495be1c3567fbaeaf01bd80
--- /dev/null
+++ b/kernel/new.txt
@@ -0,0 +1 @@
+new
"""


def parse(text: str | bytes) -> Patch | str:
    """A patch, or its problems one a line."""
    data = text if isinstance(text, bytes) else text.encode()
    found = parse_patch("p", Path("p.patch"), data, shown="p.patch", directory="kernel")
    if isinstance(found, Patch):
        return found
    return "\n".join(f"{problem.where} → {problem.reason}" for problem in found)


def test_a_patch_is_parsed_to_values() -> None:
    patch = parse(GOOD)
    assert isinstance(patch, Patch), patch
    assert patch.subject == "policy: set only what this CMake knows"
    assert patch.author == "Jörg <j@example.invalid>"
    assert patch.reason == "Old CMake stops at a policy that it\ndoes not know."
    assert patch.upstream_status == Status("Submitted", "https://example.invalid/pull/1")
    assert str(patch.needed_when) == "cmake < 3.31"
    assert patch.proves == (
        Proof("file-contains", "if(POLICY CMP0169)", "kernel/CMakeLists.txt"),
        Proof("cache", "FOO=BAR"),
    )
    assert patch.files == ("kernel/CMakeLists.txt", "kernel/new.txt")
    assert (patch.added, patch.removed) == (4, 1)
    assert patch.diffs[1].created
    assert patch.diffs[0].hunks[0].old == (
        b"one\n",
        b"cmake_policy(SET CMP0169 OLD)\n",
        b"three\n",
        b"four\n",
    )
    assert parse(GOOD + "-- \n2.39.5\n\n") != ""


def test_a_folded_trailer_is_one() -> None:
    text = GOOD.replace("cmake < 3.31\n", "cmake < 3.31\n  or cuda < 13\n")
    patch = parse(text)
    assert isinstance(patch, Patch)
    assert str(patch.needed_when) == "cmake < 3.31 or cuda < 13"


REASON = "Old CMake stops at a policy that it\ndoes not know.\n\n"
DIFF = "diff --git a/kernel/CMakeLists.txt b/kernel/CMakeLists.txt"
BAD: dict[str, Callable[[str], str]] = {
    "traversal": lambda text: text.replace("kernel/new.txt", "kernel/../../new.txt"),
    "absolute": lambda text: text.replace(DIFF, "diff --git a//etc/passwd b//etc/passwd"),
    "absolute-bare": lambda text: text.replace(DIFF, "diff --git /etc/passwd /etc/passwd"),
    "git-directory": lambda text: text.replace("kernel/new.txt", "kernel/.git/config"),
    "quoted": lambda text: text.replace(DIFF, 'diff --git "a/kernel/\\303" "b/kernel/\\303"'),
    "two-names": lambda text: text.replace(DIFF, "diff --git a/kernel/a b/kernel/b"),
    "other-side": lambda text: text.replace("+++ b/kernel/CMake", "+++ b/kernel/Make"),
    "side-traversal": lambda text: text.replace("+++ b/kernel/CMakeLists.txt", "+++ b/../evil"),
    "symlink": lambda text: text.replace("new file mode 100644", "new file mode 120000"),
    "submodule": lambda text: text.replace("new file mode 100644", "new file mode 160000"),
    "mode-change": lambda text: text.replace(
        "index eabdc0f", "old mode 100644\nnew mode 100755\nindex eabdc0f"
    ),
    "binary": lambda text: (
        text.replace("--- /dev/null\n+++ b/kernel/new.txt\n@@ -0,0 +1 @@\n+new\n", "")
        + "GIT binary patch\nliteral 4\nLcmZQ*c${\n"
    ),
    "binary-short": lambda text: text.replace(
        "--- /dev/null\n+++ b/kernel/new.txt\n@@ -0,0 +1 @@\n+new\n",
        "Binary files /dev/null and b/kernel/new.txt differ\n",
    ),
    "rename": lambda text: text.replace(
        "index eabdc0f", "rename from kernel/x\nrename to kernel/y\nindex eabdc0f"
    ),
    "crlf": lambda text: text.replace("\n", "\r\n"),
    "crlf-diff": lambda text: text[: text.index("diff")] + text[text.index("diff") :].replace("\n", "\r\n"),
    "truncated": lambda text: text[: text.index(" three\n")],
    "truncated-line": lambda text: text.removesuffix("w\n"),
    "count-low": lambda text: text.replace("-1,4 +1,6", "-1,3 +1,5"),
    "count-high": lambda text: text.replace("-1,4 +1,6", "-1,5 +1,7"),
    "count-odd": lambda text: text.replace("-1,4 +1,6", "-1,4 +1,4"),
    "space-damage": lambda text: text.replace(" three\n", "\n"),
    "no-hunks": lambda text: text[: text.index("@@ -1,4")],
    "no-effect": lambda text: text.replace("+new\n", " new\n").replace("-0,0 +1", "-1 +1"),
    "no-diff": lambda text: text[: text.index("diff")],
    "garbage": lambda text: text + "what is this\n",
    "no-from": lambda text: text.replace("From 0000", "Form 0000"),
    "no-separator": lambda text: text.replace("---\n kernel", " kernel"),
    "no-reason": lambda text: text.replace(REASON, ""),
    "no-trailers": lambda text: text[: text.index("Upstream")] + text[text.index("---\n") :],
    "no-status": lambda text: re.sub(r"Upstream-Status.*\n", "", text),
    "no-proof": lambda text: re.sub(r"Proves.*\n", "", text),
    "unknown-trailer": lambda text: text.replace("Needed-When", "Need-When"),
    "foreign-trailer": lambda text: text.replace("Proves: cache", "Reviewed-by: cache"),
    "twice": lambda text: text.replace("Proves: cache FOO=BAR", "Needed-When: cmake < 3"),
    "stray-trailer": lambda text: text.replace("does not know.", "Proves: configures"),
    "predicate": lambda text: text.replace("cmake < 3.31", "cmkae < 3.31"),
    "status": lambda text: text.replace("Submitted https://example.invalid/pull/1", "Pendig"),
    "status-form": lambda text: text.replace("https://example.invalid/pull/1", "soon"),
    "proof-kind": lambda text: text.replace("Proves: cache", "Proves: cahce"),
    "proof-form": lambda text: text.replace("FOO=BAR", "FOO"),
    "proof-path": lambda text: text.replace("file kernel/CMakeLists.txt", "file ../x"),
    "date": lambda text: text.replace("Fri, 6 Mar 2026 00:00:00 +0000", "yesterday"),
    "outside": lambda text: text.replace("kernel/new.txt", "docs/new.txt"),
    "same-file": lambda text: text.replace("kernel/new.txt", "kernel/CMakeLists.txt"),
    "encoded": lambda text: text.replace("Date:", "Content-Transfer-Encoding: quoted-printable\nDate:"),
    "many": lambda text: text.replace("cmake < 3.31", "cmake").replace("FOO=BAR", "").replace("-1,4", "-1,3"),
}


def test_every_mistake_is_named(golden: Callable[[str, str], None]) -> None:
    report = ""
    for name, damage in BAD.items():
        text = damage(GOOD)
        assert text != GOOD, name
        found = parse(text)
        assert isinstance(found, str), f"{name} was accepted"
        report += f"{name}:\n{found}\n\n"
    golden("patch/mistakes.txt", report)


def test_bytes_that_are_not_utf8_are_content() -> None:
    patch = parse(GOOD.encode().replace(b"+new\n", b"+n\xffw\n"))
    assert isinstance(patch, Patch)
    assert patch.diffs[1].hunks[0].new == (b"n\xffw\n",)
    assert "not UTF-8" in str(parse(GOOD.encode().replace(b"does not", b"does \xff")))


def test_a_file_that_ends_without_newline() -> None:
    text = GOOD.replace("+new\n", "+new\n\\ No newline at end of file\n")
    patch = parse(text)
    assert isinstance(patch, Patch)
    assert patch.diffs[1].hunks[0].new == (b"new",)


def test_carriage_returns_of_the_content_are_kept() -> None:
    patch = parse(GOOD.replace("+new\n", "+new\r\n"))
    assert isinstance(patch, Patch)
    assert patch.diffs[1].hunks[0].new == (b"new\r\n",)


@given(st.data())
def test_damage_never_escapes_as_another_exception(data: st.DataObject) -> None:
    text = GOOD.encode()
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, len(text)))
    filler = data.draw(st.binary(max_size=6))
    parse(text[:start] + filler + text[end:])


def folder(tmp_path: Path, listing: str, **patches: str) -> Layout:
    layout = Layout(tmp_path)
    directory = layout.patches / "s"
    directory.mkdir(parents=True)
    (directory / "series").write_text(listing)
    for name, text in patches.items():
        (directory / f"{name}.patch").write_text(text)
    return layout


def test_a_series_keeps_its_order_and_its_digest_covers_it(tmp_path: Path) -> None:
    layout = folder(tmp_path, "# first the base\nb.patch\n\na.patch  # then\n", a=GOOD, b=GOOD)
    loaded = series.load(layout, "s", directory="kernel")
    assert [patch.name for patch in loaded.patches] == ["b", "a"]
    (layout.patches / "s/series").write_text("a.patch\nb.patch\n")
    assert series.load(layout, "s").digest != loaded.digest
    assert loaded.files == ("kernel/CMakeLists.txt", "kernel/new.txt")


def test_an_empty_series_is_one(tmp_path: Path) -> None:
    assert series.load(folder(tmp_path, "# nothing\n"), "s").patches == ()


def test_a_series_reports_all_of_its_mistakes(tmp_path: Path, golden: Callable[[str, str], None]) -> None:
    listing = "a.patch\na.patch\nmising.patch\n../a.patch\n0001-a.patch\nA.patch\n"
    layout = folder(tmp_path, listing, a=GOOD, missing=BAD["no-reason"](GOOD), unlisted=GOOD)
    (layout.patches / "s/notes.txt").write_text("")
    with pytest.raises(PatchError) as caught:
        series.load(layout, "s")
    lines = [f"{where} → {reason}" for where, reason in caught.value.where.items()]
    golden("patch/series.txt", f"{caught.value.what}\n" + "\n".join(lines) + "\n")


def test_an_unknown_series_suggests_one(tmp_path: Path) -> None:
    with pytest.raises(PatchError, match="did you mean 's'"):
        series.load(folder(tmp_path, ""), "ss")
