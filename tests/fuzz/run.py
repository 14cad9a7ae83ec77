"""Fuzz one reader with atheris, starting from the corpus:

    uv run --group tests --group fuzz python tests/fuzz/run.py elf -runs=100000

Arguments after the target go to libFuzzer; -max_total_time=60, -rss_limit_mb=500 and -timeout=10 hold unless
they say otherwise. A crashing input is kept in the corpus by `run.py elf --keep <what it is> <file>`.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))


def main(arguments: list[str]) -> None:
    """Run libFuzzer; it ends the process."""
    import atheris

    with atheris.instrument_imports(include=["sglwheel.inspect"]):
        import fuzztargets

    name, *rest = arguments
    if rest[:1] == ["--keep"]:
        fuzztargets.keep(name, rest[1], Path(rest[2]).read_bytes())
        return
    target = fuzztargets.TARGETS[name]
    with tempfile.TemporaryDirectory() as seeds:
        for what, data in fuzztargets.corpus(name):
            (Path(seeds) / what).write_bytes(data)
        limits = ["-max_total_time=60", "-rss_limit_mb=500", "-timeout=10", "-max_len=8192"]
        atheris.Setup([sys.argv[0], *limits, *rest, seeds], target)
        atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1:])
