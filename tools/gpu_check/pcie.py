"""PCIe traffic as the exporter reads it, beside copies of known size between pinned memory and the GPU."""

from __future__ import annotations

import time

import pynvml
import torch

from stoker.nvml.calls import CallErrors, DeviceCalls
from stoker.nvml.gpm import Gpm
from tools.gpu_check.report import Figure

CHUNK_BYTES, CHUNKS = 1 << 30, 64


def measure() -> dict[str, Figure]:
    """Raises: NVMLError, torch.cuda's RuntimeError where there is no GPU."""
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    calls = DeviceCalls(handle, CallErrors())
    host = torch.ones(CHUNK_BYTES, dtype=torch.uint8).pin_memory()
    device = host.to("cuda")
    figures: dict[str, Figure] = {
        "link generation": calls.ask("nvmlDeviceGetCurrPcieLinkGeneration"),
        "link width": calls.ask("nvmlDeviceGetCurrPcieLinkWidth"),
    }
    for what, kind, direction in (("to the GPU", 1, "rx"), ("from the GPU", 0, "tx")):
        target, source = (device, host) if direction == "rx" else (host, device)
        gpm = Gpm(calls, pcie=True)
        torch.cuda.synchronize()
        began = time.monotonic()
        gpm.read(began)
        for _ in range(CHUNKS):
            target.copy_(source, non_blocking=True)
        rate = calls.ask("nvmlDeviceGetPcieThroughput", kind)  # while it copies
        torch.cuda.synchronize()
        took_s = time.monotonic() - began
        read = gpm.read(time.monotonic()).get(f"pcie_bytes_total|{direction}")
        gpm.close()
        copied = CHUNK_BYTES * CHUNKS
        figures |= {
            f"{what}: copied, GB/s": copied / took_s / 1e9,
            f"{what}: pcie_bytes_total by GPM ÷ copied": None if read is None else read / copied,
            f"{what}: nvmlDeviceGetPcieThroughput, of 1000 bytes ÷ rate of the copy": (
                None if rate is None else rate * 1e3 / (copied / took_s)
            ),
        }
    return figures
