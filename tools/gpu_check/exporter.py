"""The exporter on the real NVML: its CPU, idle and beside a load, its memory, and scrapes.

As `tools.bench.exporter` runs it over the fake library: 50 pods by a PodResources socket that share the GPUs here.
"""

from __future__ import annotations

import contextlib
import statistics
import tempfile
import time
from pathlib import Path

import pynvml

from tools.bench.exporter import PROMETHEUS, child_of, cpu_shares, pss_mb, scrapes_ms, serve_api, serve_kubelet, start
from tools.gpu_check.load import busy
from tools.gpu_check.report import Figure

CPU_S = 15.0


def measure() -> dict[str, Figure]:
    """Raises: NVMLError where there is no driver; SystemExit where the exporter did not start."""
    pynvml.nvmlInit()
    gpus = range(pynvml.nvmlDeviceGetCount())
    uuids = [pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(index)) for index in gpus]
    with tempfile.TemporaryDirectory(prefix="stoker-gpu-check-") as scratch, contextlib.ExitStack() as stack:
        folder = Path(scratch)
        exporter, port = start(folder, {}, serve_kubelet(uuids, folder, stack), serve_api(stack))
        stack.callback(exporter.wait, 10)
        stack.callback(exporter.terminate)
        processes = {"parent": exporter.pid, "child": child_of(exporter.pid)}
        figures: dict[str, Figure] = {"GPUs": len(uuids), **_cpu("idle", processes, port)}
        with busy():
            figures |= _cpu("beside a load", processes, port)
            cuts = statistics.quantiles(scrapes_ms(port, PROMETHEUS), n=100)
        figures |= {f"memory of the {name}, MiB (PSS)": pss_mb(pid) for name, pid in processes.items()}
        return figures | {"a scrape beside a load: p50, ms": cuts[49], "a scrape beside a load: p99, ms": cuts[98]}


def _cpu(when: str, processes: dict[str, int], port: int) -> dict[str, Figure]:
    time.sleep(5)  # it settles
    used = cpu_shares(processes, CPU_S, port)
    return {f"{when}: CPU of the {name}, % of a core": share * 100 for name, share in used.items()}
