"""How far a training is, in a line: of tables, boards, and the SDK's jobs."""

from __future__ import annotations

from collections.abc import Mapping


def progress_text(step: int | None, total_steps: int | None, measured: Mapping[str, float] | None) -> str:
    """'step 120/460 · loss 0.123 · accuracy 97.2% · 12,300 samples/s': what is known of it."""
    parts = []
    if total_steps:
        parts.append(f"step {step}/{total_steps}")
    elif step:
        parts.append(f"step {step}")
    metrics = (measured or {}) if step else {}  # before the first step they are zeros, not measurements
    if (loss := metrics.get("loss")) is not None:
        parts.append(f"loss {loss:.4g}")
    if (accuracy := metrics.get("accuracy")) is not None:
        parts.append(f"accuracy {accuracy:.2%}")
    if (rate := metrics.get("samplesPerSecond")) is not None:
        parts.append(f"{rate:,.0f} samples/s")
    return " · ".join(parts)
