"""What a worker is told of stalls, wherever it runs: the supervisor's limit and, within it, the trainer's own."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.controller.render import worker_env
from stoker.spec.job import TrainingJob, TrainingJobStatus
from stoker.spec.meta import ObjectMeta

COMMAND = {"trainer": {"command": ["x"]}}
RECIPE = {"trainer": {"recipe": "image-classification"}}


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        (COMMAND, {}),
        (COMMAND | {"stall": {"after": "1m30s"}}, {"STOKER_STALL_AFTER_SECONDS": "90"}),
        (RECIPE, {"STOKER_STALL_AFTER_SECONDS": "660"}),
        (RECIPE | {"stall": {"after": "5m"}}, {"STOKER_STALL_AFTER_SECONDS": "300", "STOKER_STALL_SECONDS": "360"}),
        (
            RECIPE | {"env": {"STOKER_STALL_SECONDS": "30"}},
            {"STOKER_STALL_AFTER_SECONDS": "90", "STOKER_STALL_SECONDS": "30"},
        ),
    ],
)
def test_limits(spec: dict[str, Any], told: dict[str, str]) -> None:
    job = TrainingJob(metadata=ObjectMeta(name="a", uid="u"), spec=spec, status=TrainingJobStatus(attempt=1))  # type: ignore[arg-type]
    env = worker_env(job, 0)
    assert {name: value for name, value in env.items() if "STALL" in name} == told
