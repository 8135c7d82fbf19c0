"""A queued job as kubectl sees it: it has a phase, can be found by it, and waited for."""

from __future__ import annotations

from stoker.spec.job import Phase
from tests.support.testbed.kubelets import Play

from .operator_world import World


async def test_kubectl_finds_and_awaits_a_queued_job(world: World) -> None:
    await world.node("n", gpus=1)
    world.kubelet.script = lambda _pod: Play()
    await world.submit("runs", gpusPerWorker=1)
    await world.phase("runs", Phase.RUNNING)
    await world.submit("waits", gpusPerWorker=1)
    here = ("-n", world.project)
    await world.kubectl("wait", *here, "tj/waits", "--for=jsonpath={.status.phase}=Queued", "--timeout=20s")
    await world.kubectl("wait", *here, "tj/waits", "--for=condition=Scheduled=False", "--timeout=20s")
    found = await world.kubectl("get", "tj", *here, "--field-selector", "spec.queue=default,status.phase=Queued")
    assert [line.split()[:3] for line in found.splitlines()[1:]] == [["waits", "Queued", "NoCapacity"]]
    await world.kubectl("patch", "tj", "runs", *here, "--type=merge", "-p", '{"spec":{"suspend":true}}')
    await world.kubectl("wait", *here, "tj/waits", "--for=condition=Scheduled", "--timeout=20s")
    events = await world.kubectl("get", "events", *here, "--field-selector", "involvedObject.name=waits,reason=Queued")
    assert len(events.splitlines()) == 2, f"one event: {events}"
