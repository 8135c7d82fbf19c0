"""Two ranks as real processes: they skip, shrink, stop and fail together, and none waits for a dead one."""

from __future__ import annotations

import json
import math
import signal
import time

import pytest

pytest.importorskip("torch")

pytestmark = [pytest.mark.torch, pytest.mark.slow]

# Runs in every rank before main: writes what the rank ended with, for comparison.
REMEMBER = """
import json, os, stoker_trainer.loop as loops, stoker_trainer.step as steps
from stoker_trainer.trace import digests
rank, real_run, real_backward, calls = os.environ["RANK"], loops.Loop.run, steps.backward, [0]
def run(self):
    real_run(self)
    t = self._t
    end = {**digests(t), "rng": None}  # each rank has its own generators
    end |= {"skipped": t.scaler.skipped(), "scale": t.scaler.scale.item(), "micro": t.micro_batch}
    open(os.environ["ENDS"] + rank, "w").write(json.dumps(end))
loops.Loop.run = run
"""

INFINITY_ON_ONE = (
    REMEMBER
    + """
import stoker_trainer.precision as precision
precision.GROWTH_STEPS = 10
def backward(training, rows, total):
    real_backward(training, rows, total)
    calls[0] += 1
    if rank == "1" and calls[0] in (3, 4, 5):
        training.flat.gradient[7] = float("inf")
steps.backward = backward
"""
)

MEMORY_SHORT_ON_ONE = (
    REMEMBER
    + """
import torch
def backward(training, rows, total):
    if rank == "1" and len(rows) > int(os.environ["FITS"]):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
    real_backward(training, rows, total)
steps.backward = backward
"""
)


def ends(tmp_path):
    return [json.loads((tmp_path / f"end{rank}").read_text()) for rank in (0, 1)]


def test_an_infinity_on_one_rank_makes_both_skip_and_the_scale_recovers(run, make_config, small, tmp_path):
    config = make_config(small | {"epochs": 1}, precision="fp16")
    codes, outputs = run.run(config, 2, INFINITY_ON_ONE, ENDS=str(tmp_path / "end"))
    assert codes == [0, 0], outputs
    first, second = ends(tmp_path)
    assert first == second
    assert first["skipped"] == 3
    # 2**16, three halvings, then 19 good steps: one doubling after ten.
    assert first["scale"] == 2**16 / 8 * 2
    steps = {line["step"]: line for line in run.trace() if "loss" in line}
    assert steps[2]["weights"] == steps[3]["weights"] == steps[5]["weights"] != steps[6]["weights"]
    assert steps[2]["optimizer"] == steps[5]["optimizer"]
    assert steps[2]["scaler"] != steps[3]["scaler"] != steps[4]["scaler"]
    assert run.progress()["summary"]["skippedSteps"] == 3


def test_memory_short_on_one_rank_shrinks_both(run, make_config, small, tmp_path):
    config = make_config(small | {"epochs": 1})
    codes, outputs = run.run(config, 2, MEMORY_SHORT_ON_ONE, FITS="8", ENDS=str(tmp_path / "end"))
    assert codes == [0, 0], outputs
    first, second = ends(tmp_path)
    assert first == second and first["micro"] == 8
    assert "the micro-batch is 8 samples" in outputs[0]
    assert run.progress()["summary"]["microBatch"] == 8
    # The same samples were trained: the losses are those of a run that had the memory.
    shrunk = [float.fromhex(line["loss"]) for line in run.trace() if "loss" in line]
    (tmp_path / "trace").unlink()
    codes, _ = run.run(config, 2, STOKER_CHECKPOINT_DIR=str(tmp_path / "other"))
    assert codes == [0, 0]
    wanted = [float.fromhex(line["loss"]) for line in run.trace() if "loss" in line]
    assert shrunk == pytest.approx(wanted, rel=1e-3)


def test_memory_that_never_suffices_ends_both_with_76(run, make_config, small, tmp_path):
    codes, outputs = run.run(make_config(small), 2, MEMORY_SHORT_ON_ONE, FITS="0", ENDS=str(tmp_path / "end"))
    assert codes == [76, 76]
    assert "out of memory with a micro-batch of one sample" in outputs[0]


def test_a_checkpoint_of_two_ranks_goes_on_with_one(run, make_config, small, tmp_path):
    config = make_config(small | {"epochs": 4})
    processes = run.start(config, 2)
    run.wait_for_steps(30)
    for process in processes:
        process.send_signal(signal.SIGTERM)
    codes, outputs = run.finish(processes)
    assert codes == [75, 75], outputs
    stopped_at = run.progress()["checkpoint"]["step"]
    codes, outputs = run.run(config, 1)
    assert codes == [0] and f"resumed at step {stopped_at}" in outputs[0]
    mixed = {line["step"]: line for line in run.trace() if "loss" in line}
    assert sorted(mixed) == list(range(1, 97))
    (tmp_path / "trace").unlink()
    codes, _ = run.run(config, 1, STOKER_CHECKPOINT_DIR=str(tmp_path / "other"))
    alone = {line["step"]: line for line in run.trace() if "loss" in line}
    for step, line in mixed.items():
        loss, wanted = float.fromhex(line["loss"]), float.fromhex(alone[step]["loss"])
        assert math.isclose(loss, wanted, rel_tol=1e-2), f"step {step}: {loss} and {wanted}"
        assert line["cursor"] == alone[step]["cursor"]


def test_a_dead_peer_ends_the_other_soon_and_says_so(run, make_config, small):
    processes = run.start(make_config(small | {"epochs": 2000}), 2)
    run.wait_for_steps(5)
    processes[1].send_signal(signal.SIGKILL)
    begin = time.monotonic()
    codes, outputs = run.finish(processes, within_s=60)
    assert codes == [1, -signal.SIGKILL]
    assert time.monotonic() - begin < 30  # the time-out of collectives is 120 s
    assert "error: another rank went away while" in outputs[0]


def test_a_stop_asked_of_one_rank_stops_both_at_one_step(run, make_config, small):
    processes = run.start(make_config(small | {"epochs": 2000}), 2)
    run.wait_for_steps(5)
    processes[1].send_signal(signal.SIGTERM)
    codes, outputs = run.finish(processes)
    assert codes == [75, 75]
    words = [o.splitlines()[-1].split(";")[0] for o in outputs]
    assert words[0] == words[1] and words[0].startswith("stopped on request after step")
    step = run.progress()["checkpoint"]["step"]
    assert f"the newest checkpoint is of step {step}" in outputs[0]


def test_a_peer_that_never_comes_ends_the_wait(run, make_config, small):
    processes = run.start(make_config(small), 1, WORLD_SIZE="2", STOKER_COLLECTIVE_TIMEOUT_SECONDS="2")
    codes, outputs = run.finish(processes)
    assert codes == [78]
    assert "another rank did not answer in time while waiting for the other ranks" in outputs[0]
