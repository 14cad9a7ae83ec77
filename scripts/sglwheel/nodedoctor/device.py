"""GPUs and their driver, as nvidia-smi tells."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sglwheel.inspect import TorchSymbols
from sglwheel.nodecheck import fits, node
from sglwheel.nodecheck.node import Gpu
from sglwheel.nodedoctor.diagnosis import Finding


def gpus() -> tuple[Gpu, ...]:
    """What nvidia-smi lists; empty where it is missing or silent."""
    return tuple(node.gpus())


def capability(gpu: Gpu) -> tuple[int, int] | None:
    """(12, 0); None where the driver does not tell, as old ones do."""
    major, _, minor = gpu.capability.partition(".")
    return (int(major), int(minor)) if major.isdigit() and minor.isdigit() else None


def driver(found: Sequence[Gpu], torch: TorchSymbols | None) -> Iterator[Finding]:
    """The driver against the CUDA that torch was built for."""
    if not found:
        yield Finding(
            "driver",
            "unknown",
            "no GPU answers (nvidia-smi)",
            "see that nvidia-smi lists the GPUs; a container is started with --gpus all",
        )
        return
    if torch is None or torch.cuda_major is None:
        yield Finding("driver", "unknown", f"{found[0].driver}; no torch with CUDA to compare it with")
        return
    need = fits.DRIVERS.get(torch.cuda_major)
    have = found[0].driver
    major = have.split(".")[0]
    if need is None or not major.isdigit():
        yield Finding("driver", "unknown", f"{have}; which one CUDA {torch.cuda} needs is not known here")
    elif int(major) < need:
        yield Finding(
            "driver",
            "failed",
            f"{have} is too old: CUDA {torch.cuda} needs {need} or newer",
            f"install driver {need} or newer, or a torch for an older CUDA with a wheel built for it",
        )
    else:
        yield Finding("driver", "passed", f"{have}, CUDA {torch.cuda} needs {need} or newer")
