"""The trainer by hand: a recipe's defaults, `--set`, and a dry run that says what a training would cost."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch")

from stoker.spec.recipes import RECIPES, resolve
from stoker_trainer import command_line, config
from stoker_trainer.errors import BadConfig

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


def test_a_dry_run_says_what_a_training_costs(run):
    """Not in the process of the tests: counting FLOPs imports triton, which prints what it leaked where that ends."""

    def dry_run(*argv):
        codes, [shown] = run.run("", 1, f"import sys; sys.argv += {['--dry-run', *argv]}")
        assert codes == [0], shown
        return shown

    shown = dry_run("--recipe", "gpt", "--set", "model.size=124m", "--set", "model.context=1024")
    width, layers, context, vocabulary = 768, 12, 1024, 256
    matrices = layers * 12 * width * width
    parameters = matrices + (vocabulary + context) * width + (2 * layers + 1) * 2 * width
    assert f"parameters: {parameters:,}" in shown
    flops = float(shown.split("FLOPs: ")[1].split()[0])
    plain = 6 * (matrices + vocabulary * width) * context  # without attention's own products
    assert plain < flops < 1.4 * plain
    assert "parameters: 29,674" in dry_run("--recipe", "digits")
