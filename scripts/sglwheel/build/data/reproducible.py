"""Run nvcc so that an object depends on what is compiled, not on where and when.

nvcc names its intermediates after its process id, and those names end up in symbols; it hashes the real path
of the source into the names of everything that is internal to a unit, and a process id and a time too where
the unit exports nothing. So intermediates get fixed names in a directory of their own, the hash is of the
path inside the build tree, and a seed stands for the rest (docs/reproducible.md has the evidence).

Copied into every build tree and started between the launcher and nvcc as
`python -I -S reproducible.py nvcc …`, by the build environment's interpreter: standard library only.
"""

import os
import re
import shutil
import signal
import sys

TREE = os.path.realpath(__file__).rpartition("/")[0]


def after(argv: list[str], option: str) -> str | None:
    """The argument that follows an option."""
    return argv[argv.index(option) + 1] if option in argv[:-1] else None


def inside(path: str) -> str:
    """How the source is called wherever its tree lies: as an absolute path with the tree as root.

    nvcc splits what it hands on at commas.
    """
    real = os.path.realpath(path)
    if real.startswith(f"{TREE}/"):
        real = real[len(TREE) :]
    return re.sub(r"[^\w./+-]", "_", real)


def main(argv: list[str]) -> int:
    """Run the compiler; our exit status is its, and if a signal ended it, so it does us."""
    source, out = after(argv, "-c"), after(argv, "-o")
    kept = None
    if source is not None and out is not None:
        kept = f"{out}.kept"
        # What an interrupted run left could be taken for ours.
        shutil.rmtree(kept, ignore_errors=True)
        os.makedirs(kept)  # noqa: PTH103  pathlib would double the time it takes to start
        name = inside(source)
        argv = [*argv, "-Xcudafe", f"--orig_src_path_name={name}", "--keep", f"--keep-dir={kept}"]
        if not any("-frandom-seed" in word for word in argv):
            argv.append(f"-frandom-seed={name}")
    try:
        child = os.posix_spawnp(argv[0], argv, os.environ)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    except OSError as error:
        sys.stderr.write(f"reproducible: error: cannot start {argv[0]}: {error.strerror}\n")
        return 127
    finally:
        if kept is not None:
            shutil.rmtree(kept, ignore_errors=True)
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
