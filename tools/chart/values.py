"""The values of the chart: name, type, default and documentation of each. The one source of values.yaml, its schema,
and the README's table (`python -m tools.chart`). Owns no rendering: templates are helm/stoker/templates.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from stoker.life.gpu_health import XIDS
from stoker.spec.gpu_health import SickCause
from stoker.spec.names import GPU_TYPE, RESERVED_TYPES

from .base import Host, Interval, MaybeLabel, MaybeName, Name, Object, Port, Strings, Values
from .exporter import Exporter
from .parts import Api, Health, Operator, Topology

_APPLICATION_XIDS = "|".join(str(xid) for xid, cause in XIDS.items() if cause is SickCause.CONTAINED_ERROR)
CRITICAL_XIDS = "|".join(str(xid) for xid, cause in XIDS.items() if cause is not SickCause.CONTAINED_ERROR)
_XID_LIST = r"^[0-9]+(\|[0-9]+)*$"
RUNBOOKS = "https://github.com/stoker-dev/stoker/blob/main/docs/runbooks"


class ControlPlaneImage(Values):
    repository: str = "stoker"
    """Operator, api and the supervisor of every worker."""
    tag: str = ""
    """Empty: the chart's appVersion."""
    digest: Annotated[str, Field(pattern=r"^(sha256:[0-9a-f]{64})?$")] = ""
    """Instead of the tag: exactly this image."""


class TrainerImage(Values):
    repository: str = "trainer-cuda"
    """For jobs that name no image; `trainer-cpu` is a fifth of its size, for clusters without GPUs."""
    tag: str = ""
    """Empty: the chart's appVersion."""
    digest: Annotated[str, Field(pattern=r"^(sha256:[0-9a-f]{64})?$")] = ""
    """Instead of the tag: exactly this image."""


class Image(Values):
    registry: str = "ghcr.io/stoker-dev"
    """Prefix of every repository: the one value to change for a mirror. Empty: repositories are full names."""
    pull_policy: Literal["IfNotPresent", "Always", "Never"] = "IfNotPresent"
    """Of the control-plane image, in workers' pods too."""
    pull_secrets: list[Name] = []
    """Secrets of these names in Stoker's namespace, and in every project for workers."""
    control_plane: ControlPlaneImage = ControlPlaneImage()
    trainer: TrainerImage = TrainerImage()


class Crds(Values):
    enabled: bool = True
    """Install and upgrade the CRDs with the chart."""
    keep: bool = True
    """Keep them, and with them every job and queue, on uninstall."""


class Admission(Values):
    enabled: bool = True
    """Admission policies that apply the api's rules to kubectl."""


class Rbac(Values):
    create: bool = True
    """Off: bind the permissions listed in docs/helm.md yourself."""
    aggregate: bool = True
    """Add the permissions on Stoker's objects to the cluster's own roles view, edit and admin."""
    open_default_queue: bool = True
    """Every authenticated user may use queue `default` and run workers in runtime `default`."""
    open_lists: bool = True
    """Every authenticated user may list queues, runtimes and GPU use."""


class CaConfigMap(Values):
    name: MaybeName = ""
    """A ConfigMap in Stoker's namespace."""
    key: str = "ca.crt"
    """Its key with the certificates."""


class CaSecret(Values):
    name: MaybeName = ""
    """A Secret in Stoker's namespace, cert-manager's for example; only this key is read."""
    key: str = "ca.crt"
    """Its key with the certificates."""


class CaBundle(Values):
    """One of the three."""

    pem: str = ""
    """CA certificates (PEM) that workers trust when they report to the api."""
    config_map: CaConfigMap = CaConfigMap()
    secret: CaSecret = CaSecret()


class ApiPolicy(Values):
    from_: list[Object] = Field([], alias="from")
    """NetworkPolicy peers that may reach the api; empty: all. They must include the workers of every project."""


class OperatorPolicy(Values):
    from_: list[Object] = Field([], alias="from")
    """NetworkPolicy peers that may reach the operator's metrics; empty: Prometheus' namespace."""


class ExporterPolicy(Values):
    from_: list[Object] = Field([], alias="from")
    """NetworkPolicy peers that may reach the exporters' metrics; empty: Prometheus' namespace."""


class ApiServerEgress(Values):
    ports: list[Port] = [443, 6443]
    """Of the API server, as its Service and as its endpoints have it."""
    to: list[Object] = []
    """Where it is, as NetworkPolicy peers; empty: anywhere."""


class DnsEgress(Values):
    ports: list[Port] = [53]
    """Of the cluster's DNS, UDP and TCP."""
    to: list[Object] = []
    """Where it is, as NetworkPolicy peers; empty: anywhere."""


class Egress(Values):
    dns: DnsEgress = DnsEgress()
    api_server: ApiServerEgress = ApiServerEgress()


class NetworkPolicies(Values):
    enabled: bool = True
    """Operator and api are reached on their ports only, and reach DNS and the API server only."""
    api: ApiPolicy = ApiPolicy()
    operator: OperatorPolicy = OperatorPolicy()
    exporter: ExporterPolicy = ExporterPolicy()
    egress: Egress = Egress()


class Scraper(Values):
    service_account: MaybeName = ""
    """Prometheus' own account: it gets permission to read the api's and the operators' metrics. Empty: bind
    `…-metrics` yourself."""
    namespace: MaybeName = "monitoring"
    """Where Prometheus runs: from there the operators' and exporters' metrics are reached. Empty: Stoker's."""


class Credentials(Values):
    secret_name: MaybeName = ""
    """A Secret in Stoker's namespace with a token for these metrics; empty: Prometheus sends its own."""
    key: str = "token"
    """Its key with the token."""


class ServiceMonitor(Values):
    enabled: bool = False
    """ServiceMonitors for the api and the operators (needs the Prometheus operator's definitions)."""
    labels: Strings = {}
    """Labels that your Prometheus selects it by."""
    interval: Interval = "30s"
    """How often it is scraped."""
    credentials: Credentials = Credentials()


class PodMonitor(Values):
    enabled: bool = False
    """PodMonitors for the exporters and workers."""
    labels: Strings = {}
    """Labels that your Prometheus selects it by."""
    interval: Interval = "30s"
    """How often they are scraped."""
    workers: bool = True
    """One for the trainers' metrics in the workers of all projects, too."""


class Rules(Values):
    enabled: bool = False
    """PrometheusRules: recording rules, and the alerts below."""
    labels: Strings = {}
    """Labels that your Prometheus selects them by."""
    stoker: bool = True
    """Alerts about Stoker itself."""
    gpus: bool = True
    """Alerts about GPUs and their exporters."""
    jobs: bool = True
    """Alerts about jobs, with project, job_name, queue and user to route them by."""
    dcgm: bool = False
    """Series under the names of dcgm-exporter, for dashboards that are written for it."""
    critical_xids: Annotated[str, Field(pattern=_XID_LIST)] = CRITICAL_XIDS
    """XIDs that page (StokerGpuXidCritical)."""
    application_xids: Annotated[str, Field(pattern=_XID_LIST)] = _APPLICATION_XIDS
    """XIDs that ended one process and make a warning (StokerGpuXidApplication)."""
    runbooks: Annotated[str, Field(pattern=r"^https?://[^\s]+[^/\s]$")] = RUNBOOKS
    """Base URL of the runbooks, for example of your copy of docs/runbooks."""


class Dashboards(Values):
    enabled: bool = False
    """ConfigMaps for Grafana's sidecar."""
    labels: Strings = {"grafana_dashboard": "1"}
    """Labels that the sidecar selects them by."""
    annotations: Strings = {}
    """For example `grafana_folder`."""


class Push(Values):
    url: Annotated[str, Field(pattern=r"^(https?://[^\s/]+(/\S*)?)?$")] = ""
    """Where exporters, operators and the api send all their metrics, and trainers', by Prometheus remote-write:
    `https://…/api/v1/write`. Empty: nowhere."""
    every: Annotated[str, Field(pattern=r"^[0-9]+(\.[0-9]+)?[sm]$")] = "15s"
    """How often."""
    token_secret: MaybeName = ""
    """A Secret, in Stoker's namespace and in the exporter's, whose key `token` is sent as bearer token."""
    basic_auth_secret: MaybeName = ""
    """The same with key `auth`, user:password, instead of a token."""
    ca_secret: MaybeName = ""
    """The same with key `ca.crt`: CA certificates for the receiver. Empty: the system's."""
    headers: Strings = {}
    """Sent with each request, for example `X-Scope-OrgID`. No secrets: they appear in command lines."""
    labels: Strings = {}
    """On every series that is sent, for example `cluster`."""
    allow_http: bool = False
    """Send the token or password over http:// too."""


class Monitoring(Values):
    push: Push = Push()
    scraper: Scraper = Scraper()
    service_monitor: ServiceMonitor = ServiceMonitor()
    pod_monitor: PodMonitor = PodMonitor()
    rules: Rules = Rules()
    dashboards: Dashboards = Dashboards()


GpuModel = Annotated[str, Field(min_length=1)]
GpuType = Annotated[str, Field(pattern=GPU_TYPE.anchored, json_schema_extra={"not": {"enum": sorted(RESERVED_TYPES)}})]


class ChartValues(Values):
    name_override: MaybeLabel = ""
    """Instead of the chart's name, in names and labels."""
    fullname_override: MaybeLabel = ""
    """What every object's name begins with; empty: the release's name."""
    common_labels: Strings = {}
    """On every object and pod."""
    pod_annotations: Strings = {}
    """On every pod."""
    cluster_domain: Host = "cluster.local"
    """Of the cluster's DNS."""
    image: Image = Image()
    crds: Crds = Crds()
    admission: Admission = Admission()
    rbac: Rbac = Rbac()
    ca_bundle: CaBundle = CaBundle()
    topology: Topology = Topology()
    gpu_types: dict[GpuModel, GpuType] = {}
    """Words of a GPU model's name → what queues call its type, for example `h100 nvl: h100-nvl`; before the shipped
    table. No type is called cpu, gpus, memory or unknown."""
    health: Health = Health()
    operator: Operator = Operator()
    api: Api = Api()
    exporter: Exporter = Exporter()
    network_policy: NetworkPolicies = NetworkPolicies()
    monitoring: Monitoring = Monitoring()
