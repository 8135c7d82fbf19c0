"""The course of a training inside one process: evaluation, target, stop, saving, and a resume that keeps every bit."""

from __future__ import annotations

import json
import shutil
from itertools import pairwise
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")


from stoker.spec.recipes import resolve  # noqa: E402
from stoker_trainer import loop as loops  # noqa: E402
from stoker_trainer.checkpoint import CheckpointFolder  # noqa: E402
from stoker_trainer.config import trajectory_of  # noqa: E402
from stoker_trainer.errors import BadConfig, Diverged, Stopped  # noqa: E402
from stoker_trainer.fence import Fence  # noqa: E402
from stoker_trainer.loop import Loop  # noqa: E402
from stoker_trainer.report import Silent  # noqa: E402
from stoker_trainer.save import Keeper, gathered_state, pack, unpack  # noqa: E402
from stoker_trainer.stop import StopSignal  # noqa: E402
from stoker_trainer.trace import Trace, digests  # noqa: E402

pytestmark = pytest.mark.torch
ROOT = Path(__file__).parents[2]


class StopAt(StopSignal):
    """Asks to stop while the given step is being trained."""

    def __init__(self, step=None):
        super().__init__()
        self.step, self.training = step, None
        self.begin_training()

    @property
    def requested(self):
        return self.step is not None and self.training.cursor.step + 1 >= self.step


def keeper_for(training, config, folder, attempt, extend=False):
    made = None
    if folder is not None:
        made = CheckpointFolder(folder, Fence.claim(folder, attempt), 2)
    return Keeper(training, trajectory_of(json.dumps(config)), made, extend=extend)


def go_on(training, keeper, stop_at=None, trace=None, report=None, keep_best=lambda: None):
    """Trains to the end or to a stop; whether it was stopped."""
    stop = StopAt(stop_at)
    stop.training = training
    try:
        Loop(training, keeper, report or Silent(), stop, trace, lambda: None, keep_best).run()
    except Stopped:
        return True
    return False


def attempt(make_training, make_config, recipe, folder, number, stop_at=None, extend=False, **top):
    training = make_training(recipe, **top)
    keeper = keeper_for(training, make_config(recipe, **top), folder, number, extend)
    keeper.resume()
    trace = Trace(folder / "trace")
    return training, go_on(training, keeper, stop_at, trace)


def lines(folder):
    return [json.loads(line) for line in (folder / "trace").read_text().splitlines()]


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_a_resume_keeps_every_bit(make_training, make_config, small, tmp_path, precision, optimizer):
    recipe = small | {"optimizer": {"name": optimizer, "learningRate": 0.01}, "model": {"width": 4}, "epochs": 1}
    (tmp_path / "whole").mkdir()
    (tmp_path / "parts").mkdir()
    attempt(make_training, make_config, recipe, tmp_path / "whole", 1, precision=precision)
    for number, stop_at in enumerate((1, 2, 11, 23, None), start=1):
        torch.rand(number)  # the process's generators are elsewhere, as in a new process
        _, stopped = attempt(
            make_training, make_config, recipe, tmp_path / "parts", number, stop_at, precision=precision
        )
        assert stopped == (stop_at is not None)
    assert lines(tmp_path / "parts") == lines(tmp_path / "whole")
    assert len(lines(tmp_path / "whole")) == 24 + 1


def test_a_stop_at_the_epochs_end_puts_the_evaluation_off(make_training, make_config, small, tmp_path):
    training, stopped = attempt(make_training, make_config, small, tmp_path, 1, stop_at=24)
    assert stopped and (training.cursor.epoch, training.cursor.consumed) == (1, 0)
    assert training.tally.evaluated_step == -1
    training, _ = attempt(make_training, make_config, small, tmp_path, 2)
    assert [x["step"] for x in lines(tmp_path) if "evaluation" in x] == [24, 48]


def test_a_finished_training_does_nothing_more(make_training, make_config, small, tmp_path):
    attempt(make_training, make_config, small, tmp_path, 1)
    before = lines(tmp_path)
    training, stopped = attempt(make_training, make_config, small, tmp_path, 2, stop_at=1)
    assert not stopped and training.cursor.step == 48
    assert lines(tmp_path) == before


def test_the_target_ends_the_training_and_its_time_survives(make_training, make_config, small, tmp_path):
    top = {"stop": {"maxSteps": None, "target": {"metric": "accuracy", "value": 0.5, "mode": None}, "patience": None}}
    recipe = small | {"epochs": 40}
    attempt(make_training, make_config, recipe, tmp_path, 1, stop_at=20, **top)
    training, _ = attempt(make_training, make_config, recipe, tmp_path, 2, **top)
    assert training.tally.target_reached and training.tally.metrics["accuracy"] >= 0.5
    assert training.cursor.step < training.total_steps
    assert 0 < training.tally.time_to_target_s <= training.tally.seconds
    again, _ = attempt(make_training, make_config, recipe, tmp_path, 3, **top)
    assert again.cursor.step == training.cursor.step
    assert again.tally.time_to_target_s == training.tally.time_to_target_s


def test_evaluations_without_improvement_end_the_training(make_training, make_config, small, tmp_path, monkeypatch):
    """Counted on over a stop; the best weights are kept at each improvement."""
    losses = iter([3.0, 2.0, float("nan"), 2.5, 1.0, 1.5, 1.0, 1.25])
    monkeypatch.setattr(loops, "evaluate", lambda training, beat: {"accuracy": 0.5, "loss": next(losses)})
    patience = {"evaluations": 3, "metric": "loss", "mode": None}
    top = {"stop": {"maxSteps": None, "target": None, "patience": patience}}
    recipe, best = small | {"epochs": 40}, []
    for number, stop_at in ((1, 24 * 6 + 1), (2, None)):
        training = make_training(recipe, **top)
        keeper = keeper_for(training, make_config(recipe, **top), tmp_path, number)
        keeper.resume()
        go_on(training, keeper, stop_at, keep_best=lambda training=training: best.append(training.cursor.step // 24))
        assert training.tally.stale == (1 if stop_at else 3)
    assert best == [1, 2, 5] and training.cursor.step == 24 * 8
    assert training.ended == "no better loss in 3 evaluations (best 1 at step 120)"


def test_max_steps_is_the_end_and_is_evaluated(make_training, make_config, small, tmp_path):
    top = {"stop": {"maxSteps": 30, "target": None, "patience": None}}
    training, _ = attempt(make_training, make_config, small, tmp_path, 1, **top)
    assert training.cursor.step == 30 == training.tally.evaluated_step
    assert training.learning_rate < 1e-4  # the decay ends where the training does


@pytest.mark.parametrize("batch", [1, 61, 721, 1441, 1442, 5000])
def test_every_epoch_meets_every_sample_once(make_training, make_config, small, monkeypatch, batch):
    """The loop's own walk over the global order, without the arithmetic of training."""
    training = make_training(small | {"batchSize": batch, "epochs": 3})
    met = []

    def record(training, rows, wish):
        met.append((training.cursor.epoch, rows.tolist()))
        return wish

    monkeypatch.setattr(loops, "train_step", record)
    go_on(training, keeper_for(training, make_config(small), None, 1))
    orders = []
    for epoch in range(3):
        rows = [row for e, part in met for row in part if e == epoch]
        assert sorted(rows) == list(range(1442))
        orders.append(rows)
    assert orders[0] != orders[1] != orders[2]
    assert {len(part) for _, part in met} <= {min(batch, 1442), 1442 % batch}
    assert len(met) == training.cursor.step == training.total_steps == 3 * -(-1442 // batch)


def test_saves_come_by_time(make_training, make_config, small, tmp_path, monkeypatch):
    training = make_training(small, checkpoint={"everySeconds": 10.0, "keep": 3})
    keeper = keeper_for(training, make_config(small), tmp_path, 1)
    now = [0.0]

    def tick():
        now[0] += 0.25
        return now[0]

    monkeypatch.setattr(loops.time, "monotonic", tick)
    steps = []
    monkeypatch.setattr(keeper, "save", lambda: steps.append(training.cursor.step) or True)
    go_on(training, keeper)
    *timed, last = steps
    gaps = [b - a for a, b in pairwise(timed)]
    assert len(gaps) >= 1 and max(gaps) - min(gaps) <= 1 and last == 48


@pytest.mark.parametrize(("precision", "end", "says"), [("fp32", 20, ""), ("fp16", 36, " with the loss scale at")])
def test_a_gradient_that_stays_infinite_ends_as_diverged(make_training, make_config, precision, end, says):
    tiny = {"model": {"width": 4}, "batchSize": 8}
    training = make_training(tiny, precision=precision)
    training.flat.parameters.fill_(float("nan"))
    with pytest.raises(Diverged, match=f"not finite in 20 steps in a row up to step {end}{says}"):
        go_on(training, keeper_for(training, make_config(tiny), None, 1))
    assert training.scaler.skipped() == end  # fp16: 16 halvings, from 2**16 to the floor, and 20 steps there


def test_other_settings_are_refused_by_name(make_training, make_config, small, tmp_path):
    attempt(make_training, make_config, small, tmp_path, 1, stop_at=3)
    with pytest.raises(BadConfig, match=r"config\.epochs: 2 there, 9 now"):
        attempt(make_training, make_config, small | {"epochs": 9}, tmp_path, 2)
    free = {
        "stop": {"maxSteps": None, "target": {"metric": "accuracy", "value": 0.2, "mode": "max"}, "patience": None},
        "checkpoint": {"everySeconds": 9.0, "keep": 1},
    }
    training, _ = attempt(make_training, make_config, small, tmp_path, 3, **free)
    assert training.tally.target_reached


def test_a_finished_training_is_extended(make_training, make_config, small, tmp_path):
    """Under a constant rate to the bits of one that was as long from the start."""
    whole, recipe = (
        tmp_path / "whole",
        small | {"optimizer": {"schedule": "constant", "warmup": 5}, "model": {"width": 4}},
    )
    whole.mkdir()
    attempt(make_training, make_config, recipe | {"epochs": 2}, whole, 1)
    parts, longer = tmp_path / "parts", recipe | {"epochs": 2}
    parts.mkdir()
    attempt(make_training, make_config, recipe | {"epochs": 1}, parts, 1)
    with pytest.raises(BadConfig, match=r"config\.epochs: 1 there, 2 now.*--extend goes on"):
        attempt(make_training, make_config, longer, parts, 2)
    with pytest.raises(BadConfig, match="step 24 is done and 24 steps are wanted"):
        attempt(make_training, make_config, recipe | {"epochs": 1}, parts, 3, extend=True)
    with pytest.raises(BadConfig, match="only its length may change"):
        attempt(make_training, make_config, longer | {"seed": 4}, parts, 4, extend=True)
    attempt(make_training, make_config, longer, parts, 5, extend=True)
    assert lines(parts) == lines(whole)


def test_a_state_that_does_not_fit_is_passed_over(make_training, make_config, small, tmp_path):
    attempt(make_training, make_config, small, tmp_path, 1, stop_at=3)
    other = make_training(small | {"model": {"width": 4}})
    fence = Fence.claim(tmp_path, 2)
    about = {"trajectory": trajectory_of(json.dumps(make_config(small)))}
    CheckpointFolder(tmp_path, fence, 2).publish(4, pack(gathered_state(other)), about)
    CheckpointFolder(tmp_path, fence, 3).publish(5, b"no torch archive", about)
    training = make_training(small)
    fresh = digests(training)
    keeper = keeper_for(training, make_config(small), tmp_path, 3)
    assert keeper.resume()
    assert training.cursor.step == 3 and digests(training) != fresh
    assert len(list(tmp_path.glob("*.bad"))) == 2


def test_loading_runs_no_code(make_training, small):
    import pickle

    class Bomb:
        def __reduce__(self):
            return (exec, ("raise SystemExit('ran')",))

    import io

    buffer = io.BytesIO()
    torch.save({"model": Bomb()}, buffer)
    with pytest.raises(pickle.UnpicklingError):
        unpack(make_training(small), buffer.getvalue())


def test_a_full_disk_does_not_stop_the_training(make_training, make_config, small, tmp_path, monkeypatch):
    training = make_training(small, checkpoint={"everySeconds": 0.0, "keep": 2})
    folder = CheckpointFolder(tmp_path, Fence.claim(tmp_path, 1), 2)

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(folder, "publish", full)
    keeper = Keeper(training, trajectory_of(json.dumps(make_config(small))), folder)
    assert not go_on(training, keeper)
    assert training.cursor.step == 48 and keeper.step is None


def test_only_the_rank_that_writes_packs(make_training, make_config, small, monkeypatch):
    monkeypatch.setattr("stoker_trainer.save.pack", lambda state: pytest.fail("packed for no file"))
    keeper = keeper_for(make_training(small), make_config(small), None, 1)
    assert keeper.save() is False


def test_a_resume_short_of_memory_leaves_the_checkpoint_good(make_training, make_config, small, tmp_path, monkeypatch):
    config = make_config(small)
    assert keeper_for(make_training(small), config, tmp_path, 1).save()

    def short(*args):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes")

    keeper = keeper_for(make_training(small), config, tmp_path, 2)
    with monkeypatch.context() as patch:
        patch.setattr("stoker_trainer.save.unpack", short)
        with pytest.raises(RuntimeError):
            keeper.resume()
    assert keeper_for(make_training(small), config, tmp_path, 3).resume()


def test_a_checkpoint_of_format_1_goes_on(make_training, make_config, tmp_path):
    """Written by the trainer before recipes were seams; its evaluation and its best count on."""
    written = ROOT / "tests/trainer/checkpoints/format-1"
    shutil.copytree(written, tmp_path, dirs_exist_ok=True)
    recipe = {"model": {"width": 4}, "epochs": 2, "batchSize": 61, "seed": 3}
    training = make_training(recipe)
    keeper = keeper_for(training, make_config(recipe), tmp_path, 2)
    assert keeper.resume() and training.cursor.step == 26
    assert training.tally.metrics["accuracy"] == training.tally.best["accuracy"] == pytest.approx(0.6253521126760564)
    assert not go_on(training, keeper) and training.cursor.step == 48
    whole = make_training(recipe)
    go_on(whole, keeper_for(whole, make_config(recipe), None, 1))
    torch.testing.assert_close(training.flat.parameters, whole.flat.parameters, rtol=1e-3, atol=1e-3)


def test_an_optimizer_of_format_2_finds_its_parameters(make_training):
    """Its vectors had every matrix first; now embeddings lie behind."""
    training = make_training(recipe="gpt", config=resolve("gpt", {"model": {"size": "tiny", "context": 8}}))
    state = gathered_state(training)
    named = dict(training.net.named_parameters())
    old = sorted(named, key=lambda name: named[name].ndim < 2)
    vector = torch.cat([named[name].detach().flatten() for name in old])
    steps = torch.ones((), dtype=torch.float64)
    unpack(training, pack(state | {"optimizer": {"mean": vector, "square": 2 * vector, "steps": steps}}))
    kept = training.update.state()
    assert all(torch.equal(kept[f"square/{name}"], 2 * p) for name, p in named.items())
    assert training.flat.names != old and kept["steps"] == 1
