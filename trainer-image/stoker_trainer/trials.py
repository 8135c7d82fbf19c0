"""Owns trials of a micro-batch: each is a fresh process that runs a few steps of it and reports what they took. Called
by `tune`.

Fresh, since what a trial leaves in an allocator changes the next one's answer. Importing torch costs seconds, so one
server (`python -m stoker_trainer.trials`) imports it and forks every trial before anything of CUDA begins. A trial may
have nine tenths of the memory that is free: of the GPU, or on the CPU of the process's RLIMIT_DATA where one is set.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, NamedTuple

HEADROOM = 0.9
TRIAL_S = 120.0
_LEAST_S, _MOST_STEPS = 0.3, 20


class Speed(NamedTuple):
    """What one rank took, in seconds."""

    of_pass: float
    """Making one micro-batch, forward and backward."""
    of_update: float
    total_steps: int
    """Of the whole training."""


class Server:
    """Runs trials one after the other, in this rank's environment."""

    def __init__(self, config: str, env: Mapping[str, str]) -> None:
        """`config`: JSON, complete."""
        self._config = config
        self.cpu_s = 0.0
        """What the server and its trials have taken."""
        alone = {**env, "RANK": "0", "WORLD_SIZE": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "stoker_trainer.trials"],
            env=alone,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()  # a trial under way sees its server's end
        self._process.communicate()

    def run(self, micro: int) -> Speed | None:
        """None: so many samples do not fit.

        Raises: TrialFailed for any other fault.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        line = b""
        try:
            self._process.stdin.write(json.dumps({"config": self._config, "micro": micro}).encode() + b"\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline() if _readable(self._process.stdout, 2 * TRIAL_S) else b""
        except OSError:
            pass
        if not line:
            raise TrialFailed("the process that runs the trials has ended or does not answer")
        answer = json.loads(line)
        self.cpu_s = answer["cpuS"]
        if "error" in answer:
            raise TrialFailed(answer["error"])
        return Speed(*answer["speed"]) if answer["speed"] else None


class TrialFailed(Exception):
    """A trial ended by something else than a lack of memory."""


def _readable(file: Any, within_s: float) -> bool:
    return bool(select.select([file], [], [], within_s)[0])


# -- the server's side


def serve() -> None:
    import torch  # what every trial would import

    assert torch
    answers = os.dup(1)
    os.dup2(2, 1)  # what a library prints is no answer
    while line := sys.stdin.buffer.readline():
        order = json.loads(line)
        answer = _forked(order["config"], order["micro"]) | {"cpuS": sum(os.times()[:4])}
        os.write(answers, json.dumps(answer).encode() + b"\n")


def _forked(config: str, micro: int) -> dict[str, Any]:
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read_end)
        signal.alarm(int(TRIAL_S))
        os.write(write_end, json.dumps(_answer(config, micro)).encode())
        os._exit(0)
    os.close(write_end)
    ready = select.select([read_end, sys.stdin.buffer], [], [])[0]
    if read_end not in ready:  # the rank that asked is gone
        os.kill(pid, signal.SIGKILL)
    with os.fdopen(read_end, "rb") as answer:
        data = answer.read()
    _, status = os.waitpid(pid, 0)
    if data:
        return dict(json.loads(data))
    # Killed: a machine without memory ends a process so. By the alarm: too slow to be of use.
    return {"speed": None} if os.WIFSIGNALED(status) else {"error": f"a trial ended with exit code {status >> 8}"}


def _answer(config: str, micro: int) -> dict[str, Any]:
    from .errors import OutOfMemory, out_of_memory

    try:
        return {"speed": measured(config, micro, os.environ)}
    except Exception as error:  # noqa: BLE001  (the edge: the rank that asked reports it)
        full = isinstance(error, OutOfMemory) or out_of_memory(error)
        return {"speed": None} if full else {"error": f"{type(error).__name__}: {error}"[:1000]}


def measured(text: str, micro: int, env: Mapping[str, str]) -> Speed | None:
    """Runs steps of one micro-batch in this process, with the memory that a training may take; None: it does not fit.

    Blocks run as they are, not compiled: that would cost a trial minutes, and takes no more memory. Nor is a step
    recorded, so that its parts can be timed.
    Raises: as a training does, an out-of-memory error among it.
    """
    from dataclasses import replace

    import torch

    from . import config as configs
    from .distributed import Place, Ranks, Vote
    from .measure import Clock
    from .step import train_step
    from .training import device_for, prepare_torch, set_up

    config = configs.parse(text)
    place = Place(0, int(env.get("LOCAL_RANK") or 0), 1)
    device = device_for(env, place)
    whole, one = config.config, replace(config.config, batch_size=micro, compile="off", cuda_graph="off")
    config = replace(config, config=one)
    prepare_torch(env, config, device)
    _limit_memory(device)
    training = set_up(config, device, Ranks(place, device, whole.deterministic))
    rows = torch.arange(micro, device=device) % training.train_rows
    passes: list[float] = []
    updates: list[float] = []
    spent = 0.0
    # On the CPU by its own time: what else runs on the machine is no part of it.
    training.clock = Clock(device, lambda: time.process_time() / torch.get_num_threads())
    before = training.clock.read()
    while len(passes) < 4 or (spent < _LEAST_S and len(passes) < _MOST_STEPS):
        train_step(training, rows, Vote())
        now = training.clock.read()
        took = {name: now[name] - before[name] for name in now}
        before, spent = now, spent + sum(took.values())
        passes.append(took["data"] + took["forward_backward"])
        updates.append(took["update"])
        if training.micro_batch < micro:
            return None
    if device.type == "cuda" and torch.cuda.memory_stats(device)["num_alloc_retries"]:
        return None  # it fits by giving memory back and asking again, each step
    steps = whole.total_steps(training.train_rows)
    return Speed(min(passes[1:]), min(updates[1:]), min(steps, config.stop.max_steps or steps))


def _limit_memory(device: Any) -> None:
    if device.type == "cuda":
        import torch

        free, total = torch.cuda.mem_get_info(device)
        torch.cuda.set_per_process_memory_fraction(HEADROOM * free / total, device)
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if soft != resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_DATA, (int(HEADROOM * soft), hard))


if __name__ == "__main__":
    serve()
