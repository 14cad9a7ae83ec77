"""The real recipe vendored, then configured and partly compiled where there is no network.

Opt-in and long: `python tests/upstream/offline.py [--compile] -o BUNDLE`, with mirrors and SGLWHEEL_OVERRIDES
as test_real.py has them. The second half runs in a network namespace with an empty store, an empty home and
no mirrors; sources that are overridden come from where the override says.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import partial

from sglwheel import console, pipeline, vendoring
from sglwheel.files import Layout
from sglwheel.toolchain import BuildEnv

ROOT = Path(__file__).parents[2]
# The three that take the most memory: 15.7, 14.7 and 14.3 GB, one after the other.
UNITS = ("fp8_gemm_kernel.cu.o", "fp8_blockwise_moe_kernel.cu.o", "nvfp4_scaled_mm_kernels.cu.o")


def overrides() -> dict[str, str]:
    return dict(text.split("=", 1) for text in os.environ.get("SGLWHEEL_OVERRIDES", "").split())


def outside(bundle: Path, *, compiles: bool) -> int:
    """Vendor, then start the other half without network; its exit status."""
    made = vendoring.vendor(Layout(ROOT), "cu130", bundle, overrides())
    size = sum((made.root / path).stat().st_size for path in made.files)
    console.emit(f"bundle: {len(made.files)} files, {console.format_bytes(size)}")
    with tempfile.TemporaryDirectory(dir=bundle.absolute().parent) as scratch:
        there = Path(scratch)
        for part in ("recipes", "patches"):
            shutil.copytree(ROOT / part, there / part)
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
            "HOME": str(there / "home"),
            "LANG": "C.UTF-8",
            "SGLWHEEL_ROOT": str(there),
            "SGLWHEEL_OVERRIDES": os.environ.get("SGLWHEEL_OVERRIDES", ""),
            "UV_CACHE_DIR": str(there / "uv"),
        }
        unshare = ["unshare", "-n"] if os.geteuid() == 0 else ["unshare", "-Urn"]
        words = [sys.executable, __file__, "--inside", "-o", bundle.absolute(), *(["--compile"] * compiles)]
        return subprocess.run([*unshare, *words], env=environment, check=False).returncode


def inside(bundle: Path, *, compiles: bool) -> int:
    """Configure from the bundle alone, and compile."""
    interfaces = [line.split(":")[0].strip() for line in Path("/proc/net/dev").read_text().splitlines()[2:]]
    console.emit(f"network interfaces: {', '.join(interfaces)}")
    options = pipeline.Options(overrides=overrides(), offline=True, bundle=bundle)
    context = pipeline.Context.load(Layout.find(), "cu130", options)
    with console.step("toolchain"):
        env = context.kind.prepare()
        assert isinstance(env, BuildEnv)
    with console.step("configure"):
        invocation = partial.configured(context, env, context.patch(), overrides())
    console.emit("configured")
    for unit in UNITS if compiles else ():
        console.emit(f"{unit} {partial.compile_unit(invocation, unit, context.layout).seconds} s")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, required=True, help="where the bundle is or will be")
    parser.add_argument("--compile", action="store_true", help="the three largest sources: 16 GB and minutes")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    half = inside if options.inside else outside
    return half(options.output, compiles=options.compile)


if __name__ == "__main__":
    sys.exit(main())
