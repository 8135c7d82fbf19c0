"""The scrape configuration that PodMonitors and ServiceMonitors stand for, as the Prometheus operator would write it.

Pure. Covers the fields that this project's chart uses, and refuses any other: what is left out here would be proved by
no one. Source: prometheus-operator 0.8x, pkg/prometheus/promcfg.go (generatePodMonitorConfig,
generateServiceMonitorConfig).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

_MONITOR_FIELDS = {
    *("selector", "namespaceSelector", "podMetricsEndpoints", "endpoints", "sampleLimit", "bodySizeLimit"),
}
_ENDPOINT_FIELDS = {
    *("port", "path", "interval", "scheme", "relabelings", "metricRelabelings", "honorLabels", "bearerTokenFile"),
    "authorization",
}
_LIMITS = {"sampleLimit": "sample_limit", "bodySizeLimit": "body_size_limit"}
_OWN_TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount/token"


def scrape_configs(
    monitors: Iterable[Mapping[str, Any]],
    discovery: Mapping[str, Any],
    token_file: str,
    secret: Callable[[str, str, str], str],
) -> list[dict[str, Any]]:
    """One scrape job for each endpoint of each monitor.

    discovery: how the API server is reached, for every `kubernetes_sd_configs`. token_file: Prometheus' own token,
    where a monitor means the one in Prometheus' pod. secret: reads a key of a Secret, by its namespace and name.
    Raises: ValueError for a field that is not known here.
    """
    return [
        _job(monitor, number, endpoint, discovery, token_file, secret)
        for monitor in monitors
        for number, endpoint in enumerate(_endpoints(monitor))
    ]


def _endpoints(monitor: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    spec = monitor["spec"]
    endpoints: list[Mapping[str, Any]] = spec.get("podMetricsEndpoints") or spec["endpoints"]
    for unknown in [spec.keys() - _MONITOR_FIELDS, *(endpoint.keys() - _ENDPOINT_FIELDS for endpoint in endpoints)]:
        if unknown:
            raise ValueError(f"{monitor['metadata']['name']}: {', '.join(sorted(unknown))} is not known here")
    return endpoints


def _job(
    monitor: Mapping[str, Any],
    number: int,
    endpoint: Mapping[str, Any],
    discovery: Mapping[str, Any],
    token_file: str,
    secret: Callable[[str, str, str], str],
) -> dict[str, Any]:
    kind, spec, name = monitor["kind"], monitor["spec"], monitor["metadata"]["name"]
    namespace, pods = monitor["metadata"]["namespace"], kind == "PodMonitor"
    role = "pod" if pods else "endpointslice"
    where: dict[str, Any] = {"role": role, **discovery}
    if not spec.get("namespaceSelector", {}).get("any"):
        where["namespaces"] = {"names": [namespace]}
    about = "pod" if pods else "service"
    port = "__meta_kubernetes_pod_container_port_name" if pods else "__meta_kubernetes_endpointslice_port_name"
    relabel = [
        {"action": "drop", "source_labels": ["__meta_kubernetes_pod_phase"], "regex": "(Failed|Succeeded)"},
        *_selected(spec["selector"], about),
        {"action": "keep", "source_labels": [port], "regex": re.escape(endpoint["port"])},
        _copy("__meta_kubernetes_namespace", "namespace"),
        *([] if pods else [_copy("__meta_kubernetes_service_name", "service")]),
        _copy("__meta_kubernetes_pod_container_name", "container"),
        _copy("__meta_kubernetes_pod_name", "pod"),
        {"target_label": "job", "replacement": f"{namespace}/{name}"}
        if pods
        else _copy("__meta_kubernetes_service_name", "job"),
        {"target_label": "endpoint", "replacement": endpoint["port"]},
        *_relabelings(endpoint.get("relabelings", ())),
    ]
    job: dict[str, Any] = {
        "job_name": f"{kind[0].lower()}{kind[1:]}/{namespace}/{name}/{number}",
        "kubernetes_sd_configs": [where],
        "metrics_path": endpoint.get("path", "/metrics"),
        "scheme": endpoint.get("scheme", "http"),
        "honor_labels": endpoint.get("honorLabels", False),
        "relabel_configs": relabel,
        "metric_relabel_configs": _relabelings(endpoint.get("metricRelabelings", ())),
    }
    if endpoint.get("bearerTokenFile"):
        if endpoint["bearerTokenFile"] != _OWN_TOKEN:
            raise ValueError(f"{name}: only Prometheus' own token is known here")
        job["authorization"] = {"credentials_file": token_file}
    if "authorization" in endpoint:
        credentials = endpoint["authorization"]["credentials"]
        job["authorization"] = {"credentials": secret(namespace, credentials["name"], credentials["key"])}
    return job | {_LIMITS[field]: spec[field] for field in _LIMITS if field in spec}


def _selected(selector: Mapping[str, Any], about: str) -> list[dict[str, Any]]:
    keep = []
    for label, value in selector.get("matchLabels", {}).items():
        has, there = (f"__meta_kubernetes_{about}_{what}_{_meta(label)}" for what in ("label", "labelpresent"))
        keep.append({"action": "keep", "source_labels": [has, there], "regex": f"({re.escape(value)});true"})
    for one in selector.get("matchExpressions", ()):
        if one["operator"] != "Exists":
            raise ValueError(f"operator {one['operator']} is not known here")
        there = f"__meta_kubernetes_{about}_labelpresent_{_meta(one['key'])}"
        keep.append({"action": "keep", "source_labels": [there], "regex": "true"})
    return keep


def _relabelings(given: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [{re.sub("([A-Z])", r"_\1", key).lower(): value for key, value in one.items()} for one in given]


def _copy(source: str, target: str) -> dict[str, Any]:
    return {"source_labels": [source], "target_label": target}


def _meta(label: str) -> str:
    return re.sub("[^a-zA-Z0-9_]", "_", label)
