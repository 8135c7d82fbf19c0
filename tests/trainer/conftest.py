"""Shared means of the trainer's tests: complete configs, trainings inside this process, ranks as real processes."""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stoker.spec.recipes import resolve
from tests.support.fork_server import Forked, ForkServer

Rank = Forked | subprocess.Popen[bytes]
ROOT = Path(__file__).parents[2]
# Rank 0 is stopped as by its supervisor, at one step whatever the machine's pace.
STOP = """
import os, signal, stoker_trainer.trace as trace
real_stepped = trace.Trace.stepped
def stepped(self, training):
    real_stepped(self, training)
    if training.cursor.step == int(os.environ["STOP_AFTER"]):
        os.kill(os.getpid(), signal.SIGTERM)
trace.Trace.stepped = stepped
"""


STOPS = [2, pytest.param(50, marks=[pytest.mark.sweep, pytest.mark.timeout(900)])]
"""How often a training is interrupted: in every run of the tests, and in `make sweep`."""


def moments(stops: int, steps: int, *seed: object) -> list[int]:
    """The steps after which to interrupt: drawn at random, the same for the same `seed`, and at least four apart, since
    a stop is agreed on up to two steps later."""
    return sorted(random.Random(repr(seed)).sample(range(2, steps - 3, 4), stops))


@pytest.fixture
def make_config() -> Callable[..., dict[str, Any]]:
    """The trainer's config as the controller renders it; `settings` overrides the recipe's, `top` the rest."""

    def make(settings: dict[str, Any] | None = None, **top: Any) -> dict[str, Any]:
        return {
            "recipe": "image-classification",
            "config": resolve("image-classification", settings or {}),
            "precision": "fp32",
            "stop": {"maxSteps": None, "target": None, "patience": None},
            "checkpoint": {"everySeconds": 60.0, "keep": 2},
            **top,
        }

    return make


@pytest.fixture
def small() -> dict[str, Any]:
    """A recipe whose steps take milliseconds, with augmentation and dropout."""
    return {"model": {"width": 8}, "epochs": 2, "batchSize": 61, "seed": 3}


@pytest.fixture
def make_training(make_config: Callable[..., dict[str, Any]]) -> Callable[..., Any]:
    """A training of one rank on the CPU, inside this process, set up but not begun."""
    torch = pytest.importorskip("torch")
    from stoker_trainer.config import parse
    from stoker_trainer.distributed import Place, Ranks
    from stoker_trainer.training import set_up

    torch.set_num_threads(1)

    def make(settings: dict[str, Any] | None = None, **top: Any) -> Any:
        config = parse(json.dumps(make_config(settings, **top)))
        device = torch.device("cpu")
        return set_up(config, device, Ranks(Place(), device, config.config.deterministic))

    return make


class Run:
    """Ranks of one training as processes. `script` is Python that runs in each before the trainer's main (faults)."""

    def __init__(self, folder: Path, fork_server: ForkServer) -> None:
        self.folder = folder
        self._fork_server = fork_server
        self._logs: dict[Rank, Path] = {}

    def start(self, config: Any, ranks: int = 1, script: str = "", *, fresh: bool = False, **env: str) -> list[Rank]:
        """Forked where torch is imported already; `fresh` ones import it as the supervisor's do."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("STOKER_", "PET_"))}
        base = {
            **kept,
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "STOKER_TRAINER_CONFIG": config if isinstance(config, str) else json.dumps(config),
            "STOKER_CHECKPOINT_DIR": str(self.folder / "checkpoints"),
            "STOKER_OUTPUT_DIR": str(self.folder / "output"),
            "STOKER_PROGRESS_FILE": str(self.folder / "progress.json"),
            "STOKER_TRACE_FILE": str(self.folder / "trace"),
            "WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            **env,
        }
        return [
            self._start(base | {"RANK": str(rank), "LOCAL_RANK": str(rank)}, script, fresh) for rank in range(ranks)
        ]

    def _start(self, env: dict[str, str], script: str, fresh: bool) -> Rank:
        path = self.folder / f"log-{len(self._logs)}"
        with path.open("wb") as log:
            program = f"{script}\nfrom stoker_trainer.__main__ import run\nrun()"
            if fresh:
                command = [sys.executable, *(["-c", program] if script else ["-m", "stoker_trainer"])]
                rank: Rank = subprocess.Popen(command, env=env, stdout=log, stderr=log)
            else:
                rank = self._fork_server.fork(env, program, log.fileno(), log.fileno())
        self._logs[rank] = path
        return rank

    def finish(self, ranks: list[Rank], within_s: float = 100) -> tuple[list[int], list[str]]:
        """Exit codes and outputs."""
        return [rank.wait(within_s) for rank in ranks], [self._logs[rank].read_text() for rank in ranks]

    def end(self) -> None:
        for rank in self._logs:
            rank.kill()
            rank.wait()

    def run(self, config: Any, ranks: int = 1, script: str = "", **options: Any) -> tuple[list[int], list[str]]:
        return self.finish(self.start(config, ranks, script, **options))

    def whole_and_interrupted(
        self, config: Any, ranks: int, at: int | list[int], script: str = ""
    ) -> tuple[list[Any], list[Any]]:
        """The traces of a training in one go, and of one that stops itself after each step of `at` and goes on."""
        codes, outputs = self.run(config, ranks, script, STOKER_CHECKPOINT_DIR=str(self.folder / "whole"))
        assert codes == [0] * ranks, outputs
        whole = self.trace()
        (self.folder / "trace").unlink()
        for step in [at] if isinstance(at, int) else at:
            codes, outputs = self.run(config, ranks, script + STOP, STOP_AFTER=str(step))
            assert codes == [75] * ranks, outputs
        codes, outputs = self.run(config, ranks, script)
        assert codes == [0] * ranks and "resumed at step" in outputs[0], outputs
        return whole, self.trace()

    def trace(self) -> list[dict[str, Any]]:
        path = self.folder / "trace"
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def wait_for_steps(self, count: int, within_s: float = 100) -> None:
        give_up = time.monotonic() + within_s
        while len(self.trace()) < count:
            assert time.monotonic() < give_up, f"no {count} trace lines within {within_s} s"
            time.sleep(0.01)

    def progress(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "progress.json").read_text())
        return found


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer]:
    server = ForkServer("numpy", "prometheus_client", "torch.distributed")
    yield server
    server.close()


@pytest.fixture
def run(tmp_path: Path, fork_server: ForkServer) -> Iterator[Run]:
    made = Run(tmp_path, fork_server)
    yield made
    made.end()
