"""Every field that a command reads of an answer is one of the REST contract, and may be absent where it says so."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from types import ModuleType
from typing import Any, Literal, get_args, get_origin

import pytest
from pydantic import BaseModel

from stoker.cli import curve_text, job_details, job_table, job_text, object_tables, usage_text
from stoker.cli.commands import metrics, usage
from stoker.cli.output import Column
from stoker.spec.event import Event
from stoker.spec.job import AttemptEnd, TrainingJob
from stoker.spec.reasons import Explanation
from stoker.spec.rest import (
    GpuUsage,
    JobCurves,
    JobUsageReport,
    MetricCurve,
    ProjectSecret,
    QueueWithUsage,
    UsageReport,
    UsageRow,
)
from stoker.spec.rest_nodes import NodeWithUsage
from stoker.spec.runtime import TrainingRuntime
from stoker.spec.usage import JobUsage

READ: dict[ModuleType, dict[str, type[BaseModel]]] = {
    job_text: {
        "EVENT": Event,
        "_WHY": Explanation,
    },
    job_table: {"NODES": TrainingJob, "STARTED": TrainingJob, "RAN": TrainingJob},
    job_details: {"_END": AttemptEnd, "_ENDS": TrainingJob},
    object_tables: {
        "SECRETS": ProjectSecret,
        "QUEUES": QueueWithUsage,
        "RUNTIMES": TrainingRuntime,
        "NODES": NodeWithUsage,
    },
    usage_text: {
        "_REPORT": UsageReport,
        "_GROUPS": UsageRow,
        "_FIGURES": UsageRow,
        "_KIND": UsageRow,
        "_CSV": UsageRow,
        "SUMMARY": JobUsage,
        "COST": JobUsageReport,
        "_JOB_FACTS": JobUsageReport,
        "GPUS": GpuUsage,
    },
    curve_text: {"CURVES": MetricCurve, "_COLUMNS": MetricCurve, "POINTS": MetricCurve},
    metrics: {"_REPORT": JobCurves},
    usage: {"_JOB": JobUsageReport, "_SUMS": UsageReport},
}
"""What a module's names read; all others that hold columns read jobs."""


def columns(module: ModuleType) -> Iterator[tuple[Column, type[BaseModel]]]:
    for name, value in vars(module).items():
        model = READ[module].get(name, TrainingJob)
        if isinstance(value, str) and name in READ[module]:
            yield Column(name, value, lambda *_: ""), model
        elif name == "_CSV":
            yield Column(name, " ".join(value.values()), lambda *_: ""), model
        elif isinstance(value, Column):
            yield value, model
        elif isinstance(value, tuple | dict):
            items = value.values() if isinstance(value, dict) else value
            yield from ((item, model) for item in items if isinstance(item, Column))


@pytest.mark.parametrize("module", READ, ids=lambda module: module.__name__)
def test_every_field_that_is_read_is_in_the_contract(module: ModuleType) -> None:
    found = list(columns(module))
    assert found
    for column, model in found:
        for path in column.fields.split():
            resolve(model, path)
        sent = least(model).model_dump(mode="json", by_alias=True, exclude_none=True)
        assert isinstance(column.read(sent), str), f"{column.title}: {model.__name__} without what may be absent"


def resolve(model: type[BaseModel], path: str) -> None:
    """Raises: AssertionError where the model has no such field."""
    kind: Any = model
    for name in path.split("."):
        if kind is Mapping:  # its keys are data
            return
        by_alias = {info.alias or field: info for field, info in kind.model_fields.items()}
        assert name in by_alias, f"{model.__name__} has no {path}"
        kind = inner(by_alias[name].annotation)


def inner(annotation: Any) -> Any:
    """The model within `X | None`, `tuple[X, ...]`; Mapping for a mapping."""
    if get_origin(annotation) in (Mapping, dict):
        return Mapping
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    found = [inner(part) for part in get_args(annotation)]
    return next((part for part in found if part is not None), None)


def least(kind: Any) -> Any:
    """A value with nothing but what it must have."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        needed = {name: info.annotation for name, info in kind.model_fields.items() if info.is_required()}
        return kind.model_construct(**{name: least(annotation) for name, annotation in needed.items()})
    if get_origin(kind) is Literal:
        return get_args(kind)[0]
    if kind is datetime:
        return datetime.now(UTC)
    return {} if get_origin(kind) is Mapping else (get_origin(kind) or kind)()
