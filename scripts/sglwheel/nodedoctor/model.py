"""What a checkpoint switches on without being asked."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sglwheel.errors import UsageError
from sglwheel.nodedoctor.diagnosis import Finding

_CONFIG = "hf_quant_config.json"


def kv_cache(checkpoint: Path | None) -> Iterator[Finding]:
    """Whether SGLang would store keys and values as FP8 because the checkpoint says so.

    `--kv-cache-dtype auto`, the default, follows `quantization.kv_cache_quant_algo`; where the checkpoint
    has no calibrated scales it uses 1.0. Raises UsageError for a checkpoint that is not there.
    """
    if checkpoint is None:
        yield Finding("kv cache", "unknown", "no checkpoint was named", "--checkpoint DIRECTORY")
        return
    if not checkpoint.is_dir():
        raise UsageError(f"no such checkpoint: {checkpoint}", next="name the directory with config.json")
    path = checkpoint / _CONFIG
    if not path.is_file():
        yield Finding("kv cache", "passed", f"no {_CONFIG}: keys and values stay in the model's type")
        return
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        quantization = data["quantization"] if isinstance(data, Mapping) else {}
        algorithm = quantization.get("kv_cache_quant_algo") if isinstance(quantization, Mapping) else None
    except (OSError, ValueError, KeyError) as error:
        yield Finding(
            "kv cache", "failed", f"{_CONFIG} cannot be read: {error}", "download the checkpoint again"
        )
        return
    if not algorithm or str(algorithm).upper() in ("NONE", "AUTO"):
        yield Finding("kv cache", "passed", f"{_CONFIG} declares none: they stay in the model's type")
        return
    scales = _has_scales(checkpoint)
    said = {True: "with scales in the checkpoint", False: "without scales: 1.0 is used", None: ""}[scales]
    yield Finding(
        "kv cache",
        "passed" if scales else "failed",
        f"{_CONFIG} declares {algorithm}, and --kv-cache-dtype auto takes it {said}".rstrip(),
        "start SGLang with --kv-cache-dtype bf16",
    )


def _has_scales(checkpoint: Path) -> bool | None:
    """Whether the weights' index names k_scale and v_scale; None where there is no index."""
    index = checkpoint / "model.safetensors.index.json"
    try:
        names: Any = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return any(str(name).endswith(("k_scale", "v_scale")) for name in names)
