"""Curves and samples as JSON, as `spec/rest.py` has them. Pure."""

from __future__ import annotations

import json

from .file import Sample
from .history import Curve


def curve_json(curve: Curve) -> bytes:
    """`MetricCurve`."""
    points = curve.points
    return as_json(
        {
            "metric": curve.metric,
            "attempt": points[0].attempt,
            "steps": [point.step for point in points],
            "times": [round(point.at, 3) for point in points],
            "values": [point.value for point in points],
        }
    )


def sample_json(sample: Sample) -> bytes:
    """What `event: sample` of a job's metrics carries: the metrics reported at one moment."""
    return as_json(
        {"attempt": sample.attempt, "step": sample.step, "at": round(sample.at, 3), "values": dict(sample.values)}
    )


def as_json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
