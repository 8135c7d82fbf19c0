"""What the values' models are made of: strict objects, and strings of a known form.

Owns no value. Used by `values` and the modules it is put together of.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from stoker.spec.names import LABEL_KEY


class Values(BaseModel):
    """An object of the values: nothing but what is named here. The text below each field is its documentation."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True, use_attribute_docstrings=True
    )


class Leaf(Values):
    """An object that Kubernetes knows: written as a whole, and one row of the README."""


Name = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", max_length=253)]
"""Of a Kubernetes object."""
MaybeName = Annotated[str, Field(pattern=r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?)?$", max_length=253)]
MaybeLabel = Annotated[str, Field(pattern=r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?)?$", max_length=50)]
"""What other names begin with."""
Host = Annotated[str, Field(pattern=r"^[A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?$", max_length=253)]
MaybeHost = Annotated[str, Field(pattern=r"^([A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?)?$", max_length=253)]
Duration = Annotated[str, Field(pattern=r"^([0-9]+(\.[0-9]+)?(ms|s|m|h|d))+$")]
MaybeDuration = Annotated[str, Field(pattern=r"^([0-9]+(\.[0-9]+)?(ms|s|m|h|d))*$")]
Interval = Annotated[str, Field(pattern=r"^[0-9]+(ms|s|m|h)$")]
"""A duration as Prometheus writes it."""
Quantity = Annotated[str, Field(pattern=r"^[0-9]+(\.[0-9]+)?(m|k|Ki|M|Mi|G|Gi|T|Ti|P|Pi)?$")]
Price = Annotated[float, Field(ge=0)] | Annotated[str, Field(pattern=r"^[0-9]+(\.[0-9]+)?$")]
"""A string too: `helm --set` makes one of 2.5."""
Port = Annotated[int, Field(ge=1, le=65535)]
NodePort = Annotated[int, Field(ge=0, le=32767)]
"""0: the cluster picks one."""
LabelKey = Annotated[str, Field(pattern=LABEL_KEY.anchored, max_length=317)]
Strings = dict[str, str]
Object = dict[str, Any]


class Resources(Leaf):
    """As in a container of Kubernetes."""

    requests: dict[str, str | int | float] = {}
    limits: dict[str, str | int | float] = {}


class EnvVar(Leaf):
    """As in a container of Kubernetes: a value, or where it comes from."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.-]*$")]
    value: str | None = None
    value_from: Object | None = None


class ServiceAccount(Values):
    create: bool = True
    """Whether the chart makes it."""
    name: MaybeName = ""
    """Its name; empty: the Deployment's, or `default` where the chart makes none."""
    annotations: Strings = {}
    """For example a cloud's workload identity."""


class Pod(Values):
    """What operator and api have in common."""

    service_account: ServiceAccount = ServiceAccount()
    pod_annotations: Strings = {}
    """In addition to those for all pods."""
    resources: Resources
    """Of the container."""
    priority_class_name: MaybeName = ""
    """For example `system-cluster-critical`: without Stoker nothing new starts."""
    node_selector: Strings = {}
    """Labels its nodes must have."""
    tolerations: list[Object] = []
    """Taints it tolerates."""
    affinity: Object = {}
    """As in a pod."""
    extra_args: list[str] = []
    """Further options of the process."""
    extra_env: list[EnvVar] = []
    """Further environment variables."""
