"""A step recorded as one piece. Without CUDA nothing can be recorded: here what would be runs anew at each start, on
the same static tensors, so these tests hold that those carry all that differs from step to step."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from stoker.spec.recipes import resolve  # noqa: E402
from stoker_trainer import counter, graph  # noqa: E402
from stoker_trainer import training as training_module  # noqa: E402
from stoker_trainer.counter import Purpose, words  # noqa: E402
from stoker_trainer.distributed import Vote  # noqa: E402
from stoker_trainer.step import train_step  # noqa: E402
from stoker_trainer.tokens import _shift  # noqa: E402

pytestmark = pytest.mark.torch
CPU = torch.device("cpu")
TEXT = {"model": {"size": "tiny", "context": 16}}
LSTM = {"model": {"layers": 1, "width": 32, "context": 16}}
NETS = {
    "image-classification": {"model": {"width": 4}, "optimizer": {"ema": 0.9}},
    "resnet": {
        "data": "digits",
        "model": {"depth": 10, "width": 4},
        "augment": {"flip": True, "cutout": 3, "area": 0.5},
    },
    "gpt": TEXT | {"model": {**TEXT["model"], "dropout": 0.1}},
    "bert": TEXT,
    "lstm": LSTM,
    "seq2seq": {"model": TEXT["model"], "optimizer": {"name": "adamw"}},
}
# In place of CUDA's recording: what would be recorded runs at each start.
REPLAYED = """
import torch, stoker_trainer.graph as graph, stoker_trainer.training as training
recorded = []
def record(stream, body, inputs):
    kept = torch.zeros(()), torch.zeros(())
    recorded.append(inputs)
    return lambda: [place.copy_(value) for place, value in zip(kept, body(inputs))], kept
graph.record, training.reason_against = record, lambda *of: None
"""


@pytest.fixture
def replayed(monkeypatch):
    """The inputs of each recording."""
    monkeypatch.setattr(graph, "record", graph.record)  # both are put back at the end
    monkeypatch.setattr(training_module, "reason_against", graph.reason_against)
    names: dict[str, list[graph.Inputs]] = {}
    exec(REPLAYED, names)
    return names["recorded"]


@pytest.mark.parametrize("epoch", [0, 1, 7, 2**40])
def test_a_tensor_of_the_epoch_draws_the_same_numbers(epoch):
    samples, held = torch.arange(50), torch.tensor(epoch)
    for purpose in Purpose:
        assert torch.equal(words(3, epoch, purpose, samples, 5), words(3, held, purpose, samples, 5))
    assert _shift(3, epoch, 129) == _shift(3, held, 129)
    assert counter.uniforms(3, held, Purpose.HIDE, samples, 2).dtype == torch.float32


@pytest.mark.parametrize("recipe", NETS)
def test_static_tensors_carry_all_that_differs_from_step_to_step(make_training, replayed, recipe):
    """To the bits of steps one by one, over two epochs with a smaller last batch."""
    found = []
    for way in ("off", "step"):
        settings = NETS[recipe] | {"batchSize": 8, "cudaGraph": way}
        training = make_training(recipe=recipe, config=resolve(recipe, settings))
        training.net.train()
        seen = []
        for step in range(12):
            training.cursor.step, training.cursor.epoch = step, step // 6
            rows = torch.arange(8 if step % 6 < 5 else 5) + 3 * step
            torch.manual_seed(step)
            train_step(training, rows, Vote())
            seen.append((training.loss.item(), training.gradient_norm.item(), training.learning_rate))
        state = [*training.update.state().values(), *training.net.state_dict().values()]
        state += training.average.state().values() if training.average is not None else []
        found.append((seen, [tensor.clone() for tensor in state]))
    assert len(replayed) == 1
    assert found[0][0] == found[1][0]
    assert all(torch.equal(a, b) for a, b in zip(found[0][1], found[1][1], strict=True))


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_resume_keeps_every_bit(run, make_config, small, precision):
    config = make_config(small | {"model": {"width": 4}, "cudaGraph": "step", "epochs": 1}, precision=precision)
    whole, parts = run.whole_and_interrupted(config, 1, 9, REPLAYED)
    assert parts == whole and len([line for line in whole if "evaluation" not in line]) == 24


def test_out_of_memory_ends_the_recording_not_the_training(make_training, replayed, monkeypatch, caplog):
    settings = {"batchSize": 8, "model": {"width": 4}}
    plain, training = make_training(settings), make_training(settings | {"cudaGraph": "step"})

    def full(stream, body, inputs):
        raise torch.OutOfMemoryError("no memory to record in")

    monkeypatch.setattr(graph, "record", full)
    for step in range(6):
        for one in (plain, training):
            one.cursor.step = step
            train_step(one, torch.arange(8), Vote())
    assert "one could not be recorded: no memory to record in" in caplog.text
    assert torch.equal(plain.flat.parameters, training.flat.parameters) and not training.graph.recorded


@pytest.mark.parametrize(
    ("settings", "world", "says"),
    [
        ({}, 2, "it works on one rank, and there are 2"),
        ({"optimizer": {"name": "muon"}}, 1, "muon"),
        ({"activationCheckpointing": True}, 1, "compile and activationCheckpointing do not go with it"),
        ({}, 1, None),
    ],
)
def test_where_no_step_can_be_recorded_the_log_says_why(make_training, settings, world, says, caplog):
    training = make_training({"model": {"width": 4}, "cudaGraph": "step", **settings})
    assert training.graph is None and "kernel by kernel, since there is no CUDA here" in caplog.text
    config = training.config.config
    found = graph.reason_against(config, torch.device("cuda", 0), world, training.data)
    assert (found is None) if says is None else says in (found or "")
