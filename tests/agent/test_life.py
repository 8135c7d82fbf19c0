"""A pod's life on the node: start, end, stop, deletion, refusal, loss."""

import asyncio
import json
import os
import resource
import signal
import sys
from datetime import UTC, datetime
from pathlib import Path

from stoker.controller.render import worker_env
from stoker.life.lifecycle import step
from stoker.life.step import Settings
from stoker.local.agent import life, spawning
from stoker.spec.job import Phase, Placed, TrainingJob, TrainingJobStatus
from stoker.spec.meta import Key, ObjectMeta
from stoker.spec.node import NODES
from stoker.spec.pod import NEVER_STARTED, REJECTED
from stoker.spec.worker import ExitRecord
from stoker.store.seam import Seam

UP = "import time; print('up', flush=True); time.sleep(100)"


def record_of(pod):
    return ExitRecord.model_validate_json(pod.terminated.message)


async def test_the_node_registers_itself(node):
    found = await node.store.get(NODES, Key("", "node-1"))
    assert found.status.ready and found.status.cpu_milli == 2000
    assert [(gpu.uuid, gpu.simulated) for gpu in found.status.gpus] == [("SIM-0", True), ("SIM-1", True)]


async def test_a_pod_runs_and_its_end_is_written(node):
    await node.create("fine", ["sh", "-c", "echo hello"])
    await node.create("bad", ["sh", "-c", "echo sorry; exit 3"])
    fine, bad = await node.ended("fine"), await node.ended("bad")
    assert (fine.status.phase, fine.terminated.reason, fine.terminated.exit_code) == ("Succeeded", "Completed", 0)
    assert (bad.status.phase, bad.terminated.reason, bad.terminated.exit_code) == ("Failed", "Error", 3)
    assert bad.status.message == "sorry" and record_of(bad).pod_uid == bad.uid
    assert fine.status.start_time and fine.terminated.started_at <= fine.terminated.finished_at
    assert (node.folder(fine) / "log").read_bytes() == b"hello\n"


async def test_running_is_written_while_it_runs(node):
    await node.create("long", [sys.executable, "-c", UP])
    pod = await node.running("long")
    assert pod.status.start_time is not None and pod.terminated is None


async def test_a_worker_gets_the_environment_of_the_contract(node, datadir, monkeypatch):
    script = "import json, os; print(json.dumps(dict(os.environ)))"
    await node.create("env", [sys.executable, "-c", script], gpus=1, MINE="x", STOKER_RANKS="1")
    pod = await node.ended("env")
    env = json.loads((node.folder(pod) / "log").read_bytes())
    assert env["STOKER_POD_UID"] == pod.uid and env["STOKER_POD_NAME"] == "env" and env["MINE"] == "x"
    assert env["STOKER_GPU_UUIDS"] in ("SIM-0", "SIM-1") and env["STOKER_SIMULATED_GPUS"] == "1"
    assert env["CUDA_VISIBLE_DEVICES"] == "" and env["NVIDIA_VISIBLE_DEVICES"] == "void"
    job = datadir.jobs / "uid-of-env"
    assert env["STOKER_CHECKPOINT_DIR"] == str(job / "checkpoints") and (job / "checkpoints").is_dir()
    assert env["STOKER_OUTPUT_DIR"] == str(job / "output") and (job / "output").is_dir()
    assert env["STOKER_PROGRESS_FILE"] == str(node.folder(pod) / "progress.json")
    assert env["OMP_NUM_THREADS"] == "1" and env["PYTHONUNBUFFERED"] == "1"
    assert env["PATH"].startswith(os.path.dirname(sys.executable) + ":")
    assert env["MASTER_ADDR"] == "127.0.0.1" and env["MASTER_PORT"] != env["STOKER_METRICS_PORT"]
    assert "PYTEST_CURRENT_TEST" not in env


async def test_workers_of_a_gang_share_the_rendezvous_port_and_nothing_else(node):
    for worker in range(2):
        await node.create(
            f"gang-{worker}",
            [
                "sh",
                "-c",
                "echo $MASTER_PORT $STOKER_METRICS_PORT $STOKER_GPU_UUIDS $TF_CONFIG; sleep 100",
            ],
            gpus=1,
            job="gang",
            worker=worker,
            workers=2,
        )
    pods = [await node.running(f"gang-{worker}") for worker in range(2)]
    said = [[], []]
    while not all(said):
        said = [(node.folder(pod) / "log").read_text().split() for pod in pods]
        await asyncio.sleep(0.01)
    assert said[0][0] == said[1][0]
    assert len({said[0][0], said[0][1], said[1][1]}) == 3
    assert {said[0][2], said[1][2]} == {"SIM-0", "SIM-1"}
    first, second = (json.loads("".join(words[3:])) for words in said)
    assert first["cluster"] == second["cluster"] and [first["task"]["index"], second["task"]["index"]] == [0, 1]
    peers = [address.rpartition(":") for address in first["cluster"]["worker"]]
    assert [host for host, _, _ in peers] == ["127.0.0.1"] * 2 and peers[0][2] == said[0][0]
    assert len({peers[1][2], said[0][0], said[0][1], said[1][1]}) == 4, "a port of its own"


async def test_what_cannot_be_leased_is_refused_with_numbers(node):
    await node.create("many", ["true"], gpus=3)
    pod = await node.ended("many")
    assert (pod.status.phase, pod.status.reason, pod.terminated) == ("Failed", REJECTED, None)
    assert pod.status.message == "asks for 3 GPUs, 2 free: 2 here"
    await node.create("other", ["true"], gpus=1, STOKER_GPU_MODELS="H200")
    pod = await node.ended("other")
    assert pod.status.message == "asks for 1 GPU like H200, 0 free: 2 here, 0 of that kind"
    assert not node.folder(pod).exists()


async def test_a_freed_gpu_can_be_leased_at_once(node):
    for i in range(10):
        await node.create(f"p{i}", ["true"], gpus=2)
        assert (await node.ended(f"p{i}")).status.phase == "Succeeded"


async def test_a_pod_waits_for_gpus_that_others_hold_and_takes_them_in_order(node):
    await node.create("held", ["sleep", "100"], gpus=2)
    await node.running("held")
    await node.create("next", ["sh", "-c", "echo $STOKER_GPU_UUIDS"], gpus=2)
    await node.create("gone", ["true"], gpus=1)
    await node.create("beside", ["true"])  # behind them in the agent's queue: they have had their turn
    await node.ended("beside")
    await node.delete("gone")
    await node.gone("gone")
    await node.delete("held")
    pod = await node.ended("next")
    assert pod.status.phase == "Succeeded"
    assert (node.folder(pod) / "log").read_bytes() == b"SIM-0,SIM-1\n"


async def test_a_deleted_pod_is_stopped_with_grace(node, finalizer):
    script = """
import signal, sys, os, time
def stop(*_): os.write(1, b'saved\\n'); sys.exit(75)
signal.signal(signal.SIGTERM, stop)
os.write(1, b'up\\n')
while True: time.sleep(1)
"""
    await node.create("long", [sys.executable, "-c", script], finalizers=finalizer)
    pod = await node.running("long")
    while b"up" not in (node.folder(pod) / "log").read_bytes():
        await asyncio.sleep(0.01)
    await node.delete("long")
    pod = await node.ended("long")
    assert record_of(pod).stop_requested and pod.terminated.exit_code == 75
    assert (node.folder(pod) / "log").read_bytes() == b"up\nsaved\n"
    await node.release("long")
    await node.gone("long")


async def test_what_exit_0_on_sigterm_means_is_the_jobs_word(node, finalizer):
    script = "trap 'echo saved; exit 0' TERM; echo up; while :; do sleep 0.05; done"
    await node.create("zero-1-0", ["sh", "-c", script], finalizers=finalizer)
    pod = await node.running("zero-1-0")
    while b"up" not in (node.folder(pod) / "log").read_bytes():
        await asyncio.sleep(0.01)
    await node.delete("zero-1-0")
    pod = await node.ended("zero-1-0")
    assert (pod.status.phase, pod.terminated.exit_code) == ("Succeeded", 0)

    def after(**stop):
        status = TrainingJobStatus(
            phase=Phase.STOPPING, intent="Suspend", attempt=1, placement=(Placed(worker=0, node="node-1"),)
        )
        metadata = ObjectMeta(name="zero", namespace="default", uid="u")
        job = TrainingJob(metadata=metadata, spec={"trainer": {"command": ["sh"]}, "stop": stop}, status=status)
        return step(job, [pod], datetime.now(UTC), Settings())

    assert after().status.phase is Phase.SUCCEEDED and after().before.warning
    assert after(exitZeroAfterSignal="Stopped").status.phase is Phase.SUSPENDED
    await node.release("zero-1-0")


async def test_a_command_that_reports_its_target_is_done(node, finalizer):
    """From the job's spec to its phase."""
    stop = {"target": {"metric": "my/score", "value": 0.9, "mode": "max"}}
    status = TrainingJobStatus(phase=Phase.RUNNING, attempt=1, placement=(Placed(worker=0, node="node-1"),))
    metadata = ObjectMeta(name="scored", namespace="default", uid="u")
    job = TrainingJob(metadata=metadata, spec={"trainer": {"command": ["sh"]}, "stop": stop}, status=status)
    shows = """echo '{"step": 7, "metrics": {"my/score": 0.95}}' >$STOKER_PROGRESS_FILE.new
mv $STOKER_PROGRESS_FILE.new $STOKER_PROGRESS_FILE; exec sleep 600"""
    wanted = {"STOKER_STOP_TARGET": worker_env(job, 0, "")["STOKER_STOP_TARGET"]}
    await node.create("scored-1-0", ["sh", "-c", shows], finalizers=finalizer, **wanted)
    pod = await node.ended("scored-1-0")
    assert (pod.status.phase, pod.terminated.exit_code) == ("Succeeded", 0)
    after = step(job, [pod], datetime.now(UTC), Settings()).status
    assert (after.phase, after.message) == (Phase.SUCCEEDED, "done: target reached: my/score 0.95 is at least 0.9")
    await node.release("scored-1-0")


async def test_a_pod_deleted_before_it_was_started_says_so(make_node, finalizer):
    node = await make_node()
    await node.create("elsewhere", ["true"], node="node-2", finalizers=finalizer)
    await node.delete("elsewhere")
    moved = await node.store.get(node.pods._kind, Key("default", "elsewhere"))
    spec = moved.spec.model_copy(update={"node_name": "node-1"})
    await node.store.update(node.pods._kind, moved.model_copy(update={"spec": spec}))
    pod = await node.ended("elsewhere")
    assert (pod.status.reason, pod.terminated) == (NEVER_STARTED, None)


async def test_a_worker_whose_pod_object_is_gone_is_stopped(node, processes, wait_until):
    await node.create("long", [sys.executable, "-c", UP])
    await node.running("long")
    await node.delete("long")
    await node.gone("long")
    await wait_until(lambda: not processes(), what="the worker to be stopped")
    await wait_until(lambda: node.agent.alive == 0)


async def test_a_killed_supervisor_is_a_lost_worker_and_nothing_of_it_is_left(node, processes):
    script = f"""
import subprocess, sys, os
subprocess.Popen([sys.executable, '-c', {UP!r}], start_new_session=True)
print('parent', flush=True)
import time; time.sleep(100)
"""
    await node.create("lost", [sys.executable, "-c", script], gpus=2)
    pod = await node.running("lost")
    while (node.folder(pod) / "log").read_bytes().count(b"\n") < 2:
        await asyncio.sleep(0.01)
    assert len(processes()) == 3
    started = json.loads((node.folder(pod) / "started.json").read_text())
    os.kill(started["pid"], signal.SIGKILL)
    pod = await node.ended("lost")
    assert processes() == []
    assert (pod.status.reason, pod.terminated.reason, pod.terminated.message) == ("WorkerLost", "WorkerLost", "")
    await node.create("next", ["true"], gpus=2)
    assert (await node.ended("next")).status.phase == "Succeeded"


async def test_folders_stay_while_pod_or_job_exist(node, wait_until):
    node.jobs.add("uid-of-kept")
    await node.create("kept", ["true"])
    await node.create("dropped", ["true"])
    await node.create("saved", ["sh", "-c", 'echo 1 > "$STOKER_CHECKPOINT_DIR/1"'])
    kept, dropped, _ = [await node.ended(name) for name in ("kept", "dropped", "saved")]
    await node.agent.sweep()
    assert node.folder(kept).exists() and node.folder(dropped).exists()
    for name in ("kept", "dropped", "saved"):
        await node.delete(name)
        await node.gone(name)
    await wait_until(lambda: len(node.agent._lives.ended) == 3)
    await node.agent.sweep()
    assert node.folder(kept).exists() and not node.folder(dropped).exists()
    jobs = {path.name: [file.name for file in path.rglob("1")] for path in node.datadir.jobs.iterdir()}
    assert jobs == {"uid-of-kept": [], "uid-of-saved": ["1"]}, "of what saved nothing no folder stays"
    node.jobs.clear()
    await node.agent.sweep()
    assert not node.folder(kept).exists()


async def test_a_worker_that_never_started_leaves_no_folder(node, wait_until):
    await node.stop()
    node.seam = Seam.parse("fail before agent.lock:*")
    await node.start()
    pod = await node.create("short", ["true"])
    await wait_until(lambda: (node.datadir.jobs / "uid-of-short").exists() and not node.agent._lives.workers)
    await node.delete("short")
    await node.gone("short")
    await wait_until(lambda: pod.uid in node.agent._lives.ended)
    await node.agent.sweep()
    assert not node.folder(pod).exists() and not list(node.datadir.jobs.iterdir())


async def test_a_pod_that_is_none_of_ours_is_refused(node, make_pod):
    await node.create("odd", ["true"], STOKER_ATTEMPT="first")
    pod = await node.ended("odd")
    assert pod.status.reason == REJECTED and "first" in pod.status.message


async def test_many_pods_leave_no_zombie(node, wait_until):
    def zombies():
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            children = file.read().split()
        return {pid for pid in children if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"}

    before = zombies()  # of other tests in this process
    for i in range(40):
        await node.create(f"p{i}", ["true"])
    for i in range(40):
        assert (await node.ended(f"p{i}")).status.phase == "Succeeded"
    await wait_until(lambda: node.agent.alive == 0 and zombies() <= before)


async def test_a_lack_of_descriptors_is_no_try_of_the_workers(node, caplog, monkeypatch, wait_until):
    monkeypatch.setattr(life, "TRIES", 2)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    os.close(lowest := os.dup(0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + 2, hard))
    try:
        await node.create("patient", ["true"])
        await wait_until(lambda: caplog.text.count("[Errno 24]") > 3)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert (await node.ended("patient")).status.phase == "Succeeded"


async def test_a_worker_has_the_soft_limit_that_the_agent_began_with(node, monkeypatch):
    monkeypatch.setattr(spawning, "OPEN_FILES", 987)
    await node.create("limits", ["sh", "-c", "ulimit -Sn"])
    assert (node.folder(await node.ended("limits")) / "log").read_bytes() == b"987\n"
