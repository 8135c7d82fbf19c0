"""Values of the two processes, operator and api. Owns no rendering. Put together in `values`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from stoker.spec.gpu_health import Move, SickCause

from .base import (
    Duration,
    Host,
    LabelKey,
    MaybeDuration,
    MaybeHost,
    MaybeName,
    NodePort,
    Object,
    Pod,
    Port,
    Price,
    Quantity,
    Resources,
    Strings,
    Values,
)


class Topology(Values):
    levels: list[LabelKey] = []
    """Keys of node labels, outermost first, that say which nodes are close together: a job may ask for one of them."""


class BurnIn(Values):
    enabled: bool = True
    """Test a sick GPU, once what was wrong with it is over, and let it take jobs again only if it passes. Else what is
    over no longer counts."""
    image: str = ""
    """With Stoker's trainer in it, by its full name. Empty: image.trainer."""
    seconds: Annotated[int, Field(ge=0, le=3600)] = 10
    """How long each test multiplies matrices."""


class Health(Values):
    moves: dict[SickCause, Move] = {}
    """Cause of a sick GPU → when a job that has it is saved and moved: `now`, `checkpoint` (once it has saved since) or
    `stay`, for example `Throttled: stay`; before the shipped table (docs/gpu-health.md)."""
    taint: bool = False
    """Keep other people's pods off nodes that are left out for a sick GPU, by the taint stoker.dev/sick-gpu:NoSchedule.
    The operator may change nodes then."""
    burn_in: BurnIn = BurnIn()


class DisruptionBudget(Values):
    enabled: bool = True
    """With two or more replicas."""
    max_unavailable: Annotated[int, Field(ge=1)] = 1
    """How many may be evicted at once."""


class Operator(Pod):
    replicas: Annotated[int, Field(ge=1, le=9)] = 2
    """One leads, the others take over within 15 s if it dies."""
    resources: Resources = Resources(requests={"cpu": "100m", "memory": "256Mi"}, limits={"memory": "1Gi"})
    """Of the container. 10,000 jobs on 5,000 nodes take 350 MiB and a core (docs/benchmarks.md)."""
    pod_disruption_budget: DisruptionBudget = DisruptionBudget()
    topology_spread_constraints: list[Object] = []
    """Empty: spread over nodes and zones where that is possible."""
    log_format: Literal["text", "json"] = "text"
    """Format of its log."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The lowest level that it logs."""
    node_lost_after: Duration = "60s"
    """A node that has not reported for this long is given up; its jobs are placed elsewhere."""
    start_timeout: Duration = "5m"
    """A gang that is not running within this time is withdrawn."""
    pull_timeout: Duration = "30m"
    """The same while images are being pulled."""
    ttl_after_finished: MaybeDuration = ""
    """Jobs are deleted, with their logs, this long after their end if they and their queue set none; empty: never."""
    usage_half_life: Duration = "1d"
    """What a queue held so long ago counts half in the order between queues; 0s: only what it holds now counts."""
    termination_grace_period_seconds: Annotated[int, Field(ge=5)] = 20
    """To finish writes and hand over leadership."""


class Persistence(Values):
    enabled: bool = True
    """Off: an emptyDir; jobs' logs and code bundles are lost with the pod."""
    size: Quantity = "20Gi"
    """Of the claim: logs of jobs and code bundles."""
    storage_class: Annotated[str, Field(pattern=r"^(-|([a-z0-9]([-a-z0-9.]*[a-z0-9])?)?)$")] = ""
    """Empty: the cluster's default, without which nothing is installed; `-`: none (`storageClassName: ""`)."""
    access_mode: Literal["ReadWriteOnce", "ReadWriteOncePod", "ReadWriteMany"] = "ReadWriteOnce"
    """One pod writes."""
    annotations: Strings = {}
    """Of the claim."""
    existing_claim: MaybeName = ""
    """Use this existing claim instead of the chart's."""
    keep: bool = True
    """Keep the claim on uninstall."""


class ApiService(Values):
    type: Literal["ClusterIP", "NodePort", "LoadBalancer"] = "ClusterIP"
    """Type of the Service, for access without an Ingress."""
    port: Port = 8470
    """Of the Service; workers report there."""
    node_port: NodePort = 0
    """With type NodePort or LoadBalancer; 0: the cluster picks one."""
    load_balancer_source_ranges: list[Annotated[str, Field(pattern=r"^[0-9a-fA-F.:]+/[0-9]+$")]] = []
    """With type LoadBalancer: allowed source CIDRs."""
    annotations: Strings = {}
    """Of the Service."""


class IngressTls(Values):
    secret_name: MaybeName = ""
    """A Secret of type kubernetes.io/tls for `host`; empty: the ingress controller's own certificate, or none."""


class Ingress(Values):
    enabled: bool = False
    """Whether there is one."""
    class_name: MaybeName = ""
    """Empty: the cluster's default."""
    host: MaybeHost = ""
    """Host name of the api; required."""
    annotations: Strings = {}
    """Streams last, code comes in packs: raise time-outs and sizes (nginx: proxy-read-timeout, proxy-body-size)."""
    tls: IngressTls = IngressTls()


class ApiTls(Values):
    secret_name: MaybeName = ""
    """A Secret of type kubernetes.io/tls: the api serves https, to workers too. They need `caBundle` to trust it."""


class Idle(Values):
    after: Duration = "30m"
    """A job whose GPUs have all been idle for this long is reported, unless its spec says otherwise."""
    action: Literal["Notify", "Suspend", "None"] = "Notify"
    """What happens then."""


class Api(Pod):
    resources: Resources = Resources(requests={"cpu": "100m", "memory": "256Mi"}, limits={"memory": "2Gi"})
    """Of the container."""
    persistence: Persistence = Persistence()
    service: ApiService = ApiService()
    ingress: Ingress = Ingress()
    tls: ApiTls = ApiTls()
    url: Annotated[str, Field(pattern=r"^(https?://[A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?(:[0-9]+)?)?$")] = ""
    """Where workers report; empty: the Service. Another way (the Ingress, say) needs its name among the hosts."""
    allow_hosts: list[Host] = []
    """Further names in Host headers: a load balancer's, a node's address. The Service's and the Ingress' are known."""
    audiences: list[Annotated[str, Field(min_length=1)]] = []
    """Audiences of users' tokens; empty: the API server's own."""
    log_bytes: Annotated[int, Field(ge=0)] = 0
    """Limit on all jobs' logs together; 0: the disk."""
    code_bytes: Annotated[int, Field(ge=1 << 20)] = 5 << 30
    """Limit on all code bundles together; logs need room beside them in the claim."""
    usage_keep: Duration = "400d"
    """How long usage history is kept; it outlives the jobs."""
    gpu_prices: dict[str, Price] = {}
    """Part of a GPU model's name → price of an hour; `*`: of any other. Usage is then priced."""
    currency: Annotated[str, Field(pattern=r"^([A-Z]{3})?$")] = ""
    """Of the prices; dashboards show it."""
    grafana_url: Annotated[
        str, Field(pattern=r"^(https?://[A-Za-z0-9][-A-Za-z0-9.]*(:[0-9]+)?(/[-A-Za-z0-9._~/]*)?)?$")
    ] = ""
    """The Grafana with the dashboards; the web page then links to them."""
    idle: Idle = Idle()
