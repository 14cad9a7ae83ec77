"""The sample built against a nightly that its index has dropped: a real torch under a nightly's name.

Opt-in and long: `python tests/upstream/nightly.py -o DIRECTORY`, after `sglwheel vendor sample`, which leaves
the real wheel in the store. The index is on loopback, and nothing else knows the name.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from indexworld import NIGHTLY, Index  # noqa: E402
from sglwheel import console, recipe  # noqa: E402
from sglwheel.files import Layout  # noqa: E402

DAY = "20261101"
TOOL = Path(sys.executable).with_name("sglwheel")


def renamed(wheel: Path, version: str, into: Path) -> Path:
    """A copy of a torch wheel that says another version everywhere: name, metadata, RECORD and version.py."""
    old, tag = wheel.name.removeprefix("torch-").split("-", 1)
    out = into / f"torch-{version}-{tag}"
    hashes: dict[str, str] = {}
    with (
        zipfile.ZipFile(wheel) as source,
        zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as target,
    ):
        for member in source.infolist():
            name = member.filename.replace(f"torch-{old}.dist-info", f"torch-{version}.dist-info")
            if name.endswith((".dist-info/METADATA", "torch/version.py")):
                text = source.read(member).decode()
                text = text.replace(f"\nVersion: {old}\n", f"\nVersion: {version}\n", 1)
                text = text.replace(f"__version__ = '{old}+", f"__version__ = '{version.partition('+')[0]}+")
                digest = hashlib.sha256(text.encode()).digest()
                hashes[name] = (
                    f"sha256={base64.urlsafe_b64encode(digest).rstrip(b'=').decode()},{len(text.encode())}"
                )
                target.writestr(name, text)
            elif name.endswith(".dist-info/RECORD"):
                lines = (
                    source.read(member)
                    .decode()
                    .replace(f"torch-{old}.dist-info", f"torch-{version}.dist-info")
                )
                rows = (line.partition(",") for line in lines.splitlines())
                target.writestr(name, "".join(f"{path},{hashes.get(path, rest)}\n" for path, _, rest in rows))
            else:
                with source.open(member) as stream, target.open(name, "w", force_zip64=True) as sink:
                    shutil.copyfileobj(stream, sink, 1 << 20)
    return out


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "-o", "--output", type=Path, required=True, help="an empty directory for the checkout"
    )
    there: Path = parser.parse_args().output.absolute()
    for part in ("recipes", "patches"):
        shutil.copytree(ROOT / part, there / part)
    torch = recipe.load(Layout(ROOT), "sample").torch
    version = f"{torch.version}.dev{DAY}+{torch.cuda}"
    (real,) = Layout(ROOT).cache.glob(f"wheels/*/torch-{torch.version}-cp311-*.whl")
    with Index() as index:
        with console.step(f"{real.name} as {version}"):
            made = renamed(real, version, there)
            index.add(NIGHTLY, "torch", (made.name, made.read_bytes()))
            made.unlink()
        mirrors = f"https://download.pytorch.org/whl={index.url}/whl"
        environment = {**os.environ, "SGLWHEEL_ROOT": str(there), "SGLWHEEL_MIRRORS": mirrors}

        def run(*words: str) -> int:
            return subprocess.run([TOOL, *words], env=environment, cwd=there, check=False).returncode

        if run("pin", "sample", "--torch", f"nightly:{DAY[:4]}-{DAY[4:6]}-{DAY[6:]}"):
            return 1
        index.remove(NIGHTLY, "torch", DAY)
        console.emit(f"the index serves {len(index.projects[f'{NIGHTLY}/torch/'])} files of torch")
        code = run("build", "sample")
    for wheel in there.glob("wheelhouse/*.whl"):
        console.emit(wheel.name)
    return code


if __name__ == "__main__":
    sys.exit(main())
