"""A compiler that compiles nothing: it takes real memory for a real while, and writes its object at the end.

`python -I -S fakecc.py SECONDS PEAK_MIB -o OBJECT`: standard library only. Its memory grows as a compiler's
compiler's does: a third at the start, all of it by two thirds of its time. It sleeps in between, so that it
costs next to no CPU and many of them can stand for many cores.
"""

import os
import sys
import time

STEPS = ((0.0, 0.35), (0.3, 0.6), (0.5, 0.85), (0.65, 1.0))  # (fraction of the time, fraction of the peak)
OWN = 10 << 20  # bytes that the interpreter has


def main(argv: list[str]) -> int:
    """Take the memory, step by step; 1 when it cannot be had."""
    seconds, peak, into = float(argv[0]), int(float(argv[1]) * (1 << 20)), argv[argv.index("-o") + 1]
    begun = time.monotonic()
    kept: list[bytes] = []
    have = OWN
    for since, share in STEPS:
        time.sleep(max(0.0, begun + since * seconds - time.monotonic()))
        want = int(peak * share) - have
        if want > 0:
            try:
                kept.append(b"\1" * want)  # written to, so really there
            except MemoryError:
                sys.stderr.write("fakecc: virtual memory exhausted: Cannot allocate memory\n")
                return 1
            have += want
    time.sleep(max(0.0, begun + seconds - time.monotonic()))
    descriptor = os.open(into, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.write(descriptor, f"{len(kept)}\n".encode())
    os.close(descriptor)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
