"""A job once more, with changes: what a clone submits, and what of a job that exists may be changed.

Owns both kinds of merge patch. Never looks anything up. Called by `routes/jobs.py`.
Source: RFC 7396, "JSON Merge Patch".
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import JsonValue

from stoker.spec.job import JOBS, TrainingJob, TrainingJobSpec
from stoker.spec.meta import SpecModel
from stoker.spec.names import JOB_NAME_MAX
from stoker_api.body_parsing import parse_body
from stoker_api.problems import invalid

from .request import SUFFIX_LENGTH, Submission, SubmissionMetadata, is_reserved

_OF_ITS_LIFE = ("suspend", "cancel", "retryGeneration")
"""What of a spec says how far the job is, not what it does."""


class CloneRequest(SpecModel):
    """The body of `POST …/{name}/clone`; {} is a job like the other."""

    metadata: SubmissionMetadata = SubmissionMetadata()
    """Absent: a name made from the other's, and its labels."""
    spec: dict[str, JsonValue] = {}
    """A merge patch of the other's spec."""
    from_checkpoint: bool = False
    """Go on from the other's newest checkpoint; it must have ended."""


class JobPatch(SpecModel):
    """The body of `PATCH …/{name}`: a merge patch of the job's spec."""

    spec: dict[str, JsonValue]
    """What changes: priority, suspend, cancel or retryGeneration."""


def clone_of(job: TrainingJob, body: bytes) -> bytes:
    """What to submit. Raises: Problem (400, 422)."""
    request = parse_body(CloneRequest, body)
    spec: dict[str, Any] = json.loads(job.spec.model_dump_json(by_alias=True, exclude_none=True))
    for name in _OF_ITS_LIFE:
        spec.pop(name, None)
    if request.from_checkpoint:
        spec["checkpoint"]["from"] = {"job": job.metadata.name}
        spec["trainer"].pop("initFrom", None)
    metadata = request.metadata.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_defaults=True)
    if not metadata.keys() & {"name", "generateName"}:
        metadata["generateName"] = job.metadata.name[: JOB_NAME_MAX - SUFFIX_LENGTH - 1].rstrip("-") + "-"
    labels = {name: value for name, value in job.metadata.labels.items() if not is_reserved(name)}
    metadata["labels"] = labels | metadata.get("labels", {})
    return json.dumps({"metadata": metadata, "spec": merged(spec, request.spec)}).encode()


def patched(job: TrainingJob, body: bytes) -> TrainingJobSpec:
    """The job's spec with what a patch changes. Raises: Problem (400, 422)."""
    patch = parse_body(JobPatch, body)
    spec = merged(json.loads(job.spec.model_dump_json(by_alias=True, exclude_none=True)), patch.spec)
    new = parse_body(Submission, json.dumps({"spec": spec}).encode()).spec
    for detail in JOBS.update_errors(job, job.model_copy(update={"spec": new})):
        field, _, rest = detail.partition(" ")
        raise invalid("/" + field.replace(".", "/"), f"{rest}, or clone this one" if "new job" in rest else rest)
    return new


def merged(base: Any, patch: Any) -> Any:
    """RFC 7396: objects are merged, null removes, all else replaces."""
    if not isinstance(patch, Mapping):
        return patch
    found = dict(base) if isinstance(base, Mapping) else {}
    for name, value in patch.items():
        if value is None:
            found.pop(name, None)
        else:
            found[name] = merged(found.get(name), value)
    return found
