"""Ask the build's governor for admission, run one compiler, report what it cost.

Copied into every build tree and started by ninja in front of each compiler as
`python -I -S launch.py compiler …`, by the build environment's interpreter: standard library only. Without
a governor (somebody runs ninja by hand) compilers run one after another, which is slow and safe.
"""

import fcntl
import json
import os
import signal
import socket
import sys
import time


def unit(argv: list[str]) -> str:
    """The object file that a compile command writes; the governor knows units by it."""
    if "-o" in argv[:-1]:
        return argv[argv.index("-o") + 1]
    return argv[-1]


def admitted(channel: socket.socket, address: str, argv: list[str]) -> bool:
    """Wait for our turn. False when the governor went away: nobody owns this build any more."""
    request = {"unit": unit(argv), "pid": os.getpid()}
    try:
        channel.connect(address)
        channel.sendall(json.dumps(request).encode() + b"\n")
        return channel.recv(16).startswith(b"go")
    except OSError:
        return False


def report(channel: socket.socket, cost: dict[str, float]) -> None:
    """Tell the governor, if it still listens."""
    try:
        channel.sendall(json.dumps(cost).encode() + b"\n")
    except OSError:
        return


def alone() -> None:
    """Hold the tree's only slot until we exit."""
    here = __file__.rpartition("/")[0]
    descriptor = os.open(f"{here}/launch.lock", os.O_RDWR | os.O_CREAT, 0o644)
    fcntl.flock(descriptor, fcntl.LOCK_EX)


def main(argv: list[str]) -> int:
    """Run the compiler; our exit status is its."""
    address = os.environ.get("SGLWHEEL_ADMISSION")
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) if address else None
    if channel is None or address is None:
        alone()
    elif not admitted(channel, address, argv):
        sys.stderr.write("launch: error: the sglwheel that runs this build has ended\n")
        return 1
    started = time.monotonic()
    try:
        child = os.posix_spawnp(argv[0], argv, os.environ)
    except OSError as error:
        sys.stderr.write(f"launch: error: cannot start {argv[0]}: {error.strerror}\n")
        return 127
    _, status, usage = os.wait4(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if channel is not None:
        cost = {
            "code": code,
            "seconds": round(time.monotonic() - started, 3),
            "cpu": round(usage.ru_utime + usage.ru_stime, 3),
            "peak_kib": usage.ru_maxrss,
        }
        report(channel, cost)
    if code < 0:
        sys.stderr.write(f"launch: error: the compiler was killed by {signal.Signals(-code).name}\n")
        return 128 - code
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
