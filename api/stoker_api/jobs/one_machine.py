"""What only a cluster can do, refused at submit where `stoker up` is all there is: one pure rule."""

from __future__ import annotations

from stoker.spec.job import TrainingJobSpec
from stoker_api.problems import Fault


def needs_cluster(spec: TrainingJobSpec) -> list[Fault]:
    """What in the spec works on a cluster only, each with what to do here instead; []: nothing."""
    given = (
        (spec.runtime is not None, "/spec/runtime", "leave it out: workers run as you, in your own environment"),
        (bool(spec.data), "/spec/data", "leave it out: workers see this machine's own files under their paths"),
        (
            spec.checkpoint.claim is not None,
            "/spec/checkpoint/claim",
            "leave it out: checkpoints are kept in the data folder of `stoker up`",
        ),
        (
            spec.trainer.image is not None,
            "/spec/trainer/image",
            "leave it out, and install here what the command needs: no containers are run",
        ),
    )
    return [
        Fault(pointer, f"works on a Kubernetes cluster only; on one machine {advice}")
        for there, pointer, advice in given
        if there
    ]
