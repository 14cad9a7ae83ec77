"""The one place that starts processes."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from sglwheel import process
from sglwheel.errors import BuildError, Interrupted, SourceError

PYTHON = sys.executable


def test_run_returns_output_and_replaces_the_environment() -> None:
    script = "import os, sys; print(sorted(os.environ)); print(sys.stdin.read())"
    done = process.run([PYTHON, "-I", "-c", script], failure=BuildError, env={"ONLY": "1"}, input=b"hello")
    assert "'ONLY'" in done.stdout
    assert "'HOME'" not in done.stdout
    assert done.stdout.endswith("hello\n")


def test_failure_is_the_stage_s_own_error() -> None:
    with pytest.raises(SourceError, match=r"exit status 3.*why") as caught:
        process.run(
            [PYTHON, "-c", "import sys; print('why', file=sys.stderr); sys.exit(3)"], failure=SourceError
        )
    assert "command" in caught.value.where


def test_missing_command_and_timeout() -> None:
    with pytest.raises(BuildError, match="command not found: no-such-command"):
        process.run(["no-such-command"], failure=BuildError)
    with pytest.raises(BuildError, match=r"no end after 0\.2 s"):
        process.run([PYTHON, "-c", "import time; time.sleep(9)"], failure=BuildError, timeout=0.2)


def test_stream_logs_every_line_and_returns_the_status(tmp_path: Path) -> None:
    seen: list[str] = []
    script = "import sys; [print(i) for i in range(100)]; sys.exit(4)"
    done = process.stream(
        [PYTHON, "-c", script], failure=BuildError, log=tmp_path / "a/log", on_line=seen.append, tail=3
    )
    assert (done.returncode, done.stdout) == (4, "97\n98\n99")
    assert len(seen) == 100
    assert (tmp_path / "a/log").read_text().splitlines()[1:] == seen


def test_a_killed_child_is_named_by_its_signal(tmp_path: Path) -> None:
    script = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    done = process.stream([PYTHON, "-c", script], failure=BuildError, log=tmp_path / "log")
    assert process.describe_status(done.returncode) == "killed by SIGKILL"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_ends_the_whole_group(tmp_path: Path, number: signal.Signals) -> None:
    pid_file = tmp_path / "grandchild"
    script = (
        "import subprocess, sys, time\n"
        f"child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        f"open({str(pid_file)!r}, 'w').write(str(child.pid)); print('ready', flush=True); time.sleep(60)"
    )

    def interrupt(line: str) -> None:
        if line == "ready":
            threading.Timer(0.1, os.kill, (os.getpid(), number)).start()

    started = time.monotonic()
    # A shell starts its background jobs with SIGINT ignored, and the tests may be one.
    inherited = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(Interrupted) as caught:
            process.stream(
                [PYTHON, "-c", script], failure=BuildError, log=tmp_path / "log", on_line=interrupt
            )
    finally:
        signal.signal(signal.SIGINT, inherited)
    assert caught.value.exit_code == 130
    assert time.monotonic() - started < 20
    grandchild = int(pid_file.read_text())
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        state = Path(f"/proc/{grandchild}/stat")
        if not state.exists() or state.read_text().rsplit(")", 1)[1].split()[0] == "Z":
            return
        time.sleep(0.05)
    pytest.fail("a compiler outlived the build")


def test_passwords_in_urls_are_not_logged(tmp_path: Path) -> None:
    url = "https://me:s3cret@host.example/x"
    log = tmp_path / "log"
    done = process.stream(["echo", f"GET {url}"], failure=BuildError, log=log)
    assert log.read_text() == "$ echo 'GET https://host.example/x'\nGET https://host.example/x\n"
    with pytest.raises(BuildError) as caught:
        process.run(["sh", "-c", "echo $1 >&2; exit 1", "sh", url], failure=BuildError)
    assert "s3cret" not in f"{done.command}{caught.value.what}{caught.value.where}"


def where_it_ran(text: str) -> tuple[str, int]:
    if text == "wrong":
        raise BuildError("no", where={"piece": text}, next="another")
    return text.upper(), os.getpid()


def test_work_is_spread_over_interpreters_in_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    answers = process.spread(where_it_ran, list("abcdefgh"))
    assert [text for text, _ in answers] == list("ABCDEFGH")
    assert os.getpid() not in {pid for _, pid in answers}
    with pytest.raises(BuildError, match="no") as caught:
        process.spread(where_it_ran, ["a", "wrong"])
    assert (caught.value.where, caught.value.next) == ({"piece": "wrong"}, "another")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    assert process.spread(where_it_ran, ["a", "b"]) == [("A", os.getpid()), ("B", os.getpid())]
