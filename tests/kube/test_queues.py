"""Queues as an administrator sees them with kubectl: what their jobs use, and that one in use outlives its deletion."""

from __future__ import annotations

import json

import pytest

from stoker.controller import queues
from stoker.spec.job import Phase
from stoker.spec.meta import Key
from tests.support.testbed.kubelets import Play

from .operator_world import World


async def test_kubectl_shows_what_a_queue_uses_and_deletes_it_with_its_last_job(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "STATUS_EVERY_S", 0.2)
    name = f"{world.project}-q"
    queue = {"apiVersion": "stoker.dev/v1alpha1", "kind": "Queue", "metadata": {"name": name}}
    await world.kubectl("apply", "-f", "-", stdin=json.dumps(queue | {"spec": {"limit": {"gpus": 3}}}))
    await world.node("n", gpus=2)
    world.kubelet.script = lambda _pod: Play()
    await world.submit("runs", queue=name, gpusPerWorker=2, cpu="1500m")
    await world.phase("runs", Phase.RUNNING)
    await world.submit("waits", queue=name, gpusPerWorker=1)
    await world.kubectl("wait", f"queue/{name}", "--for=jsonpath={.status.pending.jobs}=1", "--timeout=20s")
    await world.kubectl("wait", f"queue/{name}", "--for=jsonpath={.status.running.gpus}=2", "--timeout=20s")
    head, row = (await world.kubectl("get", "queues", name)).splitlines()
    assert head.split() == ["NAME", "PARENT", "GPUS", "LIMIT", "GUARANTEE", "RUNNING", "PENDING", "VALID", "AGE"]
    assert row.split()[1:5] == ["2", "3", "1", "1"]
    wide = await world.kubectl("get", "queues", name, "-o", "wide")
    assert "1500m" in wide
    assert (await world.kubectl("get", "queue", "default", "-o", "jsonpath={.status.used.gpus}")) == "0"

    await world.kubectl("delete", "queue", name, "--wait=false")
    await world.kubectl("wait", f"queue/{name}", "--for=condition=Active=False", "--timeout=20s")
    assert "2 jobs that have not ended use it" in await world.kubectl("describe", "queue", name)
    await world.kubectl("delete", "tj", "runs", "waits", "-n", world.project, "--timeout=30s")
    await world.until(lambda: world.queues.get(Key("", name)) is None, "the queue gone with its last job")
