"""What is said of a worker that was ended for lack of memory: what was asked, what was reached, what to ask for. Pure.

Called by `ending`.
"""

from __future__ import annotations

from stoker.spec.job import TrainingJob
from stoker.spec.quantity import exact_bytes, format_bytes

_REACHED = 0.95
"""Of what was asked: below, it was the machine's memory that ran out."""


def memory_end(job: TrainingJob, peak_bytes: int | None) -> str:
    """`peak_bytes` None: not known, but that it was too much."""
    asked = f"out of memory: asked {format_bytes(job.memory_bytes)}"
    if peak_bytes is not None and peak_bytes < _REACHED * job.memory_bytes:
        return f"{asked}, peak {format_bytes(peak_bytes)}: the node itself ran out"
    reached = "reached" if peak_bytes is None else f"peak {format_bytes(peak_bytes)}"
    # How much it needs is not known: it was stopped at its limit.
    more = exact_bytes(2 * job.memory_bytes)
    return f"{asked}, {reached}; ask for more: stoker clone {job.metadata.name} --set spec.memory={more}"
