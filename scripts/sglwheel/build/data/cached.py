"""Ask ccache for an object before a compiler is even admitted, in words that are the same on every host.

Copied into every build tree and started by ninja as `python -I -S cached.py <what runs the compiler>`, by the
build environment's interpreter: standard library only.

ccache is shown a command that names the toolchain by links inside the tree, which it makes relative
(`base_dir`), and that lacks the prefix maps, whose left sides are paths of this host. On a miss it starts
this program again as its compiler (`--missed`): that runs the command as ninja gave it, so an object has the
same bytes with a cache and without, and writes the links into the dependencies that ccache and ninja read.
"""

import json
import os
import signal
import sys

HERE = __file__.rpartition("/")[0]
_MAPS = ("-ffile-prefix-map=", "-Xcompiler=-ffile-prefix-map=")


def compiler(argv: list[str]) -> int:
    """Where the compiler stands in a command: behind our programs, each started as `python -I -S x.py`."""
    index = 0
    while argv[index + 1 : index + 3] == ["-I", "-S"]:
        index += 4
    return index


def shared(argument: str, links: dict[str, str]) -> str:
    """An argument with the toolchain's directories replaced by the tree's links to them."""
    for path, name in links.items():
        argument = argument.replace(path, f"{HERE}/roots/{name}")
    return argument


def cacheable(argv: list[str]) -> bool:
    """One source to one object with its dependencies listed: what ccache needs to know all inputs."""
    return "-c" in argv and "-o" in argv and "-MF" in argv and " " not in sys.executable + HERE


def missed() -> int:
    """Run ninja's own command; our exit status is its."""
    argv = json.loads(os.environ.pop("SGLWHEEL_COMMAND"))
    links = json.loads(os.environ.pop("SGLWHEEL_LINKS"))
    child = os.posix_spawnp(argv[0], argv, os.environ)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code == 0:
        path = argv[argv.index("-MF") + 1]
        with open(path, encoding="utf-8", errors="surrogateescape") as stream:  # noqa: PTH123 - starts faster
            text = stream.read()
        with open(path, "w", encoding="utf-8", errors="surrogateescape") as stream:  # noqa: PTH123
            stream.write(shared(text, links))
    elif code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


def main(argv: list[str]) -> int:
    """Become ccache, or without one the command itself."""
    if argv[:1] == ["--missed"]:
        return missed()
    ccache = os.environ.pop("SGLWHEEL_CCACHE", "")
    try:
        if not ccache or not cacheable(argv):
            os.execvp(argv[0], argv)
        links = json.loads(os.environ["SGLWHEEL_LINKS"])
        os.environ["SGLWHEEL_COMMAND"] = json.dumps(argv)
        os.environ["CCACHE_PREFIX"] = f"{sys.executable} -I -S {__file__} --missed"
        said = [shared(word, links) for word in argv[compiler(argv) :] if not word.startswith(_MAPS)]
        os.execv(ccache, [ccache, *said])
    except OSError as error:
        sys.stderr.write(f"cached: error: cannot start {ccache or argv[0]}: {error.strerror}\n")
        return 127


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
