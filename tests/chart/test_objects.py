"""Every object of every kind of installation, shown to the real API server; and what all of them have in common."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml

from tests.support import chart_rights
from tests.support.testbed.cluster import Cluster
from tests.support.testbed.errors import BedError
from tools.chart import rendering

from .matrix import MATRIX
from .once import objects, of_kind, text, workloads

APPLY = ("apply", "--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict", "--warnings-as-errors")
_Dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
_TOKEN = re.compile("(?<=\n  token: )[A-Za-z0-9=]{56}(?=\n)")
every_installation = pytest.mark.parametrize("values", MATRIX.values(), ids=MATRIX.keys())


def test_the_api_server_takes_every_object(server: Cluster, restricted: str) -> None:
    """Strictly: no unknown field, no field twice, no warning, no pod but the exporter that is not *restricted*.

    Of the objects that several installations have alike, one is shown.
    """
    places = {rendering.NAMESPACE: restricted, f"{rendering.NAMESPACE}-exporter": f"{restricted}-exporter"}
    shown: dict[str, dict[str, Any]] = {}
    for values in MATRIX.values():
        assert len(objects(values)) > 10
        for one in objects(values):
            shown.setdefault(json.dumps(one, sort_keys=True), one)
    manifest = [_placed(one, places) for one in shown.values()]
    answers = server.kubectl(*APPLY, "--filename=-", stdin=yaml.dump_all(manifest, Dumper=_Dumper), timeout_s=180)
    assert len(answers.splitlines()) == len(manifest) > 100
    assert all("(server dry run)" in answer for answer in answers.splitlines())


def test_without_a_default_storage_class_it_says_what_to_set(server: Cluster, restricted: str) -> None:
    def render(**persistence: Any) -> str:
        values = {"api": {"persistence": persistence}}
        return rendering.rendered(values, namespace=restricted, kubeconfig=server.kubeconfig)

    with pytest.raises(rendering.Refused, match=r"no default StorageClass.*: set api\.persistence\.storageClass"):
        render()
    for named in ({"storageClass": "-"}, {"storageClass": "fast"}, {"existingClaim": "mine"}, {"enabled": False}):
        render(**named)
    is_default = {"annotations": {"storageclass.kubernetes.io/is-default-class": "true"}, "name": restricted}
    default = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": is_default, "provisioner": "none"}
    server.kubectl("create", "--filename=-", stdin=json.dumps(default))
    try:
        render()
    finally:
        server.kubectl("delete", "storageclass", restricted)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda d: d["spec"]["template"]["spec"].pop("securityContext"), "PodSecurity"),
        (lambda d: d["spec"].update(replica=1), "not declared in schema"),
    ],
    ids=["not restricted", "unknown field"],
)
def test_that_check_sees_what_is_wrong(server: Cluster, restricted: str, spoil: Any, says: str) -> None:
    [deployment] = [one for one in of_kind({}, "Deployment") if one["metadata"]["name"] == "stoker-operator"]
    deployment = copy.deepcopy(deployment)
    deployment["metadata"]["namespace"] = restricted
    spoil(deployment)
    with pytest.raises(BedError, match=says):
        server.kubectl(*APPLY, "--filename=-", stdin=yaml.safe_dump(deployment))


@every_installation
def test_rendered_twice_it_is_the_same(values: dict[str, Any]) -> None:
    first, again = text(values), rendering.rendered(values)
    assert _TOKEN.sub("token", first) == _TOKEN.sub("token", again)
    made = "exporter" not in values or ("auth" not in values["exporter"] and values["exporter"].get("enabled", True))
    assert (first != again) == made, "no two installations have the same token, and nothing else is made up"


@every_installation
def test_no_account_gets_more_than_is_needed(values: dict[str, Any]) -> None:
    """Whatever else a role holds: no secrets, no way into other people's pods or nodes, nothing wholesale."""
    never = {"secrets", "pods/exec", "pods/attach", "pods/portforward", "pods/ephemeralcontainers", "pods/proxy"}
    never |= {"nodes/proxy", "services/proxy", "serviceaccounts", "serviceaccounts/token", "configmaps", "*"}
    for role in (*of_kind(values, "ClusterRole"), *of_kind(values, "Role")):
        for rule in role["rules"]:
            said = (role["metadata"]["name"], rule)
            assert not never & set(rule.get("resources", ())), said
            assert not {"*", "escalate", "bind", "impersonate", "deletecollection"} & set(rule["verbs"]), said
            assert "*" not in rule.get("apiGroups", ()) and "rbac.authorization.k8s.io" not in rule.get("apiGroups", ())
            assert set(rule.get("nonResourceURLs", ())) <= {"/metrics"}, said


@every_installation
def test_all_of_it_is_labelled_and_in_its_place(values: dict[str, Any]) -> None:
    names = set()
    for one in objects(values):
        meta = one["metadata"]
        labels = meta["labels"]
        assert labels["app.kubernetes.io/instance"] == "stoker" and labels["app.kubernetes.io/part-of"] == "stoker"
        exporters = labels.get("app.kubernetes.io/component") == "exporter"
        place = exporter_namespace(values) if exporters else rendering.NAMESPACE
        assert meta.get("namespace", place) == place
        names.add((one["kind"], meta.get("namespace"), meta["name"]))
        if one["kind"] in ("Deployment", "DaemonSet"):
            pod = one["spec"]["template"]["metadata"]["labels"]
            assert one["spec"]["selector"]["matchLabels"].items() <= pod.items()
    assert len(names) == len(objects(values))


@every_installation
def test_selectors_find_the_pods_they_mean(values: dict[str, Any]) -> None:
    pods = {
        one["metadata"]["labels"]["app.kubernetes.io/component"]: one["spec"]["template"] for one in workloads(values)
    }
    for one in objects(values):
        found = list(_selectors(one))
        wanted = one["metadata"]["labels"].get("app.kubernetes.io/component")
        for selector in found:
            matched = {name for name, pod in pods.items() if selector.items() <= pod["metadata"]["labels"].items()}
            assert matched == {wanted}, (one["kind"], one["metadata"]["name"], selector)
        if wanted is None:
            continue  # the workers' monitor: their pods are none of the chart's
        if one["kind"] in ("Service", "NetworkPolicy", "PodDisruptionBudget", "PodMonitor"):
            assert found
        for port in _named_ports(one):
            there = [p["name"] for c in pods[wanted]["spec"]["containers"] for p in c.get("ports", ())]
            assert port in there, (one["kind"], port)


@every_installation
def test_who_is_bound_is_who_runs(values: dict[str, Any]) -> None:
    """Every role that is bound exists, and every account a pod runs as is made here or named by the values."""
    found = objects(values)
    roles = {(one["kind"], one["metadata"]["name"]) for one in found if one["kind"] in ("ClusterRole", "Role")}
    run = {one["spec"]["template"]["spec"]["serviceAccountName"] for one in workloads(values)}
    for one in found:
        if one["kind"] in ("ClusterRoleBinding", "RoleBinding"):
            assert (one["roleRef"]["kind"], one["roleRef"]["name"]) in roles
            for subject in one["subjects"]:
                if subject["kind"] == "ServiceAccount" and subject["namespace"] == rendering.NAMESPACE:
                    assert subject["name"] in run
    made = {one["metadata"]["name"] for one in found if one["kind"] == "ServiceAccount"}
    assert run - made <= {"default", "their-operator"}


@every_installation
def test_what_pods_mount_is_there(values: dict[str, Any]) -> None:
    found = objects(values)
    there = {(one["kind"], one["metadata"]["name"]) for one in found}
    named = set(_strings(values))
    specs = [one["spec"]["template"]["spec"] for one in workloads(values)]
    specs += [one["spec"] for one in found if one["kind"] == "Pod"]
    for spec in specs:
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        for container in spec["containers"]:
            assert {mount["name"] for mount in container["volumeMounts"]} == set(volumes)
            assert container["resources"]["requests"]
        for volume in volumes.values():
            if "configMap" in volume:
                name = volume["configMap"]["name"]
                assert ("ConfigMap", name) in there or name in named
            if "secret" in volume:
                name = volume["secret"]["secretName"]
                assert ("Secret", name) in there or name in named
            if "persistentVolumeClaim" in volume:
                name = volume["persistentVolumeClaim"]["claimName"]
                assert ("PersistentVolumeClaim", name) in there or name in named


@pytest.mark.parametrize("keep", [True, False])
def test_definitions_are_the_files_and_stay_when_asked(keep: bool) -> None:
    rendered = {one["metadata"]["name"]: one for one in of_kind({"crds": {"keep": keep}}, "CustomResourceDefinition")}
    crds = (rendering.CHART / "files" / "crds").glob("*.yaml")
    files = [yaml.load(path.read_text(), Loader=rendering.Loader) for path in crds]
    assert len(files) == len(rendered) > 2
    for file in files:
        found = rendered[file["metadata"]["name"]]
        assert found["spec"] == file["spec"]
        assert found["metadata"].get("annotations", {}).get("helm.sh/resource-policy") == ("keep" if keep else None)
    assert not of_kind({"crds": {"enabled": False}}, "CustomResourceDefinition")


@every_installation
def test_what_stays_after_an_uninstall_is_said(values: dict[str, Any]) -> None:
    """Definitions and the api's volume, each only if the values say so."""
    kept = {
        one["kind"] for one in objects(values) if "helm.sh/resource-policy" in one["metadata"].get("annotations", {})
    }
    crds, volume = values.get("crds", {}), values.get("api", {}).get("persistence", {})
    wanted = {"CustomResourceDefinition"} if crds.get("enabled", True) and crds.get("keep", True) else set()
    if volume.get("enabled", True) and volume.get("keep", True) and not volume.get("existingClaim"):
        wanted.add("PersistentVolumeClaim")
    assert kept == wanted


@every_installation
def test_metrics_are_reached_from_prometheus_namespace_alone(values: dict[str, Any]) -> None:
    """Unless the values name others; the api takes workers of every project."""
    policies = {
        one["metadata"]["labels"]["app.kubernetes.io/component"]: one for one in of_kind(values, "NetworkPolicy")
    }
    namespace = values.get("monitoring", {}).get("scraper", {}).get("namespace", "monitoring")
    prometheus = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}}]
    for who, policy in policies.items():
        if who != "api":
            [rule] = policy["spec"]["ingress"]
            assert rule["from"] == values.get("networkPolicy", {}).get(who, {}).get("from", prometheus)
    exporters = values.get("exporter", {}).get("enabled", True)
    enabled = values.get("networkPolicy", {}).get("enabled", True)
    assert set(policies) == ({"api", "operator"} | ({"exporter"} if exporters else set()) if enabled else set())


def test_only_pods_that_ask_the_cluster_get_a_token() -> None:
    mounts = {}
    for one in objects():
        if one["kind"] == "ServiceAccount":
            assert one["automountServiceAccountToken"] is False
        elif one["kind"] in ("Deployment", "DaemonSet"):
            mounts[one["metadata"]["name"]] = one["spec"]["template"]["spec"]["automountServiceAccountToken"]
        elif one["kind"] == "Pod":
            mounts[one["metadata"]["name"]] = one["spec"]["automountServiceAccountToken"]
    assert mounts == {"stoker-operator": True, "stoker-api": True, "stoker-exporter": False, "stoker-test-api": False}


def test_no_custom_resource_is_in_it() -> None:
    """Helm builds every object before it creates the definitions: there would be no kind for it yet."""
    assert not [one for one in objects() if "stoker.dev" in one["apiVersion"]]


@pytest.mark.parametrize("replicas", [1, 2, 5])
def test_a_budget_never_blocks_a_drain(replicas: int) -> None:
    budgets = of_kind({"operator": {"replicas": replicas}}, "PodDisruptionBudget")
    assert len(budgets) == (1 if replicas > 1 else 0)
    assert all(one["spec"]["maxUnavailable"] < replicas for one in budgets)


@pytest.mark.parametrize("whose", chart_rights.FILES)
def test_rights_that_other_tests_run_with_are_the_charts(whose: chart_rights.Whose) -> None:
    """tests/kube runs the operator, tests/api the api, with these and no others."""
    kind = "Role" if whose in chart_rights.IN_ITS_NAMESPACE else "ClusterRole"
    [role] = [one for one in of_kind({}, kind) if one["metadata"]["name"] == f"stoker-{whose}"]
    assert role["rules"] == chart_rights.rules(whose)


def exporter_namespace(values: dict[str, Any]) -> str:
    named: str = values.get("exporter", {}).get("namespace", "")
    return named or f"{rendering.NAMESPACE}-exporter"


def _placed(one: dict[str, Any], places: Mapping[str, str]) -> dict[str, Any]:
    """The object in the namespace that stands for its own."""
    meta = one["metadata"]
    place = meta.get("namespace")
    return {**one, "metadata": {**meta, "namespace": places.get(place, place)}} if place else one


def _selectors(one: dict[str, Any]) -> Iterator[dict[str, str]]:
    spec = one.get("spec", {})
    if one["kind"] == "Service":
        yield spec["selector"]
    elif one["kind"] == "NetworkPolicy":
        yield spec["podSelector"]["matchLabels"]
    elif one["kind"] in ("PodDisruptionBudget", "PodMonitor") and "matchLabels" in spec["selector"]:
        yield spec["selector"]["matchLabels"]


def _named_ports(one: dict[str, Any]) -> Iterator[str]:
    spec = one.get("spec", {})
    if one["kind"] == "Service":
        yield from (port["targetPort"] for port in spec["ports"])
    elif one["kind"] == "NetworkPolicy":
        yield from (port["port"] for rule in spec["ingress"] for port in rule["ports"])
    elif one["kind"] == "PodMonitor":
        yield from (endpoint["port"] for endpoint in spec["podMetricsEndpoints"])


def _strings(node: Any) -> Iterator[str]:
    if isinstance(node, str):
        yield node
    elif isinstance(node, dict):
        for child in node.values():
            yield from _strings(child)
