"""`lr: find`: the range test, what it leaves behind (nothing but the rate), and rates that follow the batch."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

torch = pytest.importorskip("torch")

from stoker.spec.recipes import resolve  # noqa: E402
from stoker_trainer import rate  # noqa: E402
from stoker_trainer.errors import BadConfig  # noqa: E402
from stoker_trainer.save import gathered_state, pack, unpack  # noqa: E402
from stoker_trainer.trace import digests  # noqa: E402

pytestmark = pytest.mark.torch


def test_the_steepest_fall_before_the_lowest():
    rates = [10.0**n for n in range(-6, 4)]
    losses = [2.3, 2.3, 2.3, 2.2, 1.4, 1.0, 0.9, 1.5, 4.0, 9.0]
    assert rate.steepest(rates, losses) in (1e-3, 1e-2, 1e-1)
    assert rate.steepest(rates, [1.0 + n for n in range(10)]) is None
    assert rate.steepest(rates, []) is None


@pytest.mark.parametrize("optimizer", [{"name": "adamw", "ema": 0.9}, {"name": "sgd"}])
def test_a_range_test_finds_a_rate_that_trains_and_changes_nothing_else(make_training, small, optimizer):
    training = make_training(small | {"optimizer": {**optimizer, "lr": "find"}})
    before, config = pack(gathered_state(training)), training.config
    found = rate.find(training, lambda: None)
    assert {"adamw": 3e-4, "sgd": 3e-3}[optimizer["name"]] < found < {"adamw": 0.1, "sgd": 1.0}[optimizer["name"]]
    assert training.rule.learning_rate == training.tuned.learning_rate == found and training.config is config
    other = make_training(small | {"optimizer": {**optimizer, "lr": "find"}})
    unpack(other, before)
    assert digests(training) == digests(other) and training.clock.steps == 0 == training.cursor.step


def test_what_was_found_is_part_of_the_state(make_training, small):
    training = make_training(small | {"optimizer": {"lr": "find"}})
    rate.find(training, lambda: None)
    other = make_training(small | {"optimizer": {"lr": "find"}})
    unpack(other, pack(gathered_state(training)))
    assert other.rule.learning_rate == training.rule.learning_rate != 3e-3


def test_a_loss_that_never_falls_is_said(make_training, small, monkeypatch):
    training = make_training(small | {"optimizer": {"lr": "find"}})
    monkeypatch.setattr(rate, "steepest", lambda rates, losses: None)
    with pytest.raises(BadConfig, match="no learning rate"):
        rate.find(training, lambda: None)


@pytest.mark.parametrize(("scaling", "factor"), [("none", 1.0), ("linear", 4.0), ("sqrt", 2.0)])
def test_a_rate_follows_the_batch(make_training, small, scaling, factor):
    given = {"optimizer": {"learningRate": 0.01, "scaling": scaling, "baseBatch": 16}, "batchSize": 64}
    assert make_training(small | given).rule.learning_rate == pytest.approx(0.01 * factor)
    found = {"optimizer": {"lr": "find", "scaling": scaling, "baseBatch": 16}, "batchSize": 64}
    alone = {"optimizer": {"lr": "find"}, "batchSize": 16}
    scaled, bare = (rate.find(make_training(small | settings), lambda: None) for settings in (found, alone))
    assert scaled == pytest.approx(factor * bare)


def test_a_scaling_without_its_batch_is_refused():
    with pytest.raises(ValidationError, match="baseBatch"):
        resolve("gpt", {"optimizer": {"scaling": "sqrt"}})


@pytest.mark.slow
def test_two_ranks_find_one_rate_and_a_resume_keeps_it(run, make_config, small):
    config = make_config(small | {"optimizer": {"lr": "find"}})
    whole, parts = run.whole_and_interrupted(config, 2, at=10)
    assert parts == whole
    assert run.progress()["summary"]["peakLearningRate"] != 3e-3
