"""Configure a tree through scikit-build-core, and compile nothing."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from sglwheel import console, process
from sglwheel.build.diagnosis import configure_error
from sglwheel.build.invocation import Invocation
from sglwheel.build.progress import Transcript
from sglwheel.errors import BuildError

# ninja's dry run and an install of nothing: scikit-build-core configures and compiles nothing.
_ONLY_CONFIGURE = ("-C", "build.tool-args=-n", "-C", "install.components=none")


def configure(invocation: Invocation, definitions: Mapping[str, str], log: Path) -> None:
    """Configure the invocation's tree, unless it is configured just so. Raises BuildError."""
    tree = invocation.tree
    if tree.read("configured.json") == definitions:
        return
    tree.new_configuration()
    said = Transcript()
    dry = tree.path / "dry"
    argv = invocation.command(dry, definitions, *_ONLY_CONFIGURE)
    with console.progress("configure"):
        done = process.stream(
            argv, failure=BuildError, log=log, env=invocation.environment(), on_line=said.feed
        )
    shutil.rmtree(dry, ignore_errors=True)
    if done.returncode:
        raise configure_error(said, done, log, tree)
    tree.write("configured.json", definitions)
