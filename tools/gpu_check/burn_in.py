"""A burn-in of the first GPU, as the operator runs it: what it takes, and the bandwidths that it finds.

Without a GPU it tests the host: that only runs the code.
"""

from __future__ import annotations

import json
import subprocess
import sys

import torch

from stoker.life.burn_in import BurnIn
from tools.gpu_check.report import Figure

ON_GPU = torch.cuda.is_available()
SECONDS = BurnIn().seconds if ON_GPU else 0.0


def measure() -> dict[str, Figure]:
    """Raises: AssertionError where the test itself broke; what is wrong with the GPU is a figure."""
    which = ["--gpu", f"GPU-{torch.cuda.get_device_properties(0).uuid}"] if ON_GPU else ["--cpu"]
    command = [sys.executable, "-m", "stoker_trainer.burn_in", *which, "--seconds", str(SECONDS)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout, done.stderr
    result = json.loads(done.stdout)
    return {
        "wrong": "; ".join(result["wrong"]) or "nothing",
        "seconds": result["seconds"],
        "seconds beside the products": result["seconds"] - SECONDS,
        **_flat("copies with the host, GB/s", result.get("copy_gb_s")),
        "slower ones with the host fail, GB/s": result.get("least_gb_s"),
        **_flat("NVLink", result.get("nvlink")),
    }


def _flat(name: str, value: object) -> dict[str, Figure]:
    if isinstance(value, dict):
        return {key: one for part, below in value.items() for key, one in _flat(f"{name}: {part}", below).items()}
    return {name: value if isinstance(value, int | float | str) else None}
