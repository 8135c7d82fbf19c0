"""kubectl and the api side by side: whatever the table says, both refuse it, with their messages, or take it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from stoker.spec.job import JOBS
from stoker.spec.meta import Key
from stoker.spec.names import API_VERSION, FINALIZER_IN_USE
from stoker_api.app import create_app
from stoker_api.deps import running_caches
from stoker_api.streams.sse import StreamSettings

from ...api.cluster import cluster_parts  # noqa: TID252
from .cases import CAROL, CASES, CHANGES, SUBMITTER, Case, Change
from .conftest import Admitting, restore


@pytest.mark.parametrize("case", CASES, ids=str)
def test_kubectl(admitting: Admitting, case: Case) -> None:
    args = ("create", "-f", "-", "--dry-run=server")
    said = admitting.refusal(case.who, *args, stdin=case.body("one"))
    assert case.kubectl in said if case.kubectl else not said
    if case.kubectl.startswith("spec."):
        assert f"denied request: {case.kubectl}" in said, "the sentence begins with the field"


def test_what_is_not_ours_and_what_is_not_there_are_one_answer(admitting: Admitting) -> None:
    by_name = {case.name: case for case in CASES}
    for what, there in (("queue", "gold"), ("runtime", "gilded")):
        said = []
        for name in (f"another's {what}", f"a {what} that is not there"):
            body = by_name[name].body("one")
            said.append(admitting.refusal("carol", "create", "-f", "-", "--dry-run=server", stdin=body))
        assert said[0].replace(there, "none") == said[1] != ""


def test_fields_that_are_not_checked_are_dropped(admitting: Admitting) -> None:
    """Without field validation the API server takes the job and prunes what it does not know."""
    for case in CASES:
        if case.name.startswith("a pod's field"):
            made = admitting.make("carol", case.body("one"), "--dry-run=server", "--validate=false")
            known = {"data": [{"name": "host", "claim": "x"}]} if "data" in case.spec else {}
            clean = admitting.make("carol", replace(case, spec=known).body("one"), "--dry-run=server")
            assert made["spec"] == clean["spec"], case.name


def test_the_submitter_is_who_asks(admitting: Admitting) -> None:
    if not admitting.stamps:
        pytest.skip("the cluster serves no MutatingAdmissionPolicy")
    annotated = {"annotations": {"example.com/note": "x"}}
    for metadata in ({}, annotated):
        made = admitting.make("carol", Case("", "", (0, ""), metadata=metadata).body("one"), "--dry-run=server")
        assert made["metadata"]["annotations"] == {**metadata.get("annotations", {}), SUBMITTER: CAROL}


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_kubectl_changes(admitting: Admitting, change: Change) -> None:
    with admitting.job("carol", Case("", "", (0, ""), {"queue": "capped", "priority": 5}).body("changing")):
        patch = ("patch", "tj", "changing", "-n", "alpha", "--type=merge", "--patch-file=/dev/stdin")
        said = admitting.refusal(change.who, *patch, stdin=change.patch)
        assert change.refused in said if change.refused else not said


def test_a_queue_being_deleted_takes_no_new_jobs_until_an_administrator_frees_it(admitting: Admitting) -> None:
    """No operator is here: what keeps the queue can be taken off by hand, as after an uninstall."""
    kubectl = admitting.bed.cluster.kubectl
    metadata = {"name": "leaving", "finalizers": [FINALIZER_IN_USE]}
    kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": API_VERSION, "kind": "Queue", "metadata": metadata}))
    kubectl("delete", "queue", "leaving", "--wait=false")
    body = Case("", "", (0, ""), {"queue": "leaving"}, who="admin").body("late")
    message = "spec.queue: queue leaving is being deleted and takes no new jobs; choose another queue"
    admitting.until(
        lambda: message in admitting.refusal("admin", "create", "-f", "-", "--dry-run=server", stdin=body), message
    )
    kubectl("patch", "queue", "leaving", "--type=merge", "-p", '{"metadata": {"finalizers": null}}')
    assert "leaving" not in kubectl("get", "queues", "-o", "name")


def test_a_tightened_queue_refuses_the_next_and_lets_the_last_be_changed(admitting: Admitting) -> None:
    def tighten(spec: str) -> None:
        admitting.bed.cluster.kubectl("patch", "queue", "bare", "--type=merge", "-p", spec)

    job = Case("", "", (0, ""), {"queue": "bare", "priority": 5}, who="admin")
    with admitting.job("admin", job.body("first")):
        tighten('{"spec": {"projects": ["beta"], "highestPriority": 1}}')
        again = ("create", "-f", "-", "--dry-run=server")
        admitting.until(lambda: admitting.refusal("admin", *again, stdin=job.body("next")), "the queue closed")
        patch = ("patch", "tj", "first", "-n", "alpha", "--type=merge", "-p")
        assert not admitting.refusal("admin", *patch, '{"spec": {"suspend": true}}')
        assert not admitting.refusal("admin", *patch, '{"spec": {"priority": 4}}')
        assert "above the highest" in admitting.refusal("admin", *patch, '{"spec": {"priority": 6}}')
    admitting.bed.cluster.kubectl("delete", "queue", "bare")
    restore(admitting)


def test_the_clusters_own_writes_pass(admitting: Admitting) -> None:
    """Garbage collection takes finalizers off; status is the operator's."""
    cluster = admitting.bed.cluster
    body = CASES[0].body("going")
    body["metadata"]["finalizers"] = ["example.com/wait"]
    with admitting.job("carol", body):
        collector = "--as=system:serviceaccount:kube-system:generic-garbage-collector"
        status = '{"status": {"phase": "Suspended"}}'
        cluster.kubectl("patch", "tj", "going", "-n", "alpha", "--subresource=status", "--type=merge", "-p", status)
        cluster.kubectl("delete", "tj", "going", "-n", "alpha", "--wait=false", "--cascade=foreground")
        patch = '{"metadata": {"finalizers": null}}'
        cluster.kubectl("patch", "tj", "going", "-n", "alpha", "--type=merge", "-p", patch, collector)
        cluster.kubectl("wait", "tj/going", "-n", "alpha", "--for=delete", "--timeout=20s")


class NoLogs:
    async def read(self, _pod_uid: str, _offset: int, _limit: int) -> None:
        return None

    async def wait_growth(self, _pod_uid: str, _offset: int, _timeout_s: float) -> None:
        return None


@contextlib.asynccontextmanager
async def the_api(admitting: Admitting, folder: Path) -> AsyncIterator[tuple[httpx.AsyncClient, Any, Any]]:
    """The real app as the account `stoker-api`, which may use no queue itself; the deps; the administrator's hands."""
    async with cluster_parts(admitting.bed, folder, NoLogs(), StreamSettings()) as (deps, hands):
        app = create_app(deps)
        async with running_caches(deps), app.state.services.running():
            transport = httpx.ASGITransport(app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
                yield client, deps, hands


async def test_api(admitting: Admitting, tmp_path: Path) -> None:
    whoami = admitting.kubectl("stoker-api", "auth", "whoami", "-o", "jsonpath={.status.userInfo.username}")
    assert whoami == "system:serviceaccount:alpha:stoker-api", "the name that the policies let pass"
    found, details = {}, {}
    async with the_api(admitting, tmp_path) as (client, deps, hands):
        for number, case in enumerate(CASES):
            headers = {"Authorization": f"Bearer {admitting.bed.tokens[case.who]}"}
            body = case.body(f"job-{number}")
            answer = await client.post("/v1/projects/alpha/jobs", headers=headers, json=body)
            found[case.name] = (answer.status_code, answer.json().get("code", ""))
            details[case.name] = answer.json().get("detail", "")
        assert found == {case.name: case.api for case in CASES}
        for what, there in (("queue", "gold"), ("runtime", "gilded")):
            assert details[f"another's {what}"].replace(there, "none") == details[f"a {what} that is not there"]
            closed, gone = (
                details[f"a {what} that is closed to the project"],
                details[f"a right to a {what} that is gone"],
            )
            assert closed.replace("theirs", "vanished").replace("closed", "vanished") == gone != ""
        first = await hands.store.get(JOBS, Key("alpha", "job-0"))
        assert first.metadata.annotations == {SUBMITTER: CAROL}

        # Who has lost the right to a queue may still stop what runs there, and start nothing new.
        lost = {"Authorization": f"Bearer {admitting.bed.tokens['lost']}"}
        for action in ("suspend", "resume", "cancel"):
            answer = await client.post(f"/v1/projects/alpha/jobs/job-1/{action}", headers=lost)
            assert answer.status_code == 202, answer.text
        answer = await client.post("/v1/projects/alpha/jobs", headers=lost, json=CASES[1].body("more"))
        assert (answer.status_code, answer.json()["code"]) == (403, "QueueForbidden")
        # Deleting it is no more than that, too; nor is there any way to a higher priority.
        raised = await client.patch("/v1/projects/alpha/jobs/job-0", headers=lost, json={"spec": {"priority": 99}})
        assert (raised.status_code, raised.json()["code"]) == (403, "QueueForbidden")
        assert (await client.delete("/v1/projects/alpha/jobs/job-1", headers=lost)).status_code == 204
        assert deps.jobs.get(Key("alpha", "job-1")) is None
    restore(admitting)
