"""The PCIe counters that the exporter reads, beside copies of known size between pinned memory and the GPU."""

from __future__ import annotations

import threading
import time

import pynvml
import torch

from stoker.nvml.calls import CallErrors, DeviceCalls
from stoker.nvml.fields import Field, Fields
from tools.gpu_check.report import Figure

CHUNK_BYTES, CHUNKS, GAP_S = 1 << 30, 64, 0.02
COUNTERS = {"tx": 197, "rx": 198}
"""As in stoker.nvml.board; rx is what the GPU receives."""


class _Watch(threading.Thread):
    """Adds up what the counters rise, read so often that a counter of 32 bits wraps once at most between two reads."""

    def __init__(self, fields: Fields) -> None:
        super().__init__(daemon=True)
        self._fields, self._stop = fields, threading.Event()
        self.rise = dict.fromkeys(COUNTERS, 0.0)
        self.most = dict.fromkeys(COUNTERS, 0.0)
        self.reads = 0
        self.error = ""

    def run(self) -> None:
        before = self._fields.read()
        while not self._stop.wait(GAP_S):
            now = self._fields.read()
            for name in COUNTERS:
                if name in now and name in before:
                    self.rise[name] += (now[name] - before[name]) % 2**32
                    self.most[name] = max(self.most[name], now[name])
            before = now
            self.reads += 1

    def end(self) -> None:
        self._stop.set()
        self.join()


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
    for what, counter in (("to the GPU", "rx"), ("from the GPU", "tx")):
        target, source = (device, host) if counter == "rx" else (host, device)
        watch = _Watch(Fields(calls, [Field(name, number) for name, number in COUNTERS.items()]))
        watch.start()
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(CHUNKS):
            target.copy_(source, non_blocking=True)
        torch.cuda.synchronize()
        took_s = time.perf_counter() - began
        time.sleep(0.2)
        watch.end()
        copied, read = CHUNK_BYTES * CHUNKS, bool(watch.most[counter])
        share = watch.rise[counter] / copied if read else None
        figures |= {
            f"{what}: copied, GB/s": copied / took_s / 1e9,
            f"{what}: counter {counter} (field {COUNTERS[counter]}) ÷ copied": share,
            f"{what}: highest value of the counter": watch.most[counter] if read else None,
            f"{what}: reads of the counter": watch.reads,
        }
    return figures
