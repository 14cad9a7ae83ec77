"""Ask the build's governor for admission, run one compiler, report what it cost, and again if told so.

Copied into every build tree and started by ninja in front of each compiler as
`python -I -S launch.py compiler …`, by the build environment's interpreter: standard library only. Without
a governor (somebody runs ninja by hand) compilers run one after another, which is slow and safe.
"""

import contextlib
import fcntl
import json
import os
import signal
import socket
import sys
import time

HERE = __file__.rpartition("/")[0]


def unit(argv: list[str]) -> str:
    """The object file that a compile command writes; the governor knows units by it."""
    if "-o" in argv[:-1]:
        return argv[argv.index("-o") + 1]
    return argv[-1]


class Governor:
    """Our end of the channel: the connection is the token that the governor counts."""

    def __init__(self, address: str, name: str) -> None:
        self.request = {"unit": name, "pid": os.getpid()}
        self.channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        directory, _, name = address.rpartition("/")
        with contextlib.suppress(OSError):  # then nothing can be sent either
            # An address may be longer than the 107 bytes that a socket's path has.
            descriptor = os.open(directory, os.O_PATH | os.O_CLOEXEC)
            self.channel.connect(f"/proc/self/fd/{descriptor}/{name}")
            os.close(descriptor)

    def ask(self, message: dict[str, object]) -> bytes:
        """Send one line and wait for the answer; empty when nobody listens any more."""
        try:
            self.channel.sendall(json.dumps(message).encode() + b"\n")
            return self.channel.recv(16)
        except OSError:
            return b""

    def admitted(self) -> bool:
        """Wait for our turn. False when the governor went away: nobody owns this build any more."""
        return self.ask(self.request).startswith(b"go")

    def again(self, cost: dict[str, object]) -> bool:
        """Report one run of the compiler; whether it has to be repeated."""
        return self.ask(cost).startswith(b"again")


def alone() -> None:
    """Hold the tree's only slot until we exit."""
    descriptor = os.open(f"{HERE}/launch.lock", os.O_RDWR | os.O_CREAT, 0o644)
    fcntl.flock(descriptor, fcntl.LOCK_EX)


def unnamed() -> int:
    """A new file without a name (not every Python has memfd_create, not every file system O_TMPFILE)."""
    path = f"{HERE}/.said-{os.getpid()}"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    os.unlink(path)  # noqa: PTH108  pathlib would double the time it takes to start
    return descriptor


def run(argv: list[str], out: int | None) -> dict[str, object]:
    """Run the compiler, with its output into `out` if given; what it cost."""
    started = time.monotonic()
    into = [] if out is None else [(os.POSIX_SPAWN_DUP2, out, 1), (os.POSIX_SPAWN_DUP2, out, 2)]
    child = os.posix_spawnp(argv[0], argv, os.environ, file_actions=into)
    _, status, usage = os.wait4(child, 0)
    return {
        "code": os.waitstatus_to_exitcode(status),
        "seconds": round(time.monotonic() - started, 3),
        "cpu": round(usage.ru_utime + usage.ru_stime, 3),
        "peak_kib": usage.ru_maxrss,
        "own": round(time.process_time(), 3),
    }


def main(argv: list[str]) -> int:
    """Run the compiler; our exit status is its."""
    address = os.environ.get("SGLWHEEL_ADMISSION")
    governor = Governor(address, unit(argv)) if address else None
    if governor is None:
        alone()
    while True:
        if governor is not None and not governor.admitted():
            gone = f"the sglwheel that runs this build has ended, or {address} is gone"
            sys.stderr.write(f"launch: error: {gone}: build again\n")
            return 1
        try:
            # What a compiler says that is ended and started again must not be in the log.
            out = unnamed() if governor is not None else None
            cost = run(argv, out)
        except OSError as error:
            sys.stderr.write(f"launch: error: cannot start {argv[0]}: {error.strerror}\n")
            return 127
        said = b""
        if governor is not None and out is not None:
            said = os.pread(out, os.fstat(out).st_size, 0)
            os.close(out)
            if cost["code"]:
                cost["said"] = said[-4000:].decode("utf-8", "replace")
            if governor.again(cost):
                continue
        break
    sys.stderr.flush()
    sys.stdout.buffer.write(said)
    sys.stdout.flush()
    code = int(str(cost["code"]))
    if code < 0:
        sys.stderr.write(f"launch: error: the compiler was killed by {signal.Signals(-code).name}\n")
        return 128 - code
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
