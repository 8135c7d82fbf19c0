"""The values: nothing unknown is taken, everything known is documented, generated and has an effect."""

from __future__ import annotations

import copy
import functools
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import tools.chart.__main__ as generating
from stoker import __version__
from tools.chart import rendering
from tools.chart.leaves import Value, walk
from tools.chart.leaves import values as leaves
from tools.chart.values import ChartValues
from tools.release import versions

from . import once
from .matrix import DIGEST, MATRIX, MONITORING, PEM

TEMPLATES = sorted((rendering.CHART / "templates").rglob("*.*"))
USED = re.compile(r"\.Values((?:\.[A-Za-z]+)+)")

# What is switched on while one value after the other is changed.
FULL: dict[str, Any] = {
    "monitoring": MONITORING,
    "api": {
        "ingress": {"enabled": True, "host": "stoker.example", "tls": {"secretName": "a"}},
        "service": {"type": "LoadBalancer"},
    },
}
PUSHES = ("every", "tokenSecret", "basicAuthSecret", "caSecret", "headers", "labels", "allowHttp")
PUSH = {"push": {"url": "https://prometheus.example/api/v1/write"}}
# Values that count only beside these others, and other values than a type's own to change them to.
BESIDE: dict[str, dict[str, Any]] = {
    "caBundle.configMap.key": {"caBundle": {"configMap": {"name": "ca"}}},
    "caBundle.secret.key": {"caBundle": {"secret": {"name": "ca"}}},
    "api.tls.secretName": {"caBundle": {"pem": PEM}},
    "exporter.auth.key": {"exporter": {"auth": {"secretName": "a"}}},
    **{f"monitoring.push.{name}": {"monitoring": PUSH} for name in PUSHES},
    "monitoring.serviceMonitor.credentials.key": {
        "monitoring": {"serviceMonitor": {"credentials": {"secretName": "scraper"}}}
    },
}
OTHER: dict[str, Any] = {
    "image.controlPlane.digest": DIGEST,
    "image.trainer.digest": DIGEST,
    "caBundle.pem": PEM,
    "api.url": "https://stoker.example",
    "api.persistence.size": "1Gi",
    "api.persistence.storageClass": "-",
    "api.service.loadBalancerSourceRanges": ["10.0.0.0/8"],
    "api.grafanaUrl": "https://grafana.example/of",
    "api.currency": "EUR",
    "api.gpuPrices": {"H100": 2.5},
    "gpuTypes": {"h100 nvl": "h100-nvl"},
    "health.moves": {"Throttled": "stay"},
    "exporter.driverRoot": "/home/kubernetes/bin/nvidia",
    "exporter.kubeletRoot": "/data/kubelet",
    "exporter.maxUnavailable": "1",
    "exporter.withoutCollectors": ["pcie"],
    "exporter.stateDir": "/data/stoker",
    "exporter.expectedGpus": {"dgx-*": 8},
    "exporter.retiredGpus": ["GPU-00000000-0000-0000-0000-000000000000"],
    "monitoring.push.url": "https://prometheus.example/api/v1/write",
    "monitoring.rules.applicationXids": "31|94",
    "monitoring.rules.criticalXids": "79",
    "monitoring.rules.runbooks": "https://wiki.example/runbooks",
    "operator.ttlAfterFinished": "7d",
    "networkPolicy.egress.apiServer.ports": [8443],
    "networkPolicy.egress.dns.ports": [5353],
}


def test_what_is_generated_is_up_to_date() -> None:
    assert generating.stale(write=False) == [], "run `make chart`"


def test_values_yaml_is_the_models_defaults() -> None:
    written = yaml.safe_load((rendering.CHART / "values.yaml").read_text())
    assert ChartValues.model_validate(written) == ChartValues()
    for value in leaves():
        assert functools.reduce(lambda node, part: node[part], value.path, written) == value.default


def test_the_chart_is_of_this_version() -> None:
    about = yaml.safe_load((rendering.CHART / "Chart.yaml").read_text())
    version = versions.parse(__version__)
    assert (about["version"], about["appVersion"]) == (versions.semver(version), versions.image_tag(version))
    assert about["kubeVersion"] == ">=1.32.0-0"


def test_helm_finds_nothing_to_say_against_it() -> None:
    for values in ({}, FULL):
        assert "1 chart(s) linted, 0 chart(s) failed" in rendering.lint(values)


@pytest.mark.parametrize("values", MATRIX.values(), ids=MATRIX.keys())
def test_the_models_take_what_the_schema_takes(values: dict[str, Any]) -> None:
    ChartValues.model_validate(values)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"operatr": {}}, "'operatr' not allowed"),
        ({"operator": {"replica": 2}}, "at '/operator': additional properties 'replica' not allowed"),
        ({"operator": {"replicas": "2"}}, "at '/operator/replicas': got string, want integer"),
        ({"operator": {"replicas": 0}}, "at '/operator/replicas': minimum"),
        ({"operator": {"logFormat": "xml"}}, "at '/operator/logFormat': value must be one of"),
        ({"operator": {"nodeLostAfter": 60}}, "at '/operator/nodeLostAfter': got number, want string"),
        ({"operator": {"nodeLostAfter": "1 minute"}}, "at '/operator/nodeLostAfter': '1 minute' does not match"),
        ({"operator": {"resources": {"request": {}}}}, "at '/operator/resources': additional properties 'request'"),
        ({"operator": {"extraArgs": "--x"}}, "at '/operator/extraArgs': got string, want array"),
        ({"operator": {"extraEnv": [{"value": "1"}]}}, "at '/operator/extraEnv/0': missing property 'name'"),
        ({"operator": {"podAnnotations": {"a": True}}}, "at '/operator/podAnnotations/a': got boolean, want string"),
        ({"operator": {"nodeSelector": {"a": 1}}}, "at '/operator/nodeSelector/a': got number, want string"),
        ({"topology": {"levels": ["rack", "a b"]}}, "at '/topology/levels/1': 'a b' does not match"),
        ({"gpuTypes": {"a": "gpus"}}, "at '/gpuTypes/a': 'not' failed"),
        ({"gpuTypes": {"": "h100"}}, "invalid propertyName ''"),
        ({"api": {"replicas": 2}}, "at '/api': additional properties 'replicas' not allowed"),
        ({"api": {"service": {"type": "ExternalName"}}}, "at '/api/service/type': value must be one of"),
        ({"api": {"service": {"port": 70000}}}, "at '/api/service/port': maximum"),
        ({"api": {"ingress": {"hosts": []}}}, "at '/api/ingress': additional properties 'hosts' not allowed"),
        ({"api": {"ingress": {"host": "a b"}}}, "at '/api/ingress/host': 'a b' does not match"),
        ({"api": {"persistence": {"size": "big"}}}, "at '/api/persistence/size': 'big' does not match"),
        ({"api": {"persistence": {"keep": "yes"}}}, "at '/api/persistence/keep': got string, want boolean"),
        ({"api": {"allowHosts": ["https://x"]}}, "at '/api/allowHosts/0': 'https://x' does not match"),
        ({"api": {"url": "stoker.example"}}, "at '/api/url': 'stoker.example' does not match"),
        ({"api": {"tls": {"cert": "x"}}}, "at '/api/tls': additional properties 'cert' not allowed"),
        ({"image": {"controlPlane": {"digest": "sha256:1"}}}, "at '/image/controlPlane/digest': 'sha256:1' does not"),
        ({"image": {"pullPolicy": "Sometimes"}}, "at '/image/pullPolicy': value must be one of"),
        ({"image": {"pullSecrets": [{"name": "x"}]}}, "at '/image/pullSecrets/0': got object, want string"),
        ({"caBundle": "x"}, "at '/caBundle': got string, want object"),
        ({"fullnameOverride": "Stoker"}, "at '/fullnameOverride': 'Stoker' does not match"),
        ({"monitoring": {"rules": True}}, "at '/monitoring/rules': got boolean, want object"),
        ({"networkPolicy": {"egress": {"dns": {"ports": [0]}}}}, "at '/networkPolicy/egress/dns/ports/0': minimum"),
        ({"admission": {"enable": True}}, "at '/admission': additional properties 'enable' not allowed"),
        # What the schema can't say, the templates do.
        ({"api": {"ingress": {"enabled": True}}}, "api.ingress.host: the name people call the api by"),
        ({"api": {"tls": {"secretName": "x"}}}, "api.tls.secretName: workers have to trust"),
        ({"caBundle": {"pem": PEM, "secret": {"name": "x"}}}, "caBundle: give one of pem, configMap.name and secret"),
        ({"exporter": {"ca": {"configMap": "x", "secret": "y"}}}, "exporter.ca: give one of configMap and secret"),
        (
            {"api": {"tls": {"secretName": "x"}}, "caBundle": {"secret": {"name": "x"}}},
            "api.tls.secretName: the exporter, in a namespace of its own, has to trust",
        ),
        ({"exporter": {"withoutCollectors": ["GPM"]}}, "at '/exporter/withoutCollectors/0': 'GPM' does not match"),
        ({"api": {"gpuPrices": {"H100": "free"}}}, "at '/api/gpuPrices/H100': 'free' does not match"),
        ({"exporter": {"maxUnavailable": 0}}, "at '/exporter/maxUnavailable': minimum"),
    ],
    ids=lambda given: json.dumps(given)[:60] if isinstance(given, dict) else "",
)
def test_values_that_are_refused(values: dict[str, Any], says: str) -> None:
    with pytest.raises(rendering.Refused, match=re.escape(says)):
        rendering.rendered(values)


def test_quantities_as_people_type_them() -> None:
    set_on_the_command_line = {"api": {"gpuPrices": {"H100": "2.5", "L4": 1}}, "exporter": {"maxUnavailable": 1}}
    assert {"--gpu-price=H100=2.5", "--gpu-price=L4=1"} <= set(once.container(set_on_the_command_line, "api")["args"])
    [exporters] = once.of_kind(set_on_the_command_line, "DaemonSet")
    assert exporters["spec"]["updateStrategy"]["rollingUpdate"]["maxUnavailable"] == 1


def test_only_maps_are_open() -> None:
    """Everything else refuses what it does not know."""
    schema = json.loads((rendering.CHART / "values.schema.json").read_text())
    open_objects = [path for path, node in _nodes(schema, "") if _is_open(node)]
    named = {path.rsplit("/", 1)[-1] for path in open_objects}
    assert named <= {
        "affinity", "annotations", "commonLabels", "expectedGpus", "from", "gpuPrices", "gpuTypes", "headers", "items",
        "labels", "limits", "nodeSelector", "podAnnotations", "requests", "tolerations", "topologySpreadConstraints",
        "valueFrom", "anyOf", "global", "moves", "to",
    }, open_objects  # fmt: skip


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: str(path.relative_to(rendering.CHART)))
def test_templates_name_only_values_that_there_are(template: Path) -> None:
    known = {one.path for one in walk()}
    for used in USED.findall(template.read_text()):
        path = tuple(used.strip(".").split("."))
        assert path in known, f"{template.name}: .Values{used}"


@pytest.mark.parametrize("value", leaves(), ids=lambda value: value.name)
def test_every_value_has_an_effect(value: Value) -> None:
    before = _merged(FULL, BESIDE.get(value.name, {}))
    after = _merged(before, _nested(value.path, _changed(value, before)))
    assert once.text(before) != rendering.rendered(after)


@pytest.mark.parametrize(
    "name", ["default", "ingress", "load balancer", "rights by another owner", "closed", "other names"]
)
def test_notes_say_the_next_command(name: str) -> None:
    said, objects = rendering.notes(MATRIX[name]), once.objects(MATRIX[name])
    assert "create token alice" in said and "stoker --project vision run" in said
    roles = {one["metadata"]["name"] for one in objects if one["kind"] == "ClusterRole"}
    assert set(re.findall(r"--clusterrole=(\S+-user)", said)) <= roles
    services = {one["metadata"]["name"] for one in objects if one["kind"] == "Service"}
    assert set(re.findall(r"service[/ ](\S+)", said)) <= services


def _changed(value: Value, before: dict[str, Any]) -> Any:
    """Another value of the same type."""
    if value.name in OTHER:
        return OTHER[value.name]
    now: Any = before
    for part in value.path:
        now = now.get(part, {}) if isinstance(now, dict) else {}
    now = value.default if now == {} else now
    if value.type == "bool":
        return not now
    if value.type == "integer":
        return now + 1 if now else 30471
    if value.type.startswith("`"):
        return next(word for word in value.type.replace("`", "").split(" or ") if word != now)
    if value.type == "string":
        return "7m" if re.fullmatch(r"[0-9]+[smhd]", str(now)) else "other"
    if value.type == "map":
        return {"affinity": {"podAffinity": {}}}.get(value.path[-1], {"other": "1"})
    if value.type == "object":
        return {"requests": {"cpu": "7"}}
    items = {"list of strings": ["other"], "list of objects": [{"name": "OTHER"}], "list of maps": [{"other": "1"}]}
    return items[value.type]


def _nested(path: tuple[str, ...], value: Any) -> dict[str, Any]:
    for part in reversed(path):
        value = {part: value}
    found: dict[str, Any] = value
    return found


def _merged(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    merged = copy.deepcopy(one)
    for key, value in other.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merged(merged[key], value) if both else value
    return merged


def _nodes(node: Any, path: str) -> list[tuple[str, dict[str, Any]]]:
    if isinstance(node, list):
        return [found for child in node for found in _nodes(child, path)]
    if not isinstance(node, dict):
        return []
    below = [found for key, child in node.items() for found in _nodes(child, f"{path}/{key}")]
    return [(path, node), *below]


def _is_open(node: dict[str, Any]) -> bool:
    return node.get("type") == "object" and node.get("additionalProperties") is not False
