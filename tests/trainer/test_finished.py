"""The output of a training is of use: measured again, a start for another one, predictions."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from stoker.spec.recipes import resolve  # noqa: E402
from stoker_trainer import command_line, finished  # noqa: E402
from stoker_trainer.config import parse  # noqa: E402
from stoker_trainer.distributed import Vote  # noqa: E402
from stoker_trainer.errors import BadConfig  # noqa: E402
from stoker_trainer.evaluate import evaluate  # noqa: E402
from stoker_trainer.export import Results  # noqa: E402
from stoker_trainer.step import train_step  # noqa: E402

pytestmark = pytest.mark.torch
ON_CPU = {"STOKER_SIMULATED_GPUS": "1", "OMP_NUM_THREADS": "1"}
SMALL = {"model": {"width": 8}, "epochs": 2, "batchSize": 61, "seed": 3}


@pytest.fixture
def output(make_training, make_config, tmp_path):
    training = make_training(SMALL)
    for step in range(12):
        train_step(training, torch.arange(61), Vote())
        training.cursor.step = step + 1
    training.tally.metrics = evaluate(training, lambda: None)
    Results(training, json.dumps(make_config(SMALL)), tmp_path, None).final({})
    return training, tmp_path


def test_weights_are_measured_again(output):
    training, folder = output
    request = command_line.read(["eval", str(folder), "--set", "batchSize=64"], {})
    assert json.loads(request.config)["config"]["batchSize"] == 64
    assert finished.measure(parse(request.config), request.weights, ON_CPU) == pytest.approx(training.tally.metrics)
    with pytest.raises(BadConfig, match=r"none\.pt can't be read as weights"):
        finished.measure(parse(request.config), folder / "none.pt", ON_CPU)
    with pytest.raises(BadConfig, match="the config can't be read"):
        command_line.read(["eval", str(folder / "elsewhere")], {})


def test_inputs_are_predicted(output):
    training, folder = output
    images, path = training.data.test_images[:20], folder / "images.npy"
    np.save(path, images.numpy())
    request = command_line.read(["predict", str(folder), str(path)], {})
    with torch.no_grad():
        mine = training.net(training.data.test_batch(torch.arange(20)).inputs).argmax(1)
    assert list(finished.predictions(request.folder, request.inputs)) == [" ".join(map(str, mine.tolist()))]
    with pytest.raises(BadConfig, match="does not suit this model"):
        list(finished.predictions(folder, ["nowhere.npy"]))
    with pytest.raises(BadConfig, match="is no output of a finished training"):
        list(finished.predictions(folder / "elsewhere", ["x"]))


def test_texts_are_predicted(make_training, tmp_path, monkeypatch):
    settings = {"model": {"size": "tiny", "context": 16}}
    for recipe, given, shown in (
        ("gpt", "def ", "def "),
        ("bert", "import o_", "import o"),
        ("bert", "whole", "whole"),
    ):
        training = make_training(recipe=recipe, config=resolve(recipe, settings))
        folder = tmp_path / f"{recipe} {given}"
        Results(training, "{}", folder, None).final({})
        monkeypatch.delitem(sys.modules, "model", raising=False)
        (said,) = finished.predictions(folder, [given])
        assert said.startswith(shown) and (recipe == "gpt" or len(said) >= len(given))


def test_a_training_begins_with_the_weights_of_another(make_training, output):
    trained, folder = output
    training = make_training(SMALL | {"optimizer": {"ema": 0.5}})
    assert finished.begin_with(training, folder, partly=False) == []
    for name, p in trained.net.named_parameters():
        assert torch.equal(dict(training.net.named_parameters())[name], p)
        assert torch.equal(training.average.state()[name], p)


def test_weights_that_do_not_fit_are_named(make_training, output):
    trained, folder = output
    other = make_training(SMALL | {"data": "mnist5k"})
    before = other.flat.parameters.clone()
    with pytest.raises(BadConfig, match=r"classify\.weight is \(10, 256\) there, \(10, 784\) here; --init-partly"):
        finished.begin_with(other, folder, partly=False)
    assert torch.equal(other.flat.parameters, before)
    assert finished.begin_with(other, folder, partly=True) == ["classify.weight is (10, 256) there, (10, 784) here"]
    assert torch.equal(other.net.convolutions[0].weight, trained.net.convolutions[0].weight)
    torch.save([1], folder / "list.pt")
    with pytest.raises(BadConfig, match="holds no state_dict"):
        finished.read_weights(folder / "list.pt")
    with pytest.raises(BadConfig, match=r"and 4 more$"):
        finished.take_weights(other.net, {"x": torch.ones(1)}, folder, partly=True)
