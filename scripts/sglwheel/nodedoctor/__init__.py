"""Say why SGLang would not run, or not run right, on this node: everything at once.

Answered from files and the driver's own tool; nothing of the environment is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from sglwheel.nodedoctor import device, kernels, model, packages
from sglwheel.nodedoctor.diagnosis import Diagnosis, Finding
from sglwheel.nodedoctor.environment import Environment

__all__ = ["Diagnosis", "Environment", "Finding", "examine"]


def examine(python: Path | None, *, wheel: Path | None = None, checkpoint: Path | None = None) -> Diagnosis:
    """Look at a node: its GPUs, one Python environment, and the model it is to serve.

    `python` is a virtual environment or an interpreter, the first `python3` on PATH when None. `wheel` is
    judged instead of the kernels that are installed. Raises DoctorError when the environment cannot be asked,
    UsageError for a wheel or checkpoint that is not there.
    """
    environment = Environment.of(python)
    gpus = device.gpus()
    torch = environment.torch()
    held = kernels.held(environment, wheel, torch)
    checks: tuple[Callable[[], Iterator[Finding]], ...] = (
        lambda: device.driver(gpus, torch),
        lambda: packages.torch_installed(environment, torch),
        lambda: packages.rivals(environment, wheel),
        lambda: kernels.architectures(held, gpus),
        lambda: kernels.torch_symbols(held, torch),
        lambda: kernels.libraries(held, torch),
        lambda: kernels.compilers(held, gpus),
        lambda: packages.sglang_asserts(environment, held),
        lambda: packages.flashinfer(environment, torch),
        lambda: model.kv_cache(checkpoint),
    )
    findings = tuple(finding for check in checks for finding in check())
    return Diagnosis(
        python=str(environment.python),
        torch=torch.label if torch else None,
        kernels=held.label if held else None,
        gpus=tuple(f"{gpu.name}, compute capability {gpu.capability}, driver {gpu.driver}" for gpu in gpus),
        findings=findings,
    )
