"""A gang trains in containers on two real nodes; its log and progress stream over REST."""

from __future__ import annotations

import json
import re
import shlex
import time
from collections.abc import Callable, Iterator

import pytest

from stoker.cli.manifest import read_manifests
from stoker.client.updates import JobChanged
from stoker.spec.job import Phase
from stoker.spec.outcome import Category
from stoker.spec.quantity import memory_bytes
from stoker.spec.worker_size import SizeFrom
from tests.support.cluster_stack import RACK, ROOT, Project, Stack
from tests.support.harness import until

pytestmark = pytest.mark.e2e
Figure = Callable[[str, object], None]
MEMORY_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def test_a_gang_of_two_trains_on_two_nodes(project: Project, figure: Figure) -> None:
    began = time.monotonic()
    project.client.submit(
        {
            "workers": 2,
            "gpusPerWorker": 2,
            "cpu": "500m",
            "memory": "1500Mi",
            "trainer": {
                "recipe": "image-classification",
                "config": {"data": "digits", "epochs": 4},
            },
        },
        name="digits",
    )
    progressed = []
    for update in project.client.events("digits"):
        if isinstance(update, JobChanged):
            progress = update.job.status.progress
            if progress is not None and update.job.status.phase is Phase.RUNNING:
                progressed.append(progress.step)
    job = project.job("digits")
    took_s = time.monotonic() - began
    assert job.status.phase is Phase.SUCCEEDED, job.status
    assert progressed and progressed == sorted(progressed)
    ended = job.status.attempts[-1]
    assert {worker.node for worker in ended.workers} == {"n0", "n1"}
    assert "[rank 0] done: step 92" in project.log("digits", 1, worker=0)
    pods = project.pods("digits")
    for pod in pods:  # the gang met by DNS name, not by address
        env = {variable["name"]: variable.get("value") for variable in pod["spec"]["containers"][0]["env"]}
        assert env["MASTER_ADDR"] == f"digits-1-0.digits.{project.name}.svc"
    accuracy = ended.progress.summary.get("accuracy") if ended.progress else None
    figure("gang of 2 workers × 2 ranks on two nodes, digits, 4 epochs: submit to Succeeded", f"{took_s:.1f} s")
    figure("its test accuracy, progress reports seen over REST while it ran", f"{accuracy}, {len(progressed)}")


@pytest.mark.parametrize("recipe", ["bert", "gpt", "lstm", "resnet", "seq2seq"])
def test_a_recipe_learns_from_its_data(project: Project, figure: Figure, recipe: str) -> None:
    """Its example, in the image, until the test metric that it asks for; digits are the gang's above."""
    (manifest,) = read_manifests(str(ROOT / "examples" / f"{recipe}.yaml"))
    project.client.submit(manifest.body["spec"], name=recipe)
    job = project.until_phase(recipe, Phase.SUCCEEDED, timeout_s=200)
    progress = job.status.progress
    assert progress is not None and progress.summary["timeToTargetS"] is not None, job.status
    found = {name: progress.summary[name] for name in ("metrics", "timeToTargetS")}
    figure(f"examples/{recipe}.yaml in the image: step {progress.step}", found)


@pytest.fixture
def racks(stack: Stack) -> Iterator[None]:
    """Each node in a rack of its own."""
    for node in stack.bed.nodes:
        stack.bed.kubectl("label", "node", node, f"{RACK}={node}")
    yield
    for node in stack.bed.nodes:
        stack.bed.kubectl("label", "node", node, f"{RACK}-")


def test_a_gang_that_wants_one_rack_waits_until_one_has_room(stack: Stack, project: Project, racks: None) -> None:
    for node in stack.bed.nodes:
        with stack.cordoned(node):
            project.count(f"not-{node}", steps=10_000, gpusPerWorker=1)
            project.until_phase(f"not-{node}", Phase.RUNNING)
    project.count("close", steps=20, workers=2, gpusPerWorker=1, topology={"required": RACK})
    waiting = until(lambda: project.job("close").status.message, "its reason", timeout_s=20)
    assert RACK in waiting, waiting  # two GPUs are free, one in each rack
    project.client.cancel("not-n0")
    job = project.until_phase("close", Phase.SUCCEEDED)
    assert {worker.node for worker in job.status.attempts[-1].workers} == {"n1"}


def test_a_job_begins_with_what_another_has_kept(project: Project) -> None:
    """Its weights, and its checkpoint with more epochs; from the claim that both use, and from one that the new job has
    not."""

    def train(name: str, epochs: int, checkpoint: dict[str, object], **trainer: object) -> str:
        config = {"data": "digits", "epochs": epochs}
        spec = {
            "memory": "1500Mi",
            "trainer": {"recipe": "image-classification", "config": config, **trainer},
            "checkpoint": checkpoint,
        }
        project.client.submit(spec, name=name)
        project.until_phase(name, Phase.SUCCEEDED)
        return project.log(name, 1, worker=0)

    kept = {"claim": "checkpoints"}
    train("base", 1, kept)
    train("tuned", 1, {}, initFrom={"job": "base", "weights": "best"})
    for name, where in (("longer", kept), ("elsewhere", {})):
        log = train(name, 2, {**where, "from": {"job": "base"}})
        assert "resumed at step 23" in log and "done: step 46" in log, log


def test_a_worker_with_a_gpu_gets_its_share_of_a_real_node(project: Project) -> None:
    """Of cores and memory, less a tenth: as `run` says it, as the pod asks for it, as the kernel limits it."""
    nodes = json.loads(project.stack.bed.kubectl("get", "nodes", "-o", "json"))["items"]
    shares = [one["status"]["allocatable"] for one in nodes]
    at_most = min(memory_bytes(one["memory"]) / int(one["nvidia.com/gpu"]) for one in shares)
    script = f"import os; print(next(open(path).read() for path in {MEMORY_LIMITS} if os.path.exists(path)))"
    image = project.stack.images["foreign-python"]
    ran = project.stoker(
        "run", "--gpus", "1", "--image", image, "--no-code", "--name", "sized", "--", "python3", "-c", script
    )
    found = project.job("sized").status.resources
    assert found is not None and (found.cpu_from, found.memory_from) == (SizeFrom.GPU_SHARE, SizeFrom.GPU_SHARE)
    assert 0.7 * at_most < memory_bytes(found.memory) <= 0.9 * at_most, (found, at_most)
    assert f"{found.cpu} core" in ran.stderr and "share" in ran.stderr, ran.stderr
    [pod] = project.pods("sized")
    asked = pod["spec"]["containers"][0]["resources"]
    assert (asked["requests"]["cpu"], asked["limits"]["memory"]) == (found.cpu, found.memory)
    assert int(ran.stdout) == memory_bytes(found.memory)


def test_a_kill_for_memory_says_what_to_ask_for_and_that_is_enough(project: Project, figure: Figure) -> None:
    """Killed by the kernel of a real node; then its own advice is followed."""
    image = project.stack.images["foreign-python"]
    project.client.submit(
        {
            "cpu": "100m",
            "memory": "64Mi",
            "retry": {"rules": [{"categories": ["Killed"], "limit": 0}]},
            "trainer": {"image": image, "command": ["python3", "-c", "held = bytearray(80 << 20); print('had it')"]},
        },
        name="greedy",
    )
    job = project.until_phase("greedy", Phase.FAILED)
    assert job.status.attempts[-1].category is Category.KILLED
    said = re.search(
        r"out of memory: asked 64Mi, (peak 6\dMi|reached); ask for more: stoker (clone greedy --set \S+)",
        job.status.message,
    )
    assert said, job.status.message
    figure("a worker of 64Mi that takes 80: what its job says", said[0])
    project.stoker(*shlex.split(said[2]), "--name", "enough")
    project.until_phase("enough", Phase.SUCCEEDED)
    assert project.log("enough", 1) == "had it\n"


def test_a_job_is_run_again_by_the_command(project: Project) -> None:
    """As it is, from what `get` prints; with a change, from its checkpoint."""
    train = {"recipe": "image-classification", "config": {"data": "digits", "epochs": 1}}
    spec = {"memory": "1500Mi", "trainer": train, "checkpoint": {"claim": "checkpoints"}}
    project.client.submit(spec, name="base")
    project.until_phase("base", Phase.SUCCEEDED)
    shown = project.stoker("get", "base", "-o", "yaml").stdout
    project.stoker("submit", "-f", "-", "--name", "same", stdin=shown)
    change = ("--from-checkpoint", "--set", "spec.trainer.config.epochs=2")
    project.stoker("clone", "base", "--name", "longer", *change)
    for name, line in (("same", "done: step 23"), ("longer", "resumed at step 23")):
        project.until_phase(name, Phase.SUCCEEDED)
        assert line in project.log(name, 1, worker=0)
    assert "Clone it instead" in project.stoker("retry", "base", check=False).stderr
    assert project.stoker("ls", "--phase", "Succeeded", "--text", "longer", "-o", "name").stdout.split() == ["longer"]
