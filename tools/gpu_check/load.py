"""A process that keeps the first GPU busy with matrix products, for sections that measure beside it."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator

_PROGRAM = """
import torch
a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
a @ a; torch.cuda.synchronize(); print("on", flush=True)
while True:
    for _ in range(20): a @ a
    torch.cuda.synchronize()
"""


@contextlib.contextmanager
def busy() -> Iterator[None]:
    """Raises: AssertionError where it did not start."""
    process = subprocess.Popen([sys.executable, "-c", _PROGRAM], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "on\n", "the load did not start"
        yield
    finally:
        process.kill()
        process.wait()
