"""Git in verbs with types: identity is pinned, and results do not depend on the configuration of the user."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from sglwheel import process
from sglwheel.errors import SglwheelError, SourceError, UsageError
from sglwheel.process import Completed
from sglwheel.types import CommitId

# merge-tree --stdin is the youngest thing that we need: it tries a patch on a hundred commits in one process,
# and ends a stopped `am -3` the same way with every git.
OLDEST = (2, 39)
COMMITTER = "sglwheel"
COMMITTER_EMAIL = "sglwheel@sglwheel.invalid"

# `git rev-parse --local-env-vars` and what pins an identity: set by hooks and CI, and would redirect us.
_REDIRECTING = (
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_AUTHOR_DATE",
    "GIT_AUTHOR_EMAIL",
    "GIT_AUTHOR_NAME",
    "GIT_COMMITTER_DATE",
    "GIT_COMMITTER_EMAIL",
    "GIT_COMMITTER_NAME",
    "GIT_COMMON_DIR",
    "GIT_CONFIG",
    "GIT_CONFIG_PARAMETERS",
    "GIT_DIR",
    "GIT_GRAFT_FILE",
    "GIT_IMPLICIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_INTERNAL_SUPER_PREFIX",
    "GIT_NAMESPACE",
    "GIT_NO_REPLACE_OBJECTS",
    "GIT_OBJECT_DIRECTORY",
    "GIT_PREFIX",
    "GIT_REPLACE_REF_BASE",
    "GIT_SHALLOW_FILE",
    "GIT_WORK_TREE",
)

# Hold for every verb, also for those that see the user's configuration.
_ALWAYS = {
    "advice.detachedHead": "false",
    "core.hooksPath": os.devnull,
    "core.quotePath": "false",
    "fetch.recurseSubmodules": "no",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "submodule.recurse": "false",
}
# Hold where results must not depend on the host.
_HERMETIC = {
    "commit.gpgSign": "false",
    "core.attributesFile": os.devnull,
    "core.autocrlf": "false",
    "core.excludesFile": os.devnull,
    "core.fsmonitor": "false",
    "rerere.enabled": "false",
    "user.useConfigOnly": "false",
}


@dataclass(frozen=True)
class Git:
    """A repository (bare, or a work tree) and the verbs on it."""

    path: Path

    def run(
        self,
        *args: str | os.PathLike[str],
        env: Mapping[str, str] | None = None,
        input: bytes | None = None,
        failure: type[SglwheelError] = SourceError,
        accept: Sequence[int] = (0,),
        timeout: float | None = None,
        what: str | None = None,
        next: str | None = None,
        user_config: bool = False,
    ) -> Completed:
        """Run one git command here; `env` is laid over the pinned environment.

        `user_config` is for verbs that talk to a remote: proxies and credential helpers are the user's.
        """
        return process.run(
            ["git", "-C", self.path, *args],
            env={**environment(user_config=user_config), **(env or {})},
            input=input,
            failure=failure,
            accept=accept,
            timeout=timeout,
            what=what or f"git {os.fspath(args[0])}",
            next=next,
        )

    @staticmethod
    def identity_env(date: datetime | None = None) -> dict[str, str]:
        """Environment that makes commits the same on every host; without `date` only names are pinned."""
        names = {
            "GIT_AUTHOR_NAME": COMMITTER,
            "GIT_AUTHOR_EMAIL": COMMITTER_EMAIL,
            "GIT_COMMITTER_NAME": COMMITTER,
            "GIT_COMMITTER_EMAIL": COMMITTER_EMAIL,
        }
        if date is not None:
            seconds = f"{int(date.timestamp())} +0000"
            names |= {"GIT_AUTHOR_DATE": seconds, "GIT_COMMITTER_DATE": seconds}
        return names

    @classmethod
    def init(cls, path: Path, *, bare: bool = True, failure: type[SglwheelError] = SourceError) -> Git:
        """Make an empty repository, without templates, or open the one that is there."""
        path.mkdir(parents=True, exist_ok=True)
        kind = ["--bare"] if bare else []
        cls(path).run("init", "--quiet", "--template=", "--initial-branch=main", *kind, ".", failure=failure)
        return cls(path)

    def has_commit(self, commit: str) -> bool:
        """Whether the commit object is here; never asks a remote."""
        # In a partial clone `cat-file -e` would fetch a missing object; rev-list does not with this flag.
        done = self.run(
            "rev-list", "--no-walk", "--missing=allow-any", "--ignore-missing", commit, "--", accept=(0, 128)
        )
        return done.returncode == 0 and done.stdout.strip() == commit

    def resolve(self, revision: str, *, failure: type[SglwheelError] = SourceError) -> CommitId:
        """The full id of the commit that `revision` names."""
        done = self.run(
            "rev-parse",
            "--verify",
            "--quiet",
            "--end-of-options",
            f"{revision}^{{commit}}",
            failure=failure,
            what=f"no commit {revision!r} in {self.path}",
        )
        return CommitId.parse(done.stdout.strip())

    def tree(self, revision: str, *, failure: type[SglwheelError] = SourceError) -> str:
        """The id of a commit's tree."""
        done = self.run("rev-parse", "--verify", "--end-of-options", f"{revision}^{{tree}}", failure=failure)
        return done.stdout.strip()

    def date(self, revision: str, *, failure: type[SglwheelError] = SourceError) -> datetime:
        """When a commit was committed, in UTC."""
        done = self.run("show", "--no-patch", "--format=%ct", "--end-of-options", revision, failure=failure)
        return datetime.fromtimestamp(int(done.stdout), UTC)

    def read(self, revision: str, path: str, *, failure: type[SglwheelError] = SourceError) -> str:
        """A file's text at a revision."""
        return self.run("cat-file", "blob", f"{revision}:{path}", failure=failure).stdout


def require_git() -> None:
    """Raise UsageError, once found out, where git is older than the oldest that works."""
    judge(process.run(["git", "--version"], failure=UsageError, what="git --version").stdout)


def judge(text: str) -> None:
    """Raise UsageError for a git too old; `text` is what `git --version` says."""
    found = re.search(r"(\d+)\.(\d+)", text)
    if found is None or (int(found[1]), int(found[2])) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise UsageError(
            f"git {oldest} or later is needed, for `git merge-tree --stdin`",
            where={"found": text.strip() or "no git"},
            next=f"install git {oldest} (Debian 12, RHEL 9, Ubuntu 24.04 have it)",
        )


def environment(*, user_config: bool = False) -> dict[str, str]:
    """The environment of a git process: ours, or ours over the user's configuration."""
    env = {key: value for key, value in os.environ.items() if key not in _REDIRECTING}
    env |= {"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C", "GIT_NO_REPLACE_OBJECTS": "1", "GIT_PAGER": "cat"}
    env.pop("LANGUAGE", None)
    settings = dict(_ALWAYS)
    first = 0
    if user_config:
        env |= _authorities(env)
        first = int(env.get("GIT_CONFIG_COUNT") or 0)
    else:
        env |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "GIT_ATTR_NOSYSTEM": "1"}
        settings |= _HERMETIC
    for index, (key, value) in enumerate(settings.items(), first):
        env[f"GIT_CONFIG_KEY_{index}"] = key
        env[f"GIT_CONFIG_VALUE_{index}"] = value
    env["GIT_CONFIG_COUNT"] = str(first + len(settings))
    return env


def _authorities(env: Mapping[str, str]) -> dict[str, str]:
    """SSL_CERT_FILE and SSL_CERT_DIR in git's own words, unless the user told git itself of certificates."""
    words = {
        own: env[standard]
        for own, standard in (("GIT_SSL_CAINFO", "SSL_CERT_FILE"), ("GIT_SSL_CAPATH", "SSL_CERT_DIR"))
        if env.get(standard)
    }
    if not words or "GIT_SSL_CAINFO" in env or "GIT_SSL_CAPATH" in env:
        return {}
    asked = ["git", "config", "--get-regexp", r"^http\.(.*\.)?sslca(info|path)$"]
    told = process.run(asked, failure=UsageError, env=env, accept=range(256)).stdout
    return {} if told else words
