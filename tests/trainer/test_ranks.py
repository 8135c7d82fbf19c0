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

MEMORY_SHORT_IN = """
import os, torch, stoker_trainer.{module} as module
real, calls = {target}, [0]
def short(*args):
    calls[0] += 1
    if os.environ["RANK"] == "{rank}" and calls[0] == 3:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
    return real(*args)
{target} = short
"""

# The small net in many buckets, as a large one is.
MANY_BUCKETS = """
import stoker_trainer.exchange as exchange
exchange.TINY_BYTES, exchange.BUCKET_BYTES = 0, 2000
real_init = exchange.Exchange.__init__
def made(self, flat, ranks):
    real_init(self, flat, ranks)
    assert len(self.buckets) > 3
exchange.Exchange.__init__ = made
"""


def ends(tmp_path):
    return [json.loads((tmp_path / f"end{rank}").read_text()) for rank in (0, 1)]


def test_an_infinity_on_one_rank_makes_both_skip_and_the_scale_recovers(run, make_config, small, tmp_path):
    config = make_config(small | {"epochs": 1, "lossScaleGrowthSteps": 10}, precision="fp16")
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


@pytest.mark.parametrize("rank", [0, 1])
def test_memory_short_in_the_exchange_shrinks_both_and_keeps_the_samples(run, make_config, small, tmp_path, rank):
    config = make_config(small | {"epochs": 1, "augment": {"rotate": 0, "shift": 0, "scale": 0}})
    script = MANY_BUCKETS + MEMORY_SHORT_IN.format(module="exchange", target="module.Exchange._launch", rank=rank)
    codes, outputs = run.run(config, 2, script)
    assert codes == [0, 0], outputs
    assert run.progress()["summary"]["microBatch"] == 16
    shrunk = [float.fromhex(line["loss"]) for line in run.trace() if "loss" in line]
    (tmp_path / "trace").unlink()
    codes, _ = run.run(config, 2, STOKER_CHECKPOINT_DIR=str(tmp_path / "other"))
    wanted = [float.fromhex(line["loss"]) for line in run.trace() if "loss" in line]
    assert codes == [0, 0] and shrunk == pytest.approx(wanted, rel=1e-3)


@pytest.mark.parametrize(
    ("module", "target"),
    [("optim", "module.AdamW.step"), ("counter", "module.order"), ("save", "module.pack")],
)
def test_memory_short_where_no_smaller_batch_helps_ends_that_rank_with_76(run, make_config, small, module, target):
    config = make_config(small | {"epochs": 50}, checkpoint={"everySeconds": 0.0, "keep": 2})
    codes, outputs = run.run(config, 2, MEMORY_SHORT_IN.format(module=module, target=target, rank=0))
    assert codes == [76, 1], outputs
    assert "error: out of memory where a smaller micro-batch does not help" in outputs[0].splitlines()[-1]
    assert "error: another rank went away while" in outputs[1]


@pytest.mark.parametrize("ranks", [2, 3])
def test_buckets_change_no_bit_and_neither_does_a_resume(run, make_config, small, tmp_path, ranks):
    config = make_config(small | {"epochs": 3})
    codes, outputs = run.run(config, ranks)
    assert codes == [0] * ranks, outputs
    wanted = run.trace()
    (tmp_path / "trace").unlink()
    again = {"STOKER_CHECKPOINT_DIR": str(tmp_path / "again")}
    processes = run.start(config, ranks, MANY_BUCKETS, **again)
    run.wait_for_steps(5)
    for process in processes:
        process.send_signal(signal.SIGTERM)
    codes, outputs = run.finish(processes)
    assert codes == [75] * ranks, outputs
    codes, outputs = run.run(config, ranks, MANY_BUCKETS, **again)
    assert codes == [0] * ranks and "resumed at step" in outputs[0], outputs
    assert run.trace() == wanted


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
    ends = [o.splitlines()[-1].split(";")[0] for o in outputs]
    assert ends[0] == ends[1] and ends[0].startswith("stopped on request after step")
    step = run.progress()["checkpoint"]["step"]
    assert f"the newest checkpoint is of step {step}" in outputs[0]


def test_a_peer_that_never_comes_ends_the_wait(run, make_config, small):
    processes = run.start(make_config(small), 1, WORLD_SIZE="2", STOKER_COLLECTIVE_TIMEOUT_SECONDS="2")
    codes, outputs = run.finish(processes)
    assert codes == [78]
    assert "another rank did not answer in time while waiting for the other ranks" in outputs[0]
