"""Receipts as exporters post them, for the tests of usage."""

from __future__ import annotations

from typing import Any

from stoker.spec.usage import GpuReceipt


def receipt(seq: int = 1, **more: Any) -> GpuReceipt:
    """Of worker 0 of job `uid-1`, attempt 1: one minute more allocated with each seq, half of it SM-active."""
    allocated_s = more.pop("allocated_s", 60.0 * seq)
    begin_at = more.pop("begin_at", 7200.0)
    base: dict[str, Any] = {
        "ledger": "l1", "node": "node-a", "uuid": "GPU-0", "job_uid": "uid-1", "attempt": 1, "worker": 0,
        "project": "alpha", "job_name": "one", "pod_uid": "p", "model": "NVIDIA Tiny", "seq": seq, "begin_at": begin_at,
        "at": begin_at + allocated_s, "allocated_s": allocated_s, "unobserved_s": 0.0, "busy_s": allocated_s * 0.75,
        "sm_active_s": allocated_s * 0.5, "idle_s": {"no_activity": allocated_s * 0.25}, "energy_j": allocated_s * 300,
        "memory_peak_bytes": 6 << 30, "memory_total_bytes": 8 << 30,
    }  # fmt: skip
    return GpuReceipt(**{**base, **more})


def body(*receipts: GpuReceipt, node: str = "node-a") -> dict[str, Any]:
    """Of `POST /v1/report/usage`."""
    listed = [one.model_dump(mode="json", by_alias=True, exclude_none=True) for one in receipts]
    return {"node": node, "receipts": listed}
