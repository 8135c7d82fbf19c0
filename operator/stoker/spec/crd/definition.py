"""Each kind's CustomResourceDefinition: names, columns, selectable fields, and its schema.

GPUNode has none: on a cluster it is a projection of Node, with what the GPUNodeHealth of its name adds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from pydantic import BaseModel

from stoker.spec import descriptions
from stoker.spec.gpu_health import HEALTH
from stoker.spec.job import JOBS
from stoker.spec.meta import Kind
from stoker.spec.names import DNS_LABEL, GROUP, JOB_NAME, JOB_NAME_MAX, OBJECT_NAME, VERSION
from stoker.spec.queue import QUEUES
from stoker.spec.runtime import RUNTIMES

from . import cel, schema


@dataclass(frozen=True)
class PrinterColumn:
    """A column of `kubectl get`. Those that are `wide` stand under `-o wide`."""

    name: str
    path: str
    says: str
    type: str = "string"
    wide: bool = False

    def dump(self) -> dict[str, Any]:
        dumped = {"name": self.name, "type": self.type, "jsonPath": self.path, "description": self.says}
        return dumped | {"priority": 1} if self.wide else dumped


_AGE = PrinterColumn("Age", ".metadata.creationTimestamp", "How long it has been there.", "date")


@dataclass(frozen=True)
class Definition:
    """What a CRD has beyond its model. `freeze`: the spec's defaults are written into every object."""

    kind: Kind[Any]
    short: tuple[str, ...]
    categories: tuple[str, ...]
    columns: tuple[PrinterColumn, ...]
    name_rule: cel.Rule
    selectable: tuple[str, ...] = ()
    freeze: bool = False

    @property
    def name(self) -> str:
        return f"{self.kind.plural}.{GROUP}"


DEFINITIONS = (
    Definition(
        JOBS,
        short=("tj",),
        categories=("all", "stoker"),
        columns=(
            PrinterColumn("Phase", ".status.phase", "Where the job is in its life."),
            PrinterColumn("Reason", ".status.reason", "Why it is there."),
            PrinterColumn("Queue", ".spec.queue", "The queue whose share it uses."),
            PrinterColumn("Workers", ".spec.workers", "The size of its gang.", "integer"),
            PrinterColumn("GPUs/Worker", ".spec.gpusPerWorker", "GPUs of each worker.", "integer"),
            PrinterColumn("Attempt", ".status.attempt", "The current or newest attempt.", "integer"),
            PrinterColumn("Priority", ".spec.priority", "Higher goes first.", "integer", wide=True),
            PrinterColumn("Step", ".status.progress.step", "Optimizer steps done.", "integer", wide=True),
            PrinterColumn("Of", ".status.progress.totalSteps", "Optimizer steps in all.", "integer", wide=True),
            PrinterColumn("Message", ".status.message", "Why it is there, for people.", wide=True),
            _AGE,
        ),
        name_rule=cel.named(JOB_NAME_MAX, JOB_NAME),
        selectable=(".spec.queue", ".spec.runtime", ".spec.suspend", ".status.phase", ".status.reason"),
        freeze=True,
    ),
    Definition(
        QUEUES,
        short=("sq",),
        categories=("stoker",),
        columns=(
            PrinterColumn("Parent", ".spec.parent", "The queue above."),
            PrinterColumn("GPUs", ".status.used.gpus", "What its jobs hold.", "integer"),
            PrinterColumn("Limit", ".spec.limit.gpus", "The most GPUs at a time; empty: no limit.", "integer"),
            PrinterColumn("Guarantee", ".spec.guarantee.gpus", "GPUs that are its own.", "integer"),
            PrinterColumn("Weight", ".spec.weight", "Its part beside others; empty: 1.", "integer", wide=True),
            PrinterColumn("Running", ".status.used.jobs", "Jobs that have a place.", "integer"),
            PrinterColumn("Pending", ".status.pending.jobs", "Jobs that wait.", "integer"),
            PrinterColumn(
                "Valid",
                '.status.conditions[?(@.type=="Valid")].status',
                "False: its parent or its guarantee does not count.",
            ),
            PrinterColumn("CPU", ".status.used.cpu", "Cores that its jobs hold.", wide=True),
            PrinterColumn("CPU Limit", ".spec.limit.cpu", "The most cores at a time; empty: no limit.", wide=True),
            PrinterColumn("Memory", ".status.used.memory", "Memory that its jobs hold.", wide=True),
            PrinterColumn(
                "Memory Limit", ".spec.limit.memory", "The most memory at a time; empty: no limit.", wide=True
            ),
            PrinterColumn("Highest Priority", ".spec.highestPriority", "Of its jobs.", "integer", wide=True),
            PrinterColumn("Projects", ".spec.projects", "Who may submit; empty: all.", wide=True),
            _AGE,
        ),
        name_rule=cel.named(63, DNS_LABEL),
    ),
    Definition(
        RUNTIMES,
        short=("trt",),
        categories=("stoker",),
        columns=(
            PrinterColumn("Image", ".spec.image", "For jobs that name none; empty: the operator's."),
            PrinterColumn("RuntimeClass", ".spec.runtimeClass", "Of the pods."),
            PrinterColumn("Checkpoints", ".spec.checkpoints.claim", "The claim that keeps them."),
            PrinterColumn("Projects", ".spec.projects", "Who may use it; empty: all.", wide=True),
            _AGE,
        ),
        name_rule=cel.named(63, DNS_LABEL),
    ),
    Definition(
        HEALTH,
        short=("gn",),
        categories=("stoker",),
        columns=(
            PrinterColumn("Models", ".status.gpus[*].model", "Its GPUs."),
            PrinterColumn("Causes", ".status.gpus[*].causes[*].code", "What is wrong; empty: nothing."),
            PrinterColumn("Since", ".status.gpus[*].causes[*].since", "Since when.", wide=True),
            PrinterColumn("Cordons", ".spec.cordons[*].reason", "Why an administrator has closed it.", wide=True),
            _AGE,
        ),
        name_rule=cel.named(253, OBJECT_NAME),
    ),
)


def custom_resource(definition: Definition) -> dict[str, Any]:
    """The CustomResourceDefinition, ready for the API server."""
    kind = definition.kind
    singular = kind.kind.lower()
    version: dict[str, Any] = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "additionalPrinterColumns": [column.dump() for column in definition.columns],
    }
    if definition.selectable:
        version["selectableFields"] = [{"jsonPath": path} for path in definition.selectable]
    if "status" in kind.model.model_fields:
        version["subresources"] = {"status": {}}
    version["schema"] = {"openAPIV3Schema": _root(definition)}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": definition.name},
        "spec": {
            "group": GROUP,
            "names": {
                "kind": kind.kind,
                "listKind": f"{kind.kind}List",
                "plural": kind.plural,
                "singular": singular,
                "shortNames": list(definition.short),
                "categories": list(definition.categories),
            },
            "scope": "Namespaced" if kind.namespaced else "Cluster",
            "versions": [version],
        },
    }


def _root(definition: Definition) -> dict[str, Any]:
    kind, freeze = definition.kind, definition.freeze
    properties: dict[str, Any] = {
        "apiVersion": {"type": "string", "description": f"{GROUP}/{VERSION}"},
        "kind": {"type": "string", "description": kind.kind},
        "metadata": {"type": "object"},
        "spec": schema.of_model(_part(kind, "spec"), schema.Use(freeze=freeze)),
    }
    if "status" in kind.model.model_fields:
        properties["status"] = schema.of_model(_part(kind, "status"), schema.Use(status=True))
    root: dict[str, Any] = {"type": "object", "description": descriptions.of_class(kind.model)}
    if kind.model.model_fields["spec"].is_required():
        root["required"] = ["spec"]
    return root | {
        "properties": properties,
        "x-kubernetes-validations": [definition.name_rule.dump(once=definition.freeze)],
    }


def _part(kind: Kind[Any], name: str) -> type[BaseModel]:
    return cast("type[BaseModel]", kind.model.model_fields[name].annotation)
