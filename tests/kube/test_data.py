"""A job's data under a real API server and scheduler: what it waits for, and the pod that both of them take."""

from __future__ import annotations

import json

from stoker.spec.job import Phase
from stoker.spec.meta import Key
from stoker.spec.reasons import Code

from .operator_world import World


async def test_a_job_waits_for_a_name_and_a_pod_with_data_of_every_kind_runs(world: World) -> None:
    node = await world.node("n")
    runtime = f"offers-{world.project}"
    made: dict[str, object] = {"apiVersion": "stoker.dev/v1alpha1", "kind": "TrainingRuntime"}
    made |= {"metadata": {"name": runtime}, "spec": {"cache": {"hostPath": "/var/kept"}}}
    await world.kubectl("create", "-f", "-", stdin=json.dumps(made))
    url = {"name": "train", "url": "https://data.example/train.tar.gz", "unpack": True}
    await world.submit("a", runtime=runtime, data=[url, {"name": "sets", "path": "sets", "subPath": "v1"}])

    def waits() -> bool:
        job = world.jobs.get(Key(world.project, "a"))
        return job is not None and job.status.reason is Code.DATA_MISSING

    await world.until(waits, "what it waits for")
    admits = "pod-security.kubernetes.io/enforce=privileged"  # a path of the node's is nothing for *restricted*
    await world.kubectl("label", "namespace", world.project, admits, "--overwrite")
    offered = {"name": "sets", "source": {"hostPath": {"path": "/srv/sets"}}}
    patch = json.dumps({"spec": {"data": [offered]}})
    await world.kubectl("patch", "trainingruntime", runtime, "--type=merge", "-p", patch)
    assert [end.node for end in (await world.phase("a", Phase.SUCCEEDED)).status.attempts[0].workers] == [node]
    (pod,) = world.pods_of("a")
    spec = json.loads(await world.kubectl("get", "pod", "-n", world.project, pod.metadata.name, "-o", "json"))["spec"]
    assert [one["name"] for one in spec["initContainers"]] == ["stoker-supervisor", "stoker-data"]
    mounted = {one["mountPath"]: one for one in spec["containers"][0]["volumeMounts"]}
    assert mounted["/data/train"]["readOnly"] and mounted["/data/train"]["subPath"].startswith("data/url-")
    shown = next(one for one in spec["volumes"] if one["name"] == mounted["/data/train"]["name"])
    assert shown["hostPath"]["path"] == f"/var/kept/{world.project}", "of the cache only what is the project's"
    assert mounted["/data/sets"]["readOnly"] and mounted["/data/sets"]["subPath"] == "v1"
    await world.kubectl("delete", "trainingruntime", runtime)
    await world.kubectl(
        "label", "namespace", world.project, "pod-security.kubernetes.io/enforce=restricted", "--overwrite"
    )


async def test_a_pod_that_installs_into_the_cache_is_taken_by_the_api_server(world: World) -> None:
    await world.node("n")
    runtime = f"installs-{world.project}"
    made: dict[str, object] = {"apiVersion": "stoker.dev/v1alpha1", "kind": "TrainingRuntime"}
    made |= {"metadata": {"name": runtime}, "spec": {"cache": {"claim": "kept"}}}
    await world.kubectl("create", "-f", "-", stdin=json.dumps(made))
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "kept"}}
    claim["spec"] = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}, "volumeName": "v"}
    await world.kubectl("create", "-n", world.project, "-f", "-", stdin=json.dumps(claim))
    lists = {"command": ["python", "x.py"], "code": "sha256:" + "0" * 64, "requirements": "uv.lock"}
    await world.submit("a", runtime=runtime, trainer=lists)
    await world.until(lambda: world.pods_of("a"), "its pod")
    (pod,) = world.pods_of("a")
    spec = json.loads(await world.kubectl("get", "pod", "-n", world.project, pod.metadata.name, "-o", "json"))["spec"]
    mounted = {one["mountPath"]: one for one in spec["containers"][0]["volumeMounts"]}["/stoker/environments"]
    assert mounted["subPath"] == f"{world.project}/environments"
    env = {one["name"]: one.get("value") for one in spec["containers"][0]["env"]}
    assert (env["STOKER_REQUIREMENTS"], env["STOKER_ENVIRONMENTS_DIR"]) == ("uv.lock", "/stoker/environments")
    await world.kubectl("delete", "trainingruntime", runtime)


async def test_a_claim_that_is_not_there_is_named(world: World) -> None:
    await world.node("n")
    await world.submit("a", data=[{"name": "d", "claim": "missing"}])

    def named() -> bool:
        job = world.jobs.get(Key(world.project, "a"))
        return job is not None and 'persistentvolumeclaim "missing" not found' in job.status.message

    await world.until(named, "the claim's name")
