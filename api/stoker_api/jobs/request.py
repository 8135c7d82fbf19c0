"""What a client may send to submit a job, and the name a nameless one gets.

Owns the request's model and its rules about metadata. Never looks anything up. Called by `submit.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, ValidationError, model_validator

from stoker.spec.fields import JobName
from stoker.spec.job import TrainingJobSpec
from stoker.spec.job_parts import Trainer
from stoker.spec.meta import SpecModel
from stoker.spec.names import API_VERSION, GROUP, JOB_NAME_MAX
from stoker.spec.quantity import NEW
from stoker_api.body_parsing import invalid_fields, parse_json
from stoker_api.problems import invalid

SUFFIX_LENGTH = 5
_MAX_ANNOTATIONS = 256 * 1024  # Kubernetes' own limit, so that a job that is taken here is taken there
_RESERVED = (GROUP, "kubernetes.io", "k8s.io")
_NAME_PART = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_PREFIX_PART = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_LAUNCHERS = re.compile(r"(python|pypy)[0-9.]*|bash|sh|zsh|dash|env|torchrun|accelerate|uv|uvx|exec|nice")
_RUNNERS = re.compile(r"(uv|poetry|pdm|hatch|pixi|pipenv|rye|conda|mamba|micromamba) run")
"""`uv run train.py` is called by what is run."""
_FALLBACK = "job"


def is_reserved(name: str) -> bool:
    """Of labels and annotations: set by Stoker or the cluster."""
    prefix = name.rpartition("/")[0]
    return any(prefix == domain or prefix.endswith("." + domain) for domain in _RESERVED)


def _qualified(name: str) -> str:
    prefix, slash, last = name.rpartition("/")
    if not _NAME_PART.fullmatch(last) or (slash and not _PREFIX_PART.fullmatch(prefix)):
        raise ValueError("must be a Kubernetes label key: letters, digits, '-', '_' and '.', with an optional prefix/")
    if is_reserved(name):
        raise ValueError(f"names under {prefix}/ are set by Stoker and the cluster; choose another prefix")
    return name


def _label_value(value: str) -> str:
    if value and not _NAME_PART.fullmatch(value):
        raise ValueError(
            "must be at most 63 letters, digits, '-', '_' and '.', starting and ending with a letter or digit"
        )
    return value


def _generate_name(value: str) -> str:
    if not re.fullmatch(r"[a-z][-a-z0-9]*", value):
        raise ValueError("must be lower-case letters, digits and '-', starting with a letter")
    return value


QualifiedName = Annotated[str, Field(max_length=317), AfterValidator(_qualified)]
LabelValue = Annotated[str, Field(max_length=63), AfterValidator(_label_value)]
GenerateName = Annotated[str, Field(max_length=JOB_NAME_MAX - SUFFIX_LENGTH), AfterValidator(_generate_name)]


class SubmissionMetadata(SpecModel):
    name: JobName | None = None
    """The job's. Absent: made from `generateName`, or from the recipe or the program."""
    generate_name: GenerateName | None = None
    """The name's beginning; five characters are added."""
    namespace: str | None = None
    """The project; if given it must be the path's."""
    labels: dict[QualifiedName, LabelValue] = Field(default={}, max_length=64)
    """Names and values that lists select by."""
    annotations: dict[QualifiedName, str] = Field(default={}, max_length=64)
    """Names and texts kept with the job."""

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.name is not None and self.generate_name is not None:
            raise ValueError("give either name or generateName")
        if sum(len(key) + len(value.encode()) for key, value in self.annotations.items()) > _MAX_ANNOTATIONS:
            raise ValueError(f"annotations may hold {_MAX_ANNOTATIONS} bytes together")
        return self


class Submission(SpecModel):
    """The body of `POST /v1/projects/{project}/jobs`."""

    api_version: Literal["stoker.dev/v1alpha1"] = API_VERSION  # type: ignore[assignment]
    """The group and version of its form."""
    kind: Literal["TrainingJob"] = "TrainingJob"
    """What it is."""
    metadata: SubmissionMetadata = SubmissionMetadata()
    """Absent: a name is made for it."""
    spec: TrainingJobSpec


def parse_submission(body: bytes, project: str) -> tuple[Submission, Mapping[str, Any]]:
    """The request and the data it was read from. Raises: Problem (400, 422)."""
    data = parse_json(body)
    if not isinstance(data, dict):
        raise invalid("", "must be an object with `spec`")
    try:
        # Strict: "3" is no number and 1 is no boolean, as the Kubernetes API has it.
        submission = Submission.model_validate_json(body, strict=True, context=NEW)
    except ValidationError as error:
        raise invalid_fields(error, root=Submission, data=data) from None
    if submission.metadata.namespace not in (None, project):
        raise invalid("/metadata/namespace", f"must be {project!r}, the project of the path, or absent")
    for name, start in (("cancel", False), ("retryGeneration", 0)):
        if data["spec"].get(name, start) != start:
            raise invalid(f"/spec/{name}", f"a new job starts with {str(start).lower()}; change it once the job exists")
    return submission, data


def base_name(trainer: Trainer) -> str:
    """What a nameless job is called by: its recipe or its program (`python -m my.train` → train)."""
    if trainer.recipe is not None:
        return _as_name(trainer.recipe)
    arguments = [one for one in trainer.command or () if one and not one.startswith("-") and "=" not in one]
    if _RUNNERS.fullmatch(" ".join(PurePosixPath(one).name for one in arguments[:2])):
        arguments = arguments[2:]
    for argument in arguments[:8]:
        name = PurePosixPath(argument).name
        if not _LAUNCHERS.fullmatch(name):
            return _as_name(name.removesuffix(".py").removesuffix(".sh").rpartition(".")[2])
    return _as_name(PurePosixPath(arguments[0]).name if arguments else _FALLBACK)


def _as_name(text: str) -> str:
    name = re.sub(r"[^a-z0-9]+", "-", text.lower()).lstrip("-0123456789")
    return name[: JOB_NAME_MAX - SUFFIX_LENGTH - 1].strip("-") or _FALLBACK
