"""The only module that starts processes."""

from __future__ import annotations

import multiprocessing
import os
import re
import resource
import shlex
import signal
import subprocess
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from sglwheel.errors import Interrupted, SglwheelError

Argument = str | os.PathLike[str]
_Piece = TypeVar("_Piece")
_Result = TypeVar("_Result")
# The user and password of an url; whole lines are searched, so this must be cheap.
_WHO = re.compile(r"(?<=://)[^/\s@'\"]+@")


def spread(function: Callable[[_Piece], _Result], pieces: Sequence[_Piece]) -> list[_Result]:
    """Map a module's own function over pieces, in as many interpreters as there are cores for them.

    For what costs processor time by the ten thousand; an interpreter takes half a second to start. What
    `function` raises is raised here.
    """
    workers = min(len(pieces), len(os.sched_getaffinity(0)))
    if workers < 2:
        return [function(piece) for piece in pieces]
    # Forked, an interpreter would have the locks of threads that it has not got.
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        return list(pool.map(function, pieces))


@dataclass(frozen=True)
class Completed:
    """A finished process; `stdout` and `stderr` are decoded with replacement, `output` is stdout's bytes."""

    argv: tuple[str, ...]
    returncode: int
    stdout: str
    stderr: str
    output: bytes = field(default=b"", repr=False)

    @property
    def command(self) -> str:
        """The command as a person would type it, less passwords in urls."""
        return without_secrets(shlex.join(self.argv))


def without_secrets(text: str) -> str:
    """A text for logs and errors: urls in it lose user and password."""
    return _WHO.sub("", text) if "@" in text else text


def run(
    argv: Sequence[Argument],
    *,
    failure: type[SglwheelError],
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    input: bytes | None = None,
    timeout: float | None = None,
    accept: Sequence[int] = (0,),
    what: str | None = None,
    next: str | None = None,
) -> Completed:
    """Run a command to its end and capture its output.

    `env` replaces the whole environment when given. Raises `failure` when the command is missing,
    outlives `timeout` seconds, or ends with a status outside `accept`.
    """
    words = tuple(os.fspath(word) for word in argv)
    shown = without_secrets(shlex.join(words))
    try:
        done = subprocess.run(
            words,
            cwd=cwd,
            env=None if env is None else dict(env),
            input=input,
            stdin=subprocess.DEVNULL if input is None else None,
            capture_output=True,
            timeout=timeout,
            check=False,
        )
    except FileNotFoundError as error:
        raise failure(f"command not found: {error.filename or words[0]}", where={"command": shown}) from error
    except OSError as error:
        raise failure(f"cannot start {words[0]}: {error.strerror}", where={"command": shown}) from error
    except subprocess.TimeoutExpired as error:
        raise failure(
            f"{what or words[0]}: no end after {timeout:g} s", where={"command": shown}, next=next
        ) from error
    completed = Completed(
        words,
        done.returncode,
        done.stdout.decode("utf-8", "replace"),
        done.stderr.decode("utf-8", "replace"),
        done.stdout,
    )
    if completed.returncode not in accept:
        said = completed.stderr.strip() or completed.stdout.strip()
        raise _failed(failure, words, completed.returncode, said, cwd=cwd, what=what, next=next)
    return completed


def metered(
    argv: Sequence[Argument],
    *,
    failure: type[SglwheelError],
    cwd: Path | None = None,
    what: str | None = None,
) -> float:
    """Run a command to its end; the CPU seconds, user and system, of it and its descendants.

    May be called from several threads. Raises `failure` as `run` does.
    """
    words = tuple(os.fspath(word) for word in argv)
    shown = without_secrets(shlex.join(words))
    with tempfile.TemporaryFile() as said:
        try:
            child = subprocess.Popen(
                words, cwd=cwd, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT
            )
        except OSError as error:
            raise failure(f"cannot start {words[0]}: {error.strerror}", where={"command": shown}) from error
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            said.seek(0)
            text = said.read().decode("utf-8", "replace").strip()
            raise _failed(failure, words, child.returncode, text, cwd=cwd, what=what)
    return usage.ru_utime + usage.ru_stime


def children_cpu() -> float:
    """CPU seconds, user and system, of all children that have ended and were waited for, with theirs."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def stream(
    argv: Sequence[Argument],
    *,
    failure: type[SglwheelError],
    log: Path,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    on_line: Callable[[str], None] | None = None,
    on_start: Callable[[int], None] | None = None,
    tail: int = 40,
) -> Completed:
    """Run a long command in its own process group, every line into `log` and to `on_line`.

    SIGINT and SIGTERM to us end the whole group (SIGTERM, after 10 s SIGKILL) and raise `Interrupted`. The
    returned `stdout` holds the last `tail` lines; a non-zero status is returned, not raised.
    """
    words = tuple(os.fspath(word) for word in argv)
    shown = without_secrets(shlex.join(words))
    last: deque[str] = deque(maxlen=tail)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8", errors="replace") as sink:
        sink.write(f"$ {shown}\n")
        sink.flush()
        try:
            child = subprocess.Popen(
                words,
                cwd=cwd,
                env=None if env is None else dict(env),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise failure(f"cannot start {words[0]}: {error.strerror}", where={"command": shown}) from error
        if on_start is not None:
            on_start(child.pid)
        previous = _terminate_as_interrupt()
        assert child.stdout is not None
        try:
            for raw in child.stdout:
                line = without_secrets(raw.decode("utf-8", "replace").rstrip("\r\n"))
                sink.write(line + "\n")
                last.append(line)
                if on_line is not None:
                    on_line(line)
            child.wait()
        except KeyboardInterrupt:
            raise Interrupted(
                "interrupted", next="run the same command again: it continues", log=log
            ) from None
        finally:
            _end_group(child)
            child.stdout.close()
            if previous is not None:
                signal.signal(signal.SIGTERM, previous)
    return Completed(words, child.returncode, "\n".join(last), "")


def _failed(
    failure: type[SglwheelError],
    words: Sequence[str],
    returncode: int,
    said: str,
    *,
    cwd: Path | None,
    what: str | None,
    next: str | None = None,
) -> SglwheelError:
    """A command's bad end, with the last of what it said."""
    tail = without_secrets(said)[-2000:]
    return failure(
        f"{what or words[0]} failed ({describe_status(returncode)})" + (f": {tail}" if tail else ""),
        where={"command": without_secrets(shlex.join(words)), **({"cwd": str(cwd)} if cwd else {})},
        next=next,
    )


def describe_status(returncode: int) -> str:
    """Say an exit status in words: `exit status 1`, or `killed by SIGKILL`."""
    if returncode < 0:
        try:
            return f"killed by {signal.Signals(-returncode).name}"
        except ValueError:
            return f"killed by signal {-returncode}"
    return f"exit status {returncode}"


def _terminate_as_interrupt() -> Callable[[int, FrameType | None], Any] | int | None:
    """Make SIGTERM unwind like Ctrl-C; only the main thread may set handlers."""
    if threading.current_thread() is not threading.main_thread():
        return None

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    return signal.signal(signal.SIGTERM, interrupt)


def _end_group(child: subprocess.Popen[bytes]) -> None:
    """Leave no compiler behind: the group outlives its leader when ninja is killed."""
    for number, patience in ((signal.SIGTERM, 10.0), (signal.SIGKILL, 10.0)):
        try:
            os.killpg(child.pid, number)
        except ProcessLookupError:
            break
        except PermissionError:
            break
        try:
            child.wait(patience)
        except subprocess.TimeoutExpired:
            continue
        if number is signal.SIGTERM and not _group_alive(child.pid):
            break
    child.wait()


def _group_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True
