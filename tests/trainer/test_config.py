"""The trainer reads exactly the spec's fields, and a bad config is one line that names the field."""

from __future__ import annotations

import dataclasses
import json
import typing

import pytest
from pydantic import BaseModel

from stoker.spec.outcome import ExitCode
from stoker.spec.recipes import RECIPES
from stoker_trainer import config as configs
from stoker_trainer import errors, recipes, settings
from stoker_trainer.config import parse
from stoker_trainer.errors import BadConfig

pytestmark = pytest.mark.torch


def spec_fields(model: type[BaseModel]) -> dict[str, typing.Any]:
    out = {}
    for name, f in model.model_fields.items():
        kind = f.annotation
        inner = isinstance(kind, type) and issubclass(kind, BaseModel)
        out[f.alias or name] = spec_fields(kind) if inner else None
    return out


def trainer_fields(kind: type) -> dict[str, typing.Any]:
    hints = typing.get_type_hints(kind)
    return {
        configs.json_name(f.name): trainer_fields(hints[f.name]) if dataclasses.is_dataclass(hints[f.name]) else None
        for f in dataclasses.fields(kind)
    }


def test_the_trainer_knows_the_specs_fields_and_no_others():
    assert RECIPES.keys() == recipes.RECIPES.keys()
    for name, entry in recipes.RECIPES.items():
        assert trainer_fields(entry.settings) == spec_fields(RECIPES[name])


def test_choices_are_the_specs():
    from stoker.spec.recipes import DataSet, OptimizerName, ScheduleName

    hints = typing.get_type_hints
    assert set(typing.get_args(hints(recipes.ImageClassification)["data"])) == set(DataSet)
    assert set(typing.get_args(hints(settings.Optimizer)["name"])) == set(OptimizerName)
    assert set(typing.get_args(hints(settings.Optimizer)["schedule"])) == set(ScheduleName)


def test_exit_codes_are_the_contracts():
    mine = {name: getattr(errors, name) for name in ExitCode.__members__}
    assert mine == {name: code.value for name, code in ExitCode.__members__.items()}


def test_every_default_of_the_spec_parses(make_config):
    config = parse(json.dumps(make_config()))
    assert config.config.batch_size == 64
    assert config.stop.target is None


def change(value, path, new):
    head, *rest = path
    if not rest:
        if new is ...:
            del value[head]
        else:
            value[head] = new
        return
    change(value[head], rest, new)


@pytest.mark.parametrize(
    ("path", "new", "says"),
    [
        (["config", "epochs"], ..., "config.epochs: missing"),
        (["config", "optimizer", "learningRate"], "fast", "config.optimizer.learningRate: expected a finite number"),
        (["config", "optimizer", "learningRate"], float("nan"), "config.optimizer.learningRate: expected a finite"),
        (["config", "batchSize"], 6.5, "config.batchSize: expected a whole number"),
        (["config", "batchSize"], True, "config.batchSize: expected a whole number"),
        (["config", "batchSize"], 0, "config.batchSize: must be at least 1"),
        (["config", "model", "dropout"], 1.0, "config.model.dropout: must be below 1"),
        (["config", "model", "depth"], 3, "config.model.depth: unknown field"),
        (["config", "data"], "cifar10", "config.data: expected one of digits, mnist5k"),
        (["config", "augment"], None, "config.augment: expected an object"),
        (["config", "deterministic"], "yes", "config.deterministic: expected true or false"),
        (["precision"], "fp4", "precision: expected one of auto, fp32, tf32, bf16, fp16, fp8"),
        (["recipe"], "gpt-9", "recipe: expected one of bert, gpt, image-classification, lstm, resnet, seq2seq"),
        (["stop", "maxSteps"], 0, "stop.maxSteps: must be at least 1"),
        (["stop", "target"], {"metric": 7, "value": 1, "mode": None}, "stop.target.metric: expected a text"),
        (["checkpoint", "keep"], 0, "checkpoint.keep: must be at least 1"),
        (["extra"], 1, "extra: unknown field"),
    ],
)
def test_a_bad_config_names_the_field(make_config, path, new, says):
    config = make_config()
    change(config, path, new)
    with pytest.raises(BadConfig) as caught:
        parse(json.dumps(config))
    assert str(caught.value).startswith(says)


@pytest.mark.parametrize("text", ["", "{", "[]", "7", '"x"', "null"])
def test_what_is_no_config_is_refused(text):
    with pytest.raises(BadConfig):
        parse(text)


def test_differences_are_named_with_both_values(make_config):
    old, new = make_config(), make_config({"epochs": 30})
    assert configs.differences(old, new) == ["config.epochs: 20 there, 30 now"]


def test_a_process_with_a_bad_config_exits_64_with_one_line(run, make_config):
    codes, outputs = run.run(make_config() | {"precision": "fp4"})
    assert codes == [64]
    assert outputs[0].startswith("stoker-trainer: error: precision: expected one of")
    assert outputs[0].count("\n") == 1


def test_a_process_without_a_config_exits_64(run):
    codes, outputs = run.run("")
    assert codes == [64]
    assert "STOKER_TRAINER_CONFIG is not set" in outputs[0]
