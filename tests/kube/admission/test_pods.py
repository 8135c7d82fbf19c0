"""Who may make a pod look like a worker's, or take from a worker's pod what makes it one: on a real API server."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import pytest

from stoker.spec.names import FINALIZER_OUTCOME

from .cases import CASES
from .conftest import Admitting, rendered

OPERATOR = "--as=system:serviceaccount:alpha:stoker-operator"
CONTROLLER = "--as=system:serviceaccount:kube-system:generic-garbage-collector"
REPLICAS = "--as=system:serviceaccount:kube-system:replicaset-controller"

LABELS = {"labels": {"stoker.dev/job-uid": "u"}}
FINALIZER = {"finalizers": [FINALIZER_OUTCOME]}
OWNER = {"apiVersion": "stoker.dev/v1alpha1", "kind": "TrainingJob", "name": "j", "uid": "u", "controller": True}
OWNED = {"ownerReferences": [OWNER]}
PLAIN: dict[str, Any] = {"labels": {"app": "x"}, "finalizers": ["example.com/wait"]}
FREE = ("patch", "pod", "one-1-0", "-n", "alpha", "--type=merge", "-p", '{"metadata": {"finalizers": null}}')
MESSAGES = {
    "labels": "labels under stoker.dev/ are set by the operator",
    "finalizers": "stoker.dev/outcome is the operator's",
    "ownerReferences": "only the operator decides which pods a TrainingJob controls",
}


def pod(name: str, metadata: dict[str, Any]) -> dict[str, Any]:
    spec = {"containers": [{"name": "c", "image": "x"}], "schedulerName": "nobodys"}
    metadata = {"name": name, "namespace": "alpha", **metadata}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


@contextlib.contextmanager
def worker(admitting: Admitting) -> Iterator[None]:
    """A pod that carries all three, made by the operator's account."""
    cluster = admitting.bed.cluster
    with admitting.job("carol", CASES[0].body("one")) as job:
        owner = {**OWNER, "name": "one", "uid": job["metadata"]["uid"]}
        body = pod("one-1-0", {**LABELS, **FINALIZER, "ownerReferences": [owner]})
        cluster.kubectl("create", "-f", "-", OPERATOR, stdin=json.dumps(body))
        try:
            yield
        finally:
            cluster.kubectl(*FREE, check=False)
            gone = ("--force", "--grace-period=0", "--ignore-not-found")
            cluster.kubectl("delete", "pod", "one-1-0", "-n", "alpha", *gone)


@pytest.mark.parametrize("metadata", [LABELS, FINALIZER, OWNED], ids=lambda given: next(iter(given)))
def test_a_pod_made_by_a_tenant_is_no_worker(admitting: Admitting, metadata: dict[str, Any]) -> None:
    args = ("create", "-f", "-", "--dry-run=server")
    said = lambda: admitting.refusal("edith", *args, stdin=pod("one-1-0", metadata))  # noqa: E731
    admitting.until(lambda: MESSAGES[next(iter(metadata))] in said(), "the policy is in force")
    # A Deployment's template is its owner's: the cluster's controller makes such pods for no one.
    template = admitting.bed.cluster.kubectl(*args, REPLICAS, stdin=json.dumps(pod("x", metadata)), check=False)
    assert "created" not in template
    for who in ("over", "admin"):
        assert not admitting.refusal(who, *args, stdin=pod("one-1-0", metadata))
    assert not admitting.refusal("edith", *args, stdin=pod("x", PLAIN))


CHANGES: list[tuple[str, dict[str, Any], str]] = [
    ("a label taken away", {"labels": {"stoker.dev/job-uid": None}}, "labels"),
    ("a label changed", {"labels": {"stoker.dev/job-uid": "v"}}, "labels"),
    ("a label added", {"labels": {"stoker.dev/worker": "7"}}, "labels"),
    ("the finalizer taken off", {"finalizers": None}, "finalizers"),
    ("the finalizer replaced", {"finalizers": ["example.com/wait"]}, "finalizers"),
    ("the owner taken away", {"ownerReferences": None}, "ownerReferences"),
    ("another owner", {"ownerReferences": [{**OWNER, "uid": "v"}]}, "ownerReferences"),
    ("no controller any more", {"ownerReferences": [{**OWNER, "controller": False}]}, "ownerReferences"),
    ("a label and a finalizer of one's own", {"labels": {"a": "b"}, "finalizers": [FINALIZER_OUTCOME, "x.com/y"]}, ""),
]


def test_a_workers_pod_stays_one(admitting: Admitting) -> None:
    with worker(admitting):
        patch = ("patch", "pod", "one-1-0", "-n", "alpha", "--type=merge", "--dry-run=server", "-p")
        for name, change, refused in CHANGES:
            text = json.dumps({"metadata": change})
            said = admitting.refusal("edith", *patch, text)
            assert MESSAGES[refused] in said if refused else not said, (name, said)
            assert not admitting.refusal("over", *patch, text), name
            for account in (OPERATOR, CONTROLLER):
                admitting.bed.cluster.kubectl(*patch, text, account)


def test_without_an_operator_an_administrator_frees_a_pod(admitting: Admitting) -> None:
    with worker(admitting):
        admitting.kubectl("edith", "delete", "pod", "one-1-0", "-n", "alpha", "--wait=false")
        assert MESSAGES["finalizers"] in admitting.refusal("edith", *FREE)
        admitting.kubectl("admin", *FREE)
        admitting.bed.cluster.kubectl("wait", "pod/one-1-0", "-n", "alpha", "--for=delete", "--timeout=20s")


def test_without_the_chart_who_may_edit_pods_frees_one(admitting: Admitting) -> None:
    cluster, policy = admitting.bed.cluster, rendered(admitting.bed.cluster, "admission/pods.yaml")
    with worker(admitting):
        cluster.kubectl("delete", "-f", "-", stdin=policy)
        try:
            admitting.until(lambda: not admitting.refusal("edith", *FREE), "the policy is gone")
        finally:
            cluster.kubectl("apply", "-f", "-", stdin=policy)
            made = ("create", "-f", "-", "--dry-run=server")
            admitting.until(lambda: admitting.refusal("edith", *made, stdin=pod("x", LABELS)), "the policy is back")
