"""The operator against a real API server, scheduler and controller manager; kubelets are the tests' own."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress

import pytest

from stoker.controller import jobs, render_kube
from stoker.spec.job import JOBS, Phase
from stoker.spec.kube_pod import SERVICES
from stoker.spec.meta import Key
from stoker.spec.names import FINALIZER_OUTCOME
from stoker.spec.outcome import Category
from stoker.spec.reasons import Code
from stoker.store.port import Invalid, NotFound
from tests.support.testbed.kubelets import Play

from .operator_world import World


async def test_a_job_made_with_nothing_but_its_command_runs_and_succeeds(world: World) -> None:
    node = await world.node("n")
    await world.submit("a")
    job = await world.phase("a", Phase.SUCCEEDED)
    assert (job.status.attempt, job.status.placement) == (1, ())
    assert [w.node for w in job.status.attempts[0].workers] == [node]
    await world.until(
        lambda: all(FINALIZER_OUTCOME not in p.metadata.finalizers for p in world.pods_of("a")), "finalizers gone"
    )
    (pod,) = world.pods_of("a")
    manifest = json.loads(await world.kubectl("get", "pod", "-n", world.project, pod.metadata.name, "-o", "json"))
    assert manifest["spec"]["nodeName"] == node, "bound by the cluster's own scheduler, where we pinned it"
    assert [c.type for c in job.status.conditions if c.status == "False"] == ["CheckpointsPersistent"]


@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
async def test_a_job_too_large_for_one_more_status_delays_no_other(
    empty_world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """etcd takes 1.5 MiB: its variables leave less than that of a placement."""
    world, taken, refused = empty_world, 0, 32_768
    await world.node("n")
    while refused - taken > 200:
        count = (taken + refused) // 2
        env = {f"E{number}": "x" * 32_768 for number in range(47)} | {"E": "x" * count}
        with suppress(NotFound):
            await world.store.delete(JOBS, Key(world.project, "large"))
        try:
            await world.submit("large", env=env, cpu="1", memory="1Gi", gpusPerWorker=1)
            taken = count
        except Invalid:
            refused = count
    if count != taken:
        env["E"] = "x" * taken
        await world.submit("large", env=env, cpu="1", memory="1Gi", gpusPerWorker=1)
    world.start()
    for number in range(3):
        await world.submit(f"j{number}", gpusPerWorker=1)
        await world.phase(f"j{number}", Phase.SUCCEEDED)
    await world.until(lambda: "status of job" in caplog.text, "the status refused")  # 1.5 MiB each way take their time
    assert "pass failed" not in caplog.text
    assert world.job("large").status.placement == ()


@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
async def test_a_job_that_its_owner_makes_as_large_as_an_object_can_be_is_stopped_all_the_same(world: World) -> None:
    await world.node("n", gpus=1)
    world.kubelet.script = lambda pod: Play() if pod.metadata.name.startswith("large") else Play(code=0)
    env = {f"E{number}": "x" * 32_000 for number in range(40)}
    await world.submit("large", env=env, cpu="1", memory="1Gi", gpusPerWorker=1)
    await world.phase("large", Phase.RUNNING)

    async def fill(count: int, *, cancel: bool = False) -> None:
        job = await world.store.get(JOBS, Key(world.project, "large"))
        labels = {f"{number}.{'x' * 200}.example/x": "" for number in range(700)}
        meta = job.metadata.model_copy(update={"labels": labels, "annotations": {"x": "x" * count}})
        spec = job.spec.model_copy(update={"cancel": cancel})
        await world.store.update(JOBS, job.model_copy(update={"metadata": meta, "spec": spec}))

    taken, refused = 0, 200_000
    while refused - taken > 1:
        try:
            await fill((taken + refused) // 2)
            taken = (taken + refused) // 2
        except Invalid:
            refused = (taken + refused) // 2
    assert 0 < taken < 199_999
    await fill(taken - 20, cancel=True)  # it becomes its own field's manager
    await world.submit("next", gpusPerWorker=1)
    await world.phase("next", Phase.SUCCEEDED)
    assert world.job("large").status.phase is Phase.RUNNING, "the store took no other"
    await fill(0, cancel=True)
    await world.phase("large", Phase.CANCELLED)


async def test_a_gang_has_its_names_before_its_pods_and_all_go_with_the_job(world: World) -> None:
    nodes = {await world.node("n1", gpus=1), await world.node("n2", gpus=1)}
    world.kubelet.script = lambda _pod: Play()
    job = await world.submit("gang", workers=2, gpusPerWorker=1)
    await world.phase("gang", Phase.RUNNING)
    service = await world.store.get(SERVICES, Key(world.project, "gang"))
    assert service.spec.cluster_ip == "None" and service.spec.publish_not_ready_addresses
    assert service.metadata.owner_references[0].uid == job.uid
    assert {pod.spec.node_name for pod in world.pods_of("gang")} == nodes
    await world.kubectl("delete", "trainingjob", "-n", world.project, "gang", "--wait=true", "--timeout=30s")
    await world.until(lambda: not world.pods_of("gang"), "no pod left")
    await asyncio.wait_for(_service_gone(world), 30)


async def test_a_slice_is_bound_where_it_is_offered_and_the_next_job_waits_for_it(world: World) -> None:
    await world.node("whole")
    node = await world.node("sliced", gpus=0, **{"nvidia.com/mig-1g.10gb": 1})
    world.kubelet.script = lambda _pod: Play()
    for name in ("first", "second"):
        await world.submit(name, gpusPerWorker=1, gpu={"resource": "nvidia.com/mig-1g.10gb"})
        await world.phase(name, Phase.RUNNING if name == "first" else Phase.QUEUED)
    (pod,) = world.pods_of("first")
    assert pod.spec.node_name == node
    made = json.loads(await world.kubectl("get", "pod", "-n", world.project, pod.metadata.name, "-o", "json"))
    [asked] = [one["resources"] for one in made["spec"]["containers"]]
    assert asked["limits"]["nvidia.com/mig-1g.10gb"] == asked["requests"]["nvidia.com/mig-1g.10gb"] == "1"
    assert "nvidia.com/gpu" not in asked["limits"]
    assert (await world.phase("first", Phase.RUNNING)).status.gpu_type == "mig-1g.10gb"

    def waits_for_a_slice() -> bool:
        second = world.jobs.get(Key(world.project, "second"))
        return second is not None and "1 GPU offered as nvidia.com/mig-1g.10gb" in second.status.message

    await world.until(waits_for_a_slice, "what it waits for")


async def test_what_a_worker_gets_is_its_share_of_the_node_as_the_pod_asks_for_it(world: World) -> None:
    await world.node("n", gpus=4)
    world.kubelet.script = lambda _pod: Play()
    await world.submit("share", gpusPerWorker=1)
    job = await world.phase("share", Phase.RUNNING)
    resources = job.status.resources
    assert resources is not None and (resources.cpu, resources.memory) == ("1", "7360Mi"), "8 cores, 32Gi, less a tenth"
    assert (resources.cpu_from, resources.memory_from, resources.shared_memory) == ("GpuShare", "GpuShare", "3680Mi")
    (pod,) = world.pods_of("share")
    made = json.loads(await world.kubectl("get", "pod", "-n", world.project, pod.metadata.name, "-o", "json"))
    [asked] = [one["resources"] for one in made["spec"]["containers"]]
    assert (asked["requests"]["memory"], asked["limits"]["memory"]) == ("7360Mi", "7360Mi")
    assert asked["requests"]["cpu"] == "1" and "cpu" not in asked["limits"]


async def test_a_pod_that_the_kernel_ended_for_its_memory_says_what_to_ask_for(world: World) -> None:
    await world.node("n")
    world.kubelet.script = lambda _pod: Play(code=137, out_of_memory=True)
    await world.submit("greedy", memory="2Gi", retry={"rules": [{"categories": ["Killed"], "limit": 0}]})
    job = await world.phase("greedy", Phase.FAILED)
    assert job.status.attempts[-1].category is Category.KILLED
    says = "out of memory: asked 2Gi, reached; ask for more: stoker clone greedy --set spec.memory=4Gi"
    assert job.status.message == says


async def test_a_gangs_names_go_when_it_has_ended_and_come_back_when_it_is_run_again(world: World) -> None:
    await world.node("n", gpus=2)
    world.kubelet.script = lambda _pod: Play(code=1)
    job = await world.submit("gang", workers=2, gpusPerWorker=1, retry={"rules": []})
    await world.phase("gang", Phase.FAILED)
    await asyncio.wait_for(_service_gone(world), 10)
    assert world.pods_of("gang"), "the pod that failed stays, to be looked at"
    world.kubelet.script = lambda _pod: Play()
    again = json.dumps({"spec": {"retryGeneration": 1}})
    await world.kubectl("patch", "trainingjob", "-n", world.project, "gang", "--type=merge", "-p", again)
    await world.phase("gang", Phase.RUNNING)
    service = await world.store.get(SERVICES, Key(world.project, "gang"))
    assert service.metadata.owner_references[0].uid == job.uid
    cancel = json.dumps({"spec": {"cancel": True}})
    await world.kubectl("patch", "trainingjob", "-n", world.project, "gang", "--type=merge", "-p", cancel)
    await asyncio.wait_for(_service_gone(world), 20)


async def _service_gone(world: World) -> None:
    while True:
        try:
            await world.store.get(SERVICES, Key(world.project, "gang"))
        except NotFound:
            return
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("cascade", ["background", "foreground", "orphan"])
async def test_a_job_deleted_in_mid_run_leaves_nothing_however_it_is_deleted(world: World, cascade: str) -> None:
    await world.node("n")
    world.kubelet.script = lambda _pod: Play()
    first = await world.submit("a")
    await world.phase("a", Phase.RUNNING)
    await world.kubectl(
        "delete", "trainingjob", "-n", world.project, "a", f"--cascade={cascade}", "--timeout=40s", timeout_s=50
    )
    second = await world.submit("a")
    assert second.uid != first.uid
    await world.until(lambda: world.job("a").uid == second.uid, "the new one seen")
    await world.phase("a", Phase.RUNNING, timeout_s=40)
    assert [pod.metadata.owner_references[0].uid for pod in world.pods_of("a")] == [second.uid]
    assert world.job("a").status.attempt == 1


@pytest.mark.slow
async def test_a_namespace_goes_with_all_that_runs_in_it(world: World) -> None:
    await world.node("n")
    world.kubelet.script = lambda _pod: Play()
    await world.submit("a")
    await world.phase("a", Phase.RUNNING)
    await world.kubectl("delete", "namespace", world.project, "--timeout=50s", timeout_s=55)


async def test_an_ended_job_is_deleted_when_its_time_is_over(world: World) -> None:
    await world.node("n")
    await world.submit("a", ttlAfterFinished="2s")
    await world.phase("a", Phase.SUCCEEDED)
    await world.until(lambda: world.jobs.get(Key(world.project, "a")) is None, "the job gone")
    await world.until(lambda: not world.pods_of("a"), "its pods gone")


async def test_a_rejecting_kubelet_is_named_and_its_node_avoided(world: World) -> None:
    bad = await world.node("n1", gpus=1)
    message = ("UnexpectedAdmissionError", "Allocate failed due to device plugin, which is unexpected")
    world.kubelet.script = lambda pod: Play(rejected=message) if pod.spec.node_name == bad else Play(code=0)
    await world.submit("a", gpusPerWorker=1)
    await world.until(lambda: world.job("a").status.attempts, "the rejection")
    good = await world.node("n2", gpus=1)
    job = await world.phase("a", Phase.SUCCEEDED)
    assert [a.category for a in job.status.attempts] == [Category.REJECTED, None]
    assert "Allocate failed due to device plugin" in job.status.attempts[0].message
    assert job.status.attempts[1].workers[0].node == good


async def test_an_evicted_worker_saves_and_the_gang_comes_back_to_its_place(world: World) -> None:
    await world.node("n1", gpus=1)
    await world.node("n2", gpus=1)
    world.kubelet.script = lambda pod: Play() if "-1-" in pod.metadata.name else Play(code=0)
    created = await world.submit("gang", workers=2, gpusPerWorker=1)
    await world.phase("gang", Phase.RUNNING)
    await world.evict(world.pods_of("gang")[1])
    job = await world.phase("gang", Phase.SUCCEEDED)
    assert [a.category for a in job.status.attempts] == [Category.INTERRUPTED, None]
    assert "evicted from" in job.status.attempts[0].message
    assert job.status.queued_at == created.metadata.creation_timestamp


async def test_an_image_that_can_not_be_pulled_is_reported_and_given_up(world: World) -> None:
    await world.node("n")
    world.kubelet.script = lambda _pod: Play(image=("ErrImagePull", "no such manifest: team/typo:1"))
    await world.submit("a", retry={"rules": [{"categories": ["ImageUnavailable"], "limit": 1, "backoff": "100ms"}]})
    await world.until(lambda: world.job("a").status.reason is Code.IMAGE_UNAVAILABLE, "the reason")
    assert "no such manifest: team/typo:1" in world.job("a").status.message
    job = await world.phase("a", Phase.FAILED)
    assert [a.category for a in job.status.attempts] == [Category.IMAGE, Category.IMAGE]
    assert job.status.reason is Code.RETRIES_EXHAUSTED
    assert "no such manifest: team/typo:1" in job.status.message


async def test_a_volume_that_a_kubelet_can_not_mount_is_the_reason_with_its_message(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "MOUNTED_S", 0.2)
    await world.node("n")
    message = 'MountVolume.SetUp failed for volume "data-0" : hostPath type check failed: /sets is not a directory'
    world.kubelet.script = lambda _pod: Play(mount=message)
    await world.submit("a")
    await world.until(lambda: world.job("a").status.reason is Code.VOLUME_UNAVAILABLE, "the reason")
    assert message in world.job("a").status.message


async def test_a_gpu_taken_by_another_pod_is_named_and_the_gang_starts_elsewhere(world: World) -> None:
    stolen = await world.node("n1", gpus=1)
    await world.forge("thief", stolen, gpus=1)
    await world.until(lambda: Key(world.project, "thief") in [pod.key for pod in world.others.values()], "it is seen")
    await world.submit("a", gpusPerWorker=1)
    await world.until(lambda: world.job("a").status.reason is Code.NO_CAPACITY, "the reason")
    # At first it may be that the node was not ready a moment ago: a controller takes that taint off.
    await world.until(lambda: f"{world.project}/thief" in world.job("a").status.message, "who holds the GPU")
    elsewhere = await world.node("n2", gpus=1)
    job = await world.phase("a", Phase.SUCCEEDED)
    assert [worker.node for end in job.status.attempts for worker in end.workers] == [elsewhere]
    await world.kubectl("delete", "pod", "-n", world.project, "thief", "--force", "--grace-period=0")


async def test_what_the_clusters_scheduler_refuses_is_reported_and_the_gang_starts_elsewhere(world: World) -> None:
    full = await world.node("n1", gpus=1, pods=0)  # how many pods a node takes is nothing that we count
    await world.submit("a", gpusPerWorker=1)
    await world.until(lambda: world.job("a").status.attempts, "withdrawn")
    job = world.job("a")
    assert job.status.attempts[0].category is Category.START_TIMEOUT
    assert "Too many pods" in job.status.attempts[0].message, "the scheduler's own message"
    assert [blame.node for blame in job.status.blamed] == [full]
    elsewhere = await world.node("n2", gpus=1)
    job = await world.phase("a", Phase.SUCCEEDED)
    assert job.status.attempts[-1].workers[0].node == elsewhere


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod on a silent node is given up when its grace is over, which leaves the supervisor 45 s of its own."""
    monkeypatch.setattr(render_kube, "GRACE_MARGIN_S", 4)


@pytest.mark.slow
async def test_a_lost_node_is_given_up_and_the_job_goes_on_elsewhere(world: World, quick: None) -> None:
    for name in ("x", "y", "z"):
        await world.node(name, gpus=0)
    lost = await world.node("n1", gpus=1)
    world.kubelet.script = lambda pod: Play() if pod.spec.node_name == lost else Play(code=0)
    await world.submit("a", gpusPerWorker=1, checkpoint={"grace": "1s"})
    await world.phase("a", Phase.RUNNING)
    world.kubelet.silent.add(lost)
    await world.ready(lost, "Unknown")
    other = await world.node("n2", gpus=1)
    job = await world.phase("a", Phase.SUCCEEDED, timeout_s=60)
    assert [a.category for a in job.status.attempts] == [Category.NODE_LOST, None]
    assert job.status.attempts[1].workers[0].node == other
    (lingering,) = [pod for pod in world.pods_of("a") if pod.spec.node_name == lost]
    assert FINALIZER_OUTCOME not in lingering.metadata.finalizers


@pytest.mark.slow
async def test_a_node_that_is_removed_takes_no_job_with_it(world: World, quick: None) -> None:
    gone = await world.node("n1", gpus=1)
    world.kubelet.script = lambda pod: Play() if pod.spec.node_name == gone else Play(code=0)
    await world.submit("a", gpusPerWorker=1, checkpoint={"grace": "1s"})
    await world.phase("a", Phase.RUNNING)
    world.kubelet.silent.add(gone)
    await world.remove_node(gone)
    await world.node("n2", gpus=1)
    job = await world.phase("a", Phase.SUCCEEDED, timeout_s=60)
    assert len(job.status.attempts) == 2


async def test_a_pod_that_the_cluster_does_not_admit_is_reported_with_its_message(world: World) -> None:
    await world.node("n")
    await world.kubectl("create", "quota", "none", "-n", world.project, "--hard=pods=0")
    await world.submit("a")
    await world.until(lambda: world.job("a").status.attempts, "withdrawn")
    end = world.job("a").status.attempts[0]
    assert end.category is Category.START_TIMEOUT and "exceeded quota" in end.message
    assert not world.job("a").status.blamed
    await world.kubectl("delete", "resourcequota", "-n", world.project, "none")
    await world.phase("a", Phase.SUCCEEDED)


async def test_a_service_of_another_owner_is_left_alone_and_named(world: World) -> None:
    await world.node("n")
    await world.kubectl("create", "service", "clusterip", "gang", "-n", world.project, "--tcp=80")
    await world.submit("gang", workers=2)
    await world.until(lambda: world.job("gang").status.reason is Code.NAME_TAKEN, "the reason")
    assert "there is a Service gang already" in world.job("gang").status.message
    assert not world.pods_of("gang")
    await world.kubectl("delete", "service", "-n", world.project, "gang")
    job = await world.phase("gang", Phase.SUCCEEDED)
    assert (job.status.attempt, job.status.retries) == (1, {})
    said = await world.kubectl("get", "events", "-n", world.project, "--field-selector=reason=NameTaken", "-o", "name")
    assert len(said.split()) == 1


async def test_a_pod_of_another_owner_is_left_alone_and_named(world: World) -> None:
    await world.node("n")
    await world.forge("a-1-0")
    await world.submit("a")
    await world.until(lambda: world.job("a").status.reason is Code.NAME_TAKEN, "the reason")
    assert f"kubectl -n {world.project} delete pod a-1-0" in world.job("a").status.message
    await world.kubectl("delete", "pod", "-n", world.project, "a-1-0", "--force", "--grace-period=0")
    job = await world.phase("a", Phase.SUCCEEDED)
    assert (job.status.attempt, job.status.retries) == (1, {})


async def test_a_project_gets_its_own_default_runtime_and_waits_where_that_is_closed(world: World) -> None:
    node = await world.node("n")
    await world.kubectl("label", "node", node, "disk=fast")

    async def runtime(**spec: object) -> None:
        name = f"for-{world.project}"
        made = {"apiVersion": "stoker.dev/v1alpha1", "kind": "TrainingRuntime", "metadata": {"name": name}}
        made["spec"] = {"defaultFor": [world.project], **spec}
        await world.kubectl("apply", "-f", "-", stdin=json.dumps(made))

    def reported() -> dict[str, str]:
        return {found.type: found.message for found in world.job("a").status.conditions}

    await runtime(projects=["another"])
    try:
        await world.submit("a")
        why = f"runtime 'for-{world.project}' is not open to project '{world.project}'"
        said = {"Accepted": why, "Scheduled": why}
        await world.until(lambda: reported() == said, reported)
        assert not world.pods_of("a")
        world.kubelet.script = lambda _pod: Play()
        await runtime(nodeSelector={"disk": "fast"}, env={"NCCL_DEBUG": "WARN"})
        job = await world.phase("a", Phase.RUNNING)
        assert "Accepted" not in reported() and job.status.attempt == 1
        pod = await world.kubectl("get", "pod", "-n", world.project, "a-1-0", "-o", "json")
        assert json.loads(pod)["spec"]["nodeSelector"] == {"disk": "fast"} and "NCCL_DEBUG" in pod
        await runtime(projects=["another"])
        await world.submit("b")
        await world.until(lambda: bool(world.job("b").status.conditions), "the reason of b")
        assert world.job("a").status.phase is Phase.RUNNING, "what runs goes on"
    finally:
        await world.kubectl("delete", "trainingruntime", f"for-{world.project}")
