"""`batch: auto` on the GPU's own memory: what it finds for GPT-2 124M against powers of two, and what that costs.

Without a GPU it looks for the smallest model's on the CPU, under a limit of memory.
"""

from __future__ import annotations

from typing import Any

import torch

from tools.bench.batch import compare
from tools.gpu_check.report import Figure

ON_GPU = torch.cuda.is_available()
CASE: dict[str, Any] = (
    {"model": {"size": "124m", "context": 1024}, "batchSize": 256, "steps": 20_000}
    if ON_GPU
    else {"model": {"size": "tiny", "context": 32}, "batchSize": 16, "steps": 2_000}
)


def measure() -> dict[str, Figure]:
    device = torch.device("cuda", 0) if ON_GPU else torch.device("cpu")
    passes = (1, 2, 4, 8, 16, 32) if ON_GPU else (1, 2, 4)
    compared = compare("gpt", CASE, None if ON_GPU else 900 << 20, device, passes)
    return {
        "found, samples at a time": compared.found,
        "the grid's best": compared.best,
        "the step with what was found, by the best's (goal: at most 1.05)": compared.ratio,
        "search, s": compared.search_s,
        "its share of the training (goal: at most 0.02)": compared.share,
    }
