"""The exporter's DaemonSet: what it may, what it mounts, how it reports, and who may read it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stoker.exporter.options import parse
from tests.support.testbed.cluster import Cluster
from tools.chart import rendering

from .matrix import MATRIX, MONITORING, PEM
from .once import container, objects, of_kind, workloads


def _pod(values: dict[str, Any]) -> dict[str, Any]:
    [found] = [one for one in workloads(values) if one["kind"] == "DaemonSet"]
    spec: dict[str, Any] = found["spec"]["template"]["spec"]
    return spec


def test_it_may_no_more_than_read_the_kubelets_socket() -> None:
    """Root, for the socket is root's; but without a capability, a way to get one, or another's folder to write to."""
    pod, process = _pod({}), container({}, "exporter")
    assert pod["securityContext"]["runAsUser"] == 0
    assert process["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    assert not {"hostPID", "hostNetwork", "hostIPC"} & set(pod)
    host = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume}
    own = "/var/lib/stoker-exporter/stoker-system-exporter"
    assert host == {"pod-resources": "/var/lib/kubelet/pod-resources", "state": own}
    mounts = {mount["name"]: mount.get("readOnly", False) for mount in process["volumeMounts"] if mount["name"] in host}
    assert mounts == {"pod-resources": True, "state": False}


def test_its_state_outlives_the_pod_unless_no_folder_of_the_host_may_be_written() -> None:
    def state(values: dict[str, Any]) -> Any:
        return next(volume for volume in _pod({"exporter": values})["volumes"] if volume["name"] == "state")

    there = {"path": "/data/stoker/stoker-system-exporter", "type": "DirectoryOrCreate"}
    assert state({"stateDir": "/data/stoker"}) == {"name": "state", "hostPath": there}
    assert state({"stateDir": ""}) == {"name": "state", "emptyDir": {"sizeLimit": "256Mi"}}


def test_it_sees_the_nodes_processes_only_where_that_is_asked_for() -> None:
    assert _pod({"exporter": {"hostPid": True}})["hostPID"] is True


def test_what_a_node_should_have_and_what_was_taken_out_are_its_options() -> None:
    uuid = "GPU-00000000-0000-0000-0000-000000000000"
    args = container({"exporter": {"expectedGpus": {"dgx-*": 8, "*": 4}, "retiredGpus": [uuid]}}, "exporter")["args"]
    options = {name: parse([*args], {"STOKER_NODE_NAME": name}) for name in ("dgx-7", "other")}
    assert (options["dgx-7"].expected_gpus, options["other"].expected_gpus) == (8, 4)
    assert options["other"].retired_gpu == (uuid,)


def test_it_has_no_right_in_the_cluster_and_a_token_for_the_api_alone() -> None:
    account = _pod({})["serviceAccountName"]
    bound = [
        subject["name"]
        for one in objects()
        if one["kind"] in ("RoleBinding", "ClusterRoleBinding")
        for subject in one["subjects"]
    ]
    assert account not in bound
    [token] = [volume for volume in _pod({})["volumes"] if volume["name"] == "token"]
    [source] = token["projected"]["sources"]
    assert source["serviceAccountToken"]["audience"] == "stoker"


@pytest.mark.parametrize("values", MATRIX.values(), ids=MATRIX.keys())
def test_the_api_knows_the_account_that_reports(values: dict[str, Any]) -> None:
    found = [one for one in workloads(values) if one["kind"] == "DaemonSet"]
    reported = [arg for arg in container(values, "api")["args"] if arg.startswith("--exporter-account=")]
    assert reported == [
        f"--exporter-account={one['metadata']['namespace']}:{one['spec']['template']['spec']['serviceAccountName']}"
        for one in found
    ]


def test_a_gpu_is_looked_at_and_never_asked_for() -> None:
    process = container({}, "exporter")
    assert {name for kind in process["resources"].values() for name in kind} == {"cpu", "memory"}
    reported = {one["name"]: one.get("value") for one in process["env"]}
    assert reported["NVIDIA_VISIBLE_DEVICES"] == "all" and reported["NVIDIA_DRIVER_CAPABILITIES"] == "utility"


def test_it_trusts_the_api_by_the_bundle_of_the_chart() -> None:
    values = {"api": {"tls": {"secretName": "api-tls"}}, "caBundle": {"pem": PEM}}
    [bundle] = [one for one in of_kind(values, "ConfigMap") if one["metadata"]["name"] == "stoker-exporter-ca"]
    assert bundle["metadata"]["namespace"] == f"{rendering.NAMESPACE}-exporter" and bundle["data"] == {"ca.crt": PEM}
    args = container(values, "exporter")["args"]
    assert "--api-url=https://stoker-api.stoker-system.svc:8470" in args
    assert "--api-ca=/etc/stoker/ca/ca.crt" in args


def test_prometheus_keeps_a_node_the_same_and_shows_the_token_that_is_asked_for() -> None:
    monitors = {one["metadata"]["name"]: one for one in of_kind(MATRIX["monitored over tls"], "PodMonitor")}
    [endpoint] = monitors["stoker-exporter"]["spec"]["podMetricsEndpoints"]
    assert endpoint["relabelings"] == [{"sourceLabels": ["__meta_kubernetes_pod_node_name"], "targetLabel": "instance"}]
    assert endpoint["authorization"]["credentials"] == {"name": "exporter-auth", "key": "bearer"}
    assert endpoint["scheme"] == "https"
    workers = monitors["stoker-workers"]["spec"]
    assert workers["namespaceSelector"] == {"any": True}


def test_the_token_that_the_chart_made_stays_and_prometheus_sends_it(server: Cluster, restricted: str) -> None:
    def installed() -> dict[tuple[str, str], dict[str, Any]]:
        values = {"monitoring": MONITORING, "api": {"persistence": {"storageClass": "-"}}}
        text = rendering.rendered(values, namespace=restricted, kubeconfig=server.kubeconfig)
        return {(one["kind"], one["metadata"]["name"]): one for one in rendering.parsed(text)}

    made = installed()
    secret = made["Secret", "stoker-exporter-scrape"]
    assert secret["metadata"]["namespace"] == f"{restricted}-exporter"
    server.kubectl("apply", "-f", "-", stdin=json.dumps(secret))
    assert installed()["Secret", "stoker-exporter-scrape"]["data"] == secret["data"]
    [endpoint] = made["PodMonitor", "stoker-exporter"]["spec"]["podMetricsEndpoints"]
    assert endpoint["authorization"]["credentials"] == {"name": "stoker-exporter-scrape", "key": "token"}
    assert "--auth-token-file=/etc/stoker/auth/token" in container({}, "exporter")["args"]
    open_to_all = {"exporter": {"auth": {"enabled": False}}}
    assert not of_kind(open_to_all, "Secret")
    assert not [arg for arg in container(open_to_all, "exporter")["args"] if "auth" in arg]


def test_without_exporters_nothing_of_them_is_left() -> None:
    found = objects(MATRIX["without exporters"])
    assert not [one for one in found if "exporter" in one["metadata"]["name"]]
    assert not [one for one in found if one["kind"] == "Namespace"]
