"""Proves exact resume: a training stopped at random moments gives the bits of one that never was.

Runs a reference, then the same job stopped `--stops` times by `--how` (sigterm: exit code 75 on all ranks at one step;
sigkill: one random rank dies, the others must end by themselves) and resumed each time. Every step that any attempt
trained is compared with the reference: the loss's bits and the hashes of weights, optimizer, scaler, generators and
cursor; at the end the exported weights. Augmentation and dropout are on. Run by hand and by `tests/trainer`.

    python -m tools.verify.resume --stops 20 --ranks 2 --how sigkill
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.spec.recipes import resolve

START_TIMEOUT_S = 120.0
STOPPED = 75


class Mismatch(Exception):
    """What was promised and did not hold."""


@dataclass
class Traced:
    """A job's trace and folder, as `compare` reads them."""

    folder: Path
    trace: Path

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.trace.read_text().splitlines()]

    def count(self) -> int:
        return self.trace.read_bytes().count(b"\n") if self.trace.exists() else 0


class Job(Traced):
    """One training's folders, and its ranks as processes."""

    def __init__(self, folder: Path, ranks: int, config: dict[str, Any]) -> None:
        super().__init__(folder, folder / "trace")
        self.ranks, self.config = ranks, config
        self.attempt = 0
        folder.mkdir(parents=True)

    def start(self) -> list[subprocess.Popen[bytes]]:
        self.attempt += 1
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        env = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "STOKER_TRAINER_CONFIG": json.dumps(self.config),
            "STOKER_ATTEMPT": str(self.attempt),
            "STOKER_CHECKPOINT_DIR": str(self.folder / "checkpoints"),
            "STOKER_OUTPUT_DIR": str(self.folder / "output"),
            "STOKER_PROGRESS_FILE": str(self.folder / "progress.json"),
            "STOKER_TRACE_FILE": str(self.trace),
            "WORLD_SIZE": str(self.ranks),
            "LOCAL_WORLD_SIZE": str(self.ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "CUDA_VISIBLE_DEVICES": "",
        }
        with (self.folder / "log").open("ab") as log:
            return [
                subprocess.Popen(
                    [sys.executable, "-m", "stoker_trainer"],
                    env={**env, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
                for rank in range(self.ranks)
            ]

    def wait_for_line(self, count: int, processes: list[subprocess.Popen[bytes]]) -> bool:
        """Whether the trace got `count` lines before the training ended."""
        give_up = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < give_up:
            if self.count() >= count:
                return True
            if all(p.poll() is not None for p in processes):
                return False
            time.sleep(0.005)
        raise Mismatch(f"no step {count} within {START_TIMEOUT_S:g} s; see {self.folder / 'log'}")

    def tail(self) -> str:
        return (self.folder / "log").read_text()[-2000:]


def ended(processes: list[subprocess.Popen[bytes]], within_s: float) -> tuple[list[int], float]:
    """Exit codes, and how long the last one took. Kills what is left, and says so."""
    begin = time.monotonic()
    try:
        codes = [p.wait(max(0.1, within_s - (time.monotonic() - begin))) for p in processes]
    except subprocess.TimeoutExpired:
        raise Mismatch(f"ranks were still there after {within_s:g} s") from None
    finally:
        for p in processes:
            if p.poll() is None:
                p.kill()
                p.wait()
    return codes, time.monotonic() - begin


def stop_once(job: Job, how: str, dice: random.Random, lines_apart: int, longest: list[float]) -> bool:
    """One attempt, stopped at a random moment; false if it was done before."""
    before = job.count()
    processes = job.start()
    if not job.wait_for_line(before + dice.randint(1, lines_apart), processes):
        codes, _ = ended(processes, 30)
        if any(codes):
            raise Mismatch(f"exit codes {codes} without a stop\n{job.tail()}")
        return False
    time.sleep(dice.random() * 0.05)
    victims = processes if how == "sigterm" else [dice.choice(processes)]
    for process in victims:
        process.send_signal(signal.SIGTERM if how == "sigterm" else signal.SIGKILL)
        time.sleep(dice.random() * 0.02)
    codes, took_s = ended(processes, 60)
    longest.append(took_s)
    if all(code == 0 for code in codes):
        return False
    for process, code in zip(processes, codes, strict=True):
        allowed = {STOPPED} if how == "sigterm" else {-signal.SIGKILL} if process in victims else {1}
        if code not in allowed:
            raise Mismatch(f"exit codes {codes} after {how}\n{job.tail()}")
    return True


def compare(reference: Traced, job: Traced) -> int:
    """Steps compared, repeats included.

    Raises: Mismatch at the first difference.
    """
    wanted: dict[tuple[int, bool], dict[str, Any]] = {(x["step"], "loss" in x): x for x in reference.lines()}
    seen = set()
    for line in job.lines():
        key = (line["step"], "loss" in line)
        if line != wanted.get(key):
            raise Mismatch(f"step {key[0]} differs:\n{line}\nreference:\n{wanted.get(key)}")
        seen.add(key)
    if seen != wanted.keys():
        raise Mismatch(f"never trained: {sorted(wanted.keys() - seen)[:5]}")
    import torch

    a, b = (torch.load(j.folder / "output" / "weights.pt", weights_only=True) for j in (reference, job))
    if a.keys() != b.keys() or not all(torch.equal(a[name], b[name]) for name in a):
        raise Mismatch("the exported weights differ")
    return len(job.lines())


def verify(folder: Path, stops: int, ranks: int, how: str, seed: int, config: dict[str, Any]) -> str:
    """What was proved, in one line.

    Raises: Mismatch.
    """
    dice = random.Random(seed)
    reference = Job(folder / "reference", ranks, config)
    codes, _ = ended(reference.start(), 300)
    if any(codes):
        raise Mismatch(f"the reference ended with {codes}\n{reference.tail()}")
    steps = len(reference.lines())
    job = Job(folder / "stopped", ranks, config)
    done, longest = 0, [0.0]
    # Steps between two stops: such that they spread over the run (a kill loses the steps since the last checkpoint).
    while done < stops and stop_once(job, how, dice, max(2, steps // (stops + 2)), longest):
        done += 1
    if done < stops:
        raise Mismatch(f"the job was done after {done} stops; make it longer (--epochs)")
    codes, _ = ended(job.start(), 300)
    if any(codes):
        raise Mismatch(f"the last attempt ended with {codes}\n{job.tail()}")
    trained = compare(reference, job)
    bad = sum(1 for p in (job.folder / "checkpoints").iterdir() if p.name.endswith(".bad"))
    return (
        f"{done} x {how}, {ranks} rank(s): {trained} trace lines (reference {steps}) equal in every bit; "
        f"longest end after a stop {max(longest):.2f} s; {bad} damaged checkpoints met"
    )


def default_config(epochs: int) -> dict[str, Any]:
    """Digits with augmentation and dropout; small batches, so there are many steps to stop at."""
    settings = {
        "data": "digits",
        "model": {"width": 8, "dropout": 0.25},
        "augment": {"shift": 1.0, "rotate": 10.0, "scale": 0.1},
        "optimizer": {"name": "adamw", "learningRate": 3e-3, "weightDecay": 0.02, "warmup": 0.1, "gradClip": 1.0},
        "labelSmoothing": 0.05,
        "batchSize": 61,
        "epochs": epochs,
        "evalEveryEpochs": 1,
        "seed": 7,
        "deterministic": True,
    }
    return {
        "recipe": "image-classification",
        "config": resolve("image-classification", settings),
        "precision": "fp32",
        "stop": {"maxSteps": None, "target": None, "patience": None},
        "checkpoint": {"everySeconds": 0.1, "keep": 2},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="Proves that a stopped and resumed training gives the same bits.")
    parser.add_argument("--stops", type=int, default=20)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--how", choices=["sigterm", "sigkill"], default="sigterm")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="stoker-verify-") as folder:
        try:
            outcome = verify(
                Path(folder),
                options.stops,
                options.ranks,
                options.how,
                options.seed,
                default_config(options.epochs),
            )
        except Mismatch as mismatch:
            print(f"NOT EQUAL: {mismatch}", file=sys.stderr)
            return 1
    print(outcome)
    return 0


if __name__ == "__main__":
    sys.exit(main())
