"""`stoker_job.Stop`: asked by SIGTERM, a script saves and leaves; of several ranks all at the same step."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.harness import free_port, until

ALONE = """
import sys
from stoker_job import STOPPED, Stop
stop = Stop()
print("ready", flush=True)
while not stop.asked():
    pass
sys.exit(STOPPED)
"""
RANKS = """
import os, pathlib, sys, time
import torch.distributed as dist
from stoker_job import STOPPED, Stop
stop = Stop()
dist.init_process_group("gloo")
rank, step = os.environ["RANK"], 0
while not stop.asked():
    step += 1
    if rank == "0":
        time.sleep(0.003)  # the slower one
    if step == 5:
        pathlib.Path("ready." + rank).touch()
pathlib.Path("steps." + rank).write_text(str(step))
sys.exit(STOPPED)
"""


def test_alone_it_is_asked_by_its_signal() -> None:
    with subprocess.Popen([sys.executable, "-c", ALONE], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 75


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("asked", [(1,), *(pytest.param(ranks, marks=pytest.mark.sweep) for ranks in ((0,), (0, 1)))])
def test_ranks_stop_at_the_same_step_whoever_is_asked(tmp_path: Path, asked: tuple[int, ...]) -> None:
    pytest.importorskip("torch")
    env = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    env["OMP_NUM_THREADS"] = "1"
    ranks = [
        subprocess.Popen([sys.executable, "-c", RANKS], env={**env, "RANK": str(rank)}, cwd=tmp_path)
        for rank in range(2)
    ]
    try:
        until(lambda: all((tmp_path / f"ready.{rank}").exists() for rank in range(2)), "both train", 90)
        for rank in asked:
            ranks[rank].send_signal(signal.SIGTERM)
        assert [rank.wait(60) for rank in ranks] == [75, 75]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    steps = {(tmp_path / f"steps.{rank}").read_text() for rank in range(2)}
    assert len(steps) == 1, steps
