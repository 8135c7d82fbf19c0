"""A rank: its environment and its start, with an empty standard input and one pipe for what it prints.

Never waits for a rank's end; `supervisor` does.
"""

from __future__ import annotations

import os

from .folder import Launch
from .fork_exec import Command, start
from .light_stdlib import render_json

JOB_FOLDER = "job"
"""Beside this package as it is shipped: what a script may import (`stoker_job`)."""


def rank_env(launch: Launch, local_rank: int) -> dict[str, str]:
    """The whole environment of one rank: launch.json's and torchrun's variables.

    Source: torch.distributed.run, "Environment variables" (RANK … GROUP_WORLD_SIZE) and its PET_ prefix for options.
    """
    env = dict(launch.env)
    env.update(
        RANK=str(launch.worker * launch.ranks + local_rank),
        LOCAL_RANK=str(local_rank),
        WORLD_SIZE=str(launch.workers * launch.ranks),
        LOCAL_WORLD_SIZE=str(launch.ranks),
        GROUP_RANK=str(launch.worker),
        GROUP_WORLD_SIZE=str(launch.workers),
        MASTER_ADDR=launch.master_addr,
        MASTER_PORT=str(launch.master_port),
        PET_NNODES=str(launch.workers),
        PET_NODE_RANK=str(launch.worker),
        PET_NPROC_PER_NODE=str(max(1, launch.gpus)),
        PET_MASTER_ADDR=launch.master_addr,
        PET_MASTER_PORT=str(launch.master_port),
    )
    if launch.workers > 1 and not launch.own_trainer:
        _add_other_frameworks(env, launch)
    if not launch.own_trainer:
        ours = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), JOB_FOLDER)
        env["PYTHONPATH"] = env["PYTHONPATH"] + os.pathsep + ours if env.get("PYTHONPATH") else ours
    if launch.stall_s > 0:
        env.setdefault("PYTHONFAULTHANDLER", "1")  # Python then answers SIGABRT with the stacks of all its threads
    return env


def _add_other_frameworks(env: dict[str, str], launch: Launch) -> None:
    """What JAX and TensorFlow want of a gang, as far as the job does not say it itself.

    Source: jax.distributed.initialize (reads JAX_COORDINATOR_ADDRESS; the two numbers are passed to it, under the names
    that Kubeflow's trainer gives them); tf.distribute, "TF_CONFIG".
    """
    env.setdefault("JAX_COORDINATOR_ADDRESS", "%s:%d" % (launch.master_addr, launch.master_port))
    env.setdefault("JAX_NUM_PROCESSES", env["WORLD_SIZE"])
    env.setdefault("JAX_PROCESS_ID", env["RANK"])
    first, _, domain = launch.master_addr.partition(".")
    pod, _, number = first.rpartition("-")
    workers = ["%s:%d" % (launch.master_addr, port) for port in launch.peer_ports]
    if domain and pod and number == "0":  # each worker has a name of its own, made like the first one's
        workers = ["%s-%d.%s:%d" % (pod, worker, domain, launch.master_port) for worker in range(launch.workers)]
    if workers:
        task = {"type": "worker", "index": launch.worker}
        env.setdefault("TF_CONFIG", render_json({"cluster": {"worker": workers}, "task": task}))


def start_rank(launch: Launch, local_rank: int, output_fd: int) -> int:
    """The pid of the rank, which runs the command already. Raises: CannotStart."""
    null_fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    try:
        command = Command(launch.argv, rank_env(launch, local_rank), launch.working_dir)
        return start(command, (null_fd, output_fd, output_fd))
    finally:
        os.close(null_fd)
