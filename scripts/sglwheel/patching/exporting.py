"""The way back: commits become patch files, the same bytes every time, and a series directory at once."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from sglwheel import files
from sglwheel.errors import PatchError
from sglwheel.files import Layout
from sglwheel.git import Git
from sglwheel.patching import Base, trials
from sglwheel.patching.worktree import Worktree, am
from sglwheel.series import Problem, Series, problems_error
from sglwheel.series.patchfile import Patch, parse_patch
from sglwheel.types import CommitId

# Everything that a configuration or a later git could decide otherwise is said.
_FORMAT = (
    "--zero-commit",
    "--no-signature",
    "--full-index",
    "--no-renames",
    "--no-numbered",
    "--subject-prefix=PATCH",
    "--no-attach",
    "--no-thread",
    "--no-cover-letter",
    "--no-notes",
    "--no-base",
    "--no-from",
    "--no-to",
    "--no-cc",
    "--no-add-header",
    "--no-ext-diff",
    "--no-textconv",
    "--no-color",
    "--no-relative",
    "--encode-email-headers",
    "--diff-algorithm=myers",
    "--indent-heuristic",
    "--unified=3",
    "--inter-hunk-context=0",
    "--src-prefix=a/",
    "--dst-prefix=b/",
    "--suffix=.patch",
)


@dataclass(frozen=True)
class Exported:
    """A commit as a patch file."""

    commit: CommitId
    subject: str
    text: bytes


def export(git: Git, base: str, head: str) -> tuple[Exported, ...]:
    """The commits `base..head`, oldest first. Raises PatchError for a merge, or if head does not descend."""
    if git.run("merge-base", "--is-ancestor", base, head, accept=(0, 1), failure=PatchError).returncode:
        raise PatchError(
            "the work does not start from the pinned commit any more",
            where={"pinned": base, "work": head},
            next="git rebase --onto upstream …, so that it does",
        )
    merges = git.run("rev-list", "--merges", f"{base}..{head}", failure=PatchError).stdout.split()
    if merges:
        raise PatchError(
            "a merge cannot become a patch",
            where={"commit": merges[0]},
            next="git rebase upstream makes the history linear",
        )
    listed = git.run("log", "--reverse", "--format=%H %s", f"{base}..{head}", failure=PatchError).stdout
    commits = [line.partition(" ") for line in listed.splitlines()]
    with tempfile.TemporaryDirectory(prefix="sglwheel-") as scratch:
        if commits:
            git.run("format-patch", "--quiet", *_FORMAT, "-o", scratch, f"{base}..{head}", failure=PatchError)
        texts = [path.read_bytes() for path in sorted(Path(scratch).iterdir())]
    if len(texts) != len(commits):
        raise PatchError(
            "a commit without a change cannot become a patch", where={"range": f"{base}..{head}"}
        )
    return tuple(
        Exported(CommitId.parse(commit), subject, text)
        for (commit, _, subject), text in zip(commits, texts, strict=True)
    )


def reexport(checkout: Base, series: Series, scratch: Path, directory: str) -> dict[str, bytes]:
    """What every patch that applies at the checkout would be exported as; `scratch` is for a worktree.

    A patch that does not apply exactly is left out: its text belongs to another commit.
    """
    result: dict[str, bytes] = {}
    with Worktree(Git(checkout.repository), checkout.commit, scratch, (directory,)) as tree:
        for patch in series.patches:
            before = tree.head()
            state, _, _ = am(tree, patch, partial(trials.bases, tree.git, series))
            if state in ("conflict", "obsolete"):
                tree.run("am", "--abort")
            elif state == "applied":
                (done,) = export(tree.git, before, "HEAD")
                result[patch.name] = done.text
    return result


def names(exported: Sequence[Exported], before: Sequence[Patch], known: Mapping[str, str]) -> list[str]:
    """A name for each commit: the one it had (by id, subject or change), or one made from its subject."""
    by_subject = {patch.subject: patch.name for patch in before}
    by_change = {_change(patch.text): patch.name for patch in before}
    taken: set[str] = set()
    result: list[str] = []
    for item in exported:
        candidates = [known.get(item.commit), by_subject.get(item.subject), by_change.get(_change(item.text))]
        slug = _slug(item.subject)
        candidates += [slug, *(f"{slug}-{number}" for number in range(2, len(exported) + 2))]
        name = next(name for name in candidates if name is not None and name not in taken)
        taken.add(name)
        result.append(name)
    return result


def write_series(
    layout: Layout,
    name: str,
    patches: Sequence[tuple[str, bytes]],
    *,
    directory: str,
    keep: Path | None = None,
) -> None:
    """Make `patches/<name>` hold exactly these patches, all at once; other files of `keep` stay.

    Every text is parsed first. Raises PatchError, and then nothing has changed.
    """
    problems: list[Problem] = []
    for patch, text in patches:
        shown = f"patches/{name}/{patch}.patch"
        found = parse_patch(patch, Path(shown), text, shown=shown, directory=directory)
        problems += () if isinstance(found, Patch) else found
    if problems:
        raise problems_error(
            "what would be exported", problems, next="git rebase -i upstream (reword, edit), and export again"
        )
    final = layout.patches / name
    listing = [f"{patch}.patch" for patch, _ in patches]
    try:
        for stale in layout.patches.glob(f".{name}.*"):
            shutil.rmtree(stale)
        scratch = Path(tempfile.mkdtemp(prefix=f".{name}.", dir=layout.patches))
        try:
            source = keep if keep is not None else final
            for path in source.iterdir() if source.is_dir() else ():
                if path.suffix != ".patch" and path.name != "series":
                    shutil.copy2(path, scratch / path.name)
            old = (source / "series").read_text("utf-8") if (source / "series").is_file() else ""
            files.write_atomic(scratch / "series", _listing(old, listing))
            for patch, text in patches:
                files.write_atomic(scratch / f"{patch}.patch", text)
            scratch.chmod(0o755)
            if final.is_dir():
                files.swap_directories(scratch, final)
            else:
                scratch.rename(final)
                files.sync_directory(layout.patches)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    except OSError as error:
        raise PatchError(
            f"cannot write the series: {error.strerror}", where={"series": layout.relative(final)}
        ) from error


def _listing(old: str, wanted: Sequence[str]) -> str:
    """The `series` file: comments stay with the patch below them, as long as it is there."""
    comments: dict[str, list[str]] = {}
    pending: list[str] = []
    lines: dict[str, str] = {}
    for line in old.splitlines():
        entry = line.partition("#")[0].strip()
        if entry:
            comments[entry], lines[entry] = pending, line
            pending = []
        else:
            pending.append(line)
    result: list[str] = []
    for entry in wanted:
        result += [*comments.get(entry, []), lines.get(entry, entry)]
    return "".join(f"{line}\n" for line in [*result, *pending])


def _change(text: bytes) -> bytes:
    """The changed lines alone: what stays when hunks move or a message is edited."""
    diff = text[text.find(b"\ndiff --git ") :]
    return b"\n".join(line for line in diff.split(b"\n") if line[:1] in (b"+", b"-"))


def _slug(subject: str) -> str:
    """`cmake-policy: set …` is called cmake-policy; without such a prefix the words are joined."""
    prefix = re.match(r"([a-z0-9][a-z0-9._-]*): ", subject)
    text = prefix[1] if prefix else subject
    slug = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:50].strip("-")
    slug = re.sub(r"^\d+-", "", slug)
    return slug or "patch"
