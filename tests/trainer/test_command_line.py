"""The trainer by hand: a recipe's defaults, `--set`, and a dry run that says what a training would cost."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch")

from stoker.spec.recipes import RECIPES, resolve
from stoker_trainer import command_line, config
from stoker_trainer import dry_run as dry_run_of
from stoker_trainer.errors import BadConfig
from stoker_trainer.measure import flops_of_sample

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("name", RECIPES)
def test_defaults_are_the_specs(name):
    parsed = json.loads(command_line.read(["--recipe", name], {}).config)
    assert (parsed["recipe"], parsed["config"]) == (name, resolve(name, {}))
    config.parse(json.dumps(parsed))


def test_fields_of_the_recipe_and_of_the_rest_are_set():
    sets = "data=/tokens model.size=124m batchSize=8 precision=bf16 stop.target.metric=loss stop.target.value=3"
    argv = ["--recipe", "gpt", *(word for one in sets.split() for word in ("--set", one))]
    parsed = config.parse(command_line.read(argv, {}).config)
    assert (parsed.config.data, parsed.config.model.size, parsed.config.batch_size) == ("/tokens", "124m", 8)
    assert (parsed.precision, parsed.stop.target.metric, parsed.stop.target.value) == ("bf16", "loss", 3.0)


@pytest.mark.parametrize(
    ("assignment", "says"),
    [
        ("modle.size=tiny", "--set modle.size: no such field"),
        ("model.sise=tiny", "no such field; known there: size, context, dropout"),
        ("steps", "--set steps: write FIELD=VALUE"),
    ],
)
def test_a_field_that_is_not_there_is_named(assignment, says):
    with pytest.raises(BadConfig, match=says):
        command_line.read(["--recipe", "gpt", "--set", assignment], {})


def test_a_dry_run_says_what_a_training_costs():
    def dry_run(*argv):
        text, lines = command_line.read(list(argv), {}).config, []
        dry_run_of.show(config.parse(text), text, lines.append)
        return "\n".join(lines)

    shown = dry_run("--recipe", "gpt", "--set", "model.size=124m", "--set", "model.context=1024")
    width, layers, context, vocabulary = 768, 12, 1024, 256
    matrices = layers * 12 * width * width
    parameters = matrices + (vocabulary + context) * width + (2 * layers + 1) * 2 * width
    assert f"parameters: {parameters:,}" in shown
    flops = float(shown.split("FLOPs: ")[1].split()[0])
    plain = 6 * (matrices + vocabulary * width) * context  # without attention's own products
    assert plain < flops < 1.4 * plain
    assert "parameters: 29,674" in dry_run("--recipe", "digits")
    kept = dry_run("--recipe", "lstm").split("about ")[1]
    assert float(kept.split()[0]) < 10 and "MiB" in kept, "weights that a cell uses at each position count once"
    sets = ["batch=auto", "optimizer.lr=find", "optimizer.baseBatch=8", "optimizer.scaling=sqrt"]
    shown = dry_run("--recipe", "gpt", *(word for one in sets for word in ("--set", one)))
    assert "micro-batch: found by trials" in shown and "learning rate: found by 40 steps of 8 samples" in shown
    sets[1] = "optimizer.learningRate=0.01"
    shown = dry_run("--recipe", "gpt", *(word for one in sets for word in ("--set", one)))
    assert "learning rate: 0.02, scaled from 8 samples" in shown


def test_a_dry_run_counts_what_the_training_counts(make_training):
    text = command_line.read(["--recipe", "bert", "--set", "model.context=16"], {}).config
    parsed, lines = json.loads(text), []
    training = make_training(None, recipe="bert", config=parsed["config"])
    dry_run_of.show(config.parse(text), text, lines.append)
    wanted = flops_of_sample(training.recipe, training.data, training.device)
    assert f"FLOPs: {wanted:.3g} per sample" in lines[-1]
