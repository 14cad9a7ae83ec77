"""Fetch into a Git store from the first place that has what is asked for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import tenacity

from sglwheel.errors import SourceError
from sglwheel.git import Git
from sglwheel.mirrors import anonymous, local_path, normal, redacted

# What a public forge allows for every repository, switched on for a plain one on this host. The user named
# the mirror, so who owns its files is no reason to refuse; nothing of it is run.
_LOCAL_UPLOAD_PACK = (
    "git -c uploadpack.allowFilter=true -c uploadpack.allowAnySHA1InWant=true -c safe.directory='*'"
    " upload-pack"
)
ATTEMPTS = 3
WAIT = tenacity.wait_exponential(min=1, max=10)
# A server that stalls for a minute is not there; git itself would wait for ever.
PATIENCE = ("-c", "http.lowSpeedLimit=1000", "-c", "http.lowSpeedTime=60")
_ANY_STATUS = range(-64, 256)
# Asking again does not change these. All else may: git words a torn connection in many ways, also as damage.
_LASTING = re.compile(
    r"not our ref|no such remote ref|couldn't find remote ref|unadvertised object|terminal prompts disabled"
    r"|authentication failed|permission denied|not appear to be a git repository|no such file or directory"
    r"|certificate (verif|problem|subject)|not found|error: 40[1347]|(code|response) 407",
    re.IGNORECASE,
)
_DAMAGED = "sent something else than this id, or damaged data"
_REASONS = (
    (r"not our ref|no such remote ref|couldn't find remote ref|unadvertised object", "does not have it"),
    (r"terminal prompts disabled|authentication failed|permission denied", "not found, or not for us"),
    (
        r"certificate (verif|problem|subject)",
        "its certificate is not trusted; SSL_CERT_FILE or git's http.sslCAInfo names a file with your own CA",
    ),
    (r"error: 407|(code|response) 407", "the proxy wants a name and a password"),
    (r"hash mismatch|corrupt|did not send all necessary|bad object|missing (blob|tree|commit)", _DAMAGED),
    (r"inflate|invalid sha1|unable to parse|bad tree|premature end of pack|unresolved deltas", _DAMAGED),
    (r"not appear to be a git repository|no such file or directory|not found", "no repository there"),
    (r"could not resolve", "host not found"),
)


class TransientError(SourceError):
    """A failure of the network that may be over in a moment."""


@dataclass(frozen=True)
class Transport:
    """The places that may have an url's objects, in the order in which they are tried."""

    url: str
    candidates: tuple[str, ...]

    def fetch(
        self,
        git: Git,
        arguments: Sequence[str],
        *,
        what: str,
        input: bytes | None = None,
        config: Sequence[str] = (),
    ) -> str:
        """Fetch into `git`; return the place that delivered. Raises SourceError with every place tried."""
        failures: dict[str, str] = {}
        for candidate in self.candidates:
            try:
                _fetch(git, candidate, arguments, input, config)
            except SourceError as error:
                failures[redacted(candidate)] = error.what.replace(candidate, redacted(candidate))
                continue
            # Git itself may want an object later, in a merge: where we got this from, it gets that. Who we
            # are is not written down: git asks its credential helper then.
            url, upload_pack = _address(candidate)
            git.run("config", "remote.origin.url", url)
            git.run("config", "remote.origin.uploadpack", upload_pack)
            return candidate
        raise self.nowhere(what, failures)

    def ask(self, git: Git, names: Sequence[str], *, what: str) -> dict[str, str]:
        """What the first place that knows any of `names` says they are. Raises SourceError."""
        failures: dict[str, str] = {}
        for candidate in self.candidates:
            url, upload_pack = _address(candidate)
            words = (*PATIENCE, "ls-remote", f"--upload-pack={upload_pack}", url, *names)
            done = git.run(*words, env=_login(candidate), user_config=True, accept=_ANY_STATUS)
            if done.returncode:
                failures[redacted(candidate)] = reason(done.stderr).replace(candidate, redacted(candidate))
                continue
            pairs = (line.split("\t") for line in done.stdout.splitlines())
            found = {name: object_id for object_id, name in pairs if name in names}
            if found:
                return found
            failures[redacted(candidate)] = "does not have it"
        raise self.nowhere(what, failures)

    def nowhere(self, what: str, failures: dict[str, str]) -> SourceError:
        """The error of having tried all places."""
        if not self.candidates:
            reserved = ".invalid" in self.url
            failures = {
                self.url: "a reserved name, and no mirror is set for it"
                if reserved
                else "no place on this host has it, and nobody else may be asked"
            }
        return SourceError(
            f"cannot get {what} of {self.url}",
            where=failures,
            next=f"check the id, or name a mirror: SGLWHEEL_MIRRORS='{normal(self.url)}=<url or path>'",
        )


def reason(stderr: str) -> str:
    """Git's complaint in a few words, with its own first error."""
    lines = [line.removeprefix("remote: ").strip() for line in stderr.strip().splitlines()]
    own = next(
        (line for line in lines if line.startswith(("fatal:", "error:"))), lines[0] if lines else "no message"
    )
    for pattern, words in _REASONS:
        if re.search(pattern, stderr, re.IGNORECASE):
            return f"{words} ({own})"
    return own


def _address(candidate: str) -> tuple[str, str]:
    path = local_path(candidate)
    if path is None:
        return anonymous(candidate), "git-upload-pack"
    return path.absolute().as_uri(), _LOCAL_UPLOAD_PACK


def _login(candidate: str) -> dict[str, str]:
    """The user and password of a mirror's url, for one process: git notes urls that it fetches from."""
    clean = anonymous(candidate)
    if clean == candidate:
        return {}
    setting = f"url.{candidate}.insteadOf={clean}".replace("'", "%27")
    return {"GIT_CONFIG_PARAMETERS": f"'{setting}'"}


def _fetch(
    git: Git, candidate: str, arguments: Sequence[str], input: bytes | None, config: Sequence[str]
) -> None:
    local = local_path(candidate)
    if local is not None and not local.is_dir():
        raise SourceError("no such directory")
    url, upload_pack = _address(candidate)
    options = [argument for argument in arguments if argument.startswith("-")]
    wanted = [argument for argument in arguments if not argument.startswith("-")]
    quiet = ("--quiet", "--no-tags", "--no-write-fetch-head", "--no-auto-gc", "--force")
    words = (*PATIENCE, *config, "fetch", *quiet, f"--upload-pack={upload_pack}", *options, url, *wanted)

    @tenacity.retry(
        retry=tenacity.retry_if_exception_type(TransientError),
        stop=tenacity.stop_after_attempt(1 if local is not None else ATTEMPTS),
        wait=WAIT,
        reraise=True,
    )
    def attempt() -> None:
        done = git.run(*words, env=_login(candidate), input=input, user_config=True, accept=_ANY_STATUS)
        if done.returncode:
            kind = SourceError if _LASTING.search(done.stderr) else TransientError
            raise kind(reason(done.stderr))

    attempt()
