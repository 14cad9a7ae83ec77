"""Run chosen backends of the GPU suite on the CPU stand-in, with one fault each, in one process.

python try_faults.py faults.json: [["nan", "rmsnorm"], …] gives one JSON line for each
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import sgl_kernel

from sglwheel.gpucheck import families, worker
from sglwheel.gpucheck.harness import Context

context = Context("cpu", int(sys.argv[2]), "sgl_kernel", (12, 0), largest=400_000)
backends = {backend.name: backend for backend in families.load()}
for fault, name in json.loads(Path(sys.argv[1]).read_text()):
    sgl_kernel.FAULT = fault
    result = worker._judge(backends[name], context)
    print(json.dumps({"fault": fault, "backend": name, **result}), flush=True)
os._exit(0)
