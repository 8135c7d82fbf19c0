"""Blocks that are computed twice or compiled: the same training, with less memory or faster."""

from __future__ import annotations

import json
import logging

import pytest

torch = pytest.importorskip("torch")

from stoker.spec.recipes import resolve  # noqa: E402
from stoker_trainer import blocks  # noqa: E402
from stoker_trainer.config import parse  # noqa: E402
from stoker_trainer.distributed import Vote  # noqa: E402
from stoker_trainer.errors import BadConfig  # noqa: E402
from stoker_trainer.evaluate import evaluate  # noqa: E402
from stoker_trainer.step import train_step  # noqa: E402
from stoker_trainer.training import prepare_torch  # noqa: E402
from tests.trainer.conftest import STOP  # noqa: E402

pytestmark = pytest.mark.torch
CPU = torch.device("cpu")
TEXT = {"model": {"size": "tiny", "context": 8, "dropout": 0.2}, "batchSize": 6, "evalSamples": 4}


def trained(make_training, steps=3, **settings):
    training = make_training(None, recipe="gpt", config=resolve("gpt", TEXT | settings))
    losses = []
    for step in range(steps):
        train_step(training, torch.arange(6) + 6 * step, Vote())
        losses.append(training.loss.item())
    return training, losses


def test_computing_activations_again_changes_no_bit(make_training):
    kept, again = (trained(make_training, activationCheckpointing=on)[0] for on in (False, True))
    assert torch.equal(again.flat.parameters, kept.flat.parameters)
    sizes = []
    for training in (kept, again):
        held = 0

        def hold(tensor):
            nonlocal held
            held += tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(hold, lambda tensor: tensor):
            training.recipe.loss(training.data.batch(1, 0, torch.arange(6)))
        sizes.append(held)
    assert sizes[1] < sizes[0] / 2


def test_batch_norm_counts_a_batch_once_and_dropout_draws_the_same(make_training):
    ends = []
    for on in (False, True):
        torch.manual_seed(1)
        net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.5))
        blocks.Blocks([net], CPU, compiled=False, recomputed=on)
        torch.manual_seed(2)
        for _ in range(3):
            net(torch.randn(9, 4)).square().sum().backward()
        ends.append([*net.state_dict().values(), *(p.grad for p in net.parameters()), torch.get_rng_state()])
    for kept, again in zip(*ends, strict=True):
        assert torch.equal(kept, again)


@pytest.mark.sweep  # torch's compiler takes 40 s of CPU
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("default")
def test_compiled_blocks_compile_once_and_a_restart_finds_their_code(make_training, make_config, monkeypatch, tmp_path):
    if blocks._missing_compiler(CPU):
        pytest.skip("no compiler here")
    from torch._dynamo.utils import counters
    from torch._inductor import config as inductor

    monkeypatch.setattr(inductor, "compile_threads", 1)  # no pool of processes
    monkeypatch.setattr(inductor.cpp, "vec_isa_ok", True)  # no trial programs
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")  # restored at the end
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    settings = {"model": TEXT["model"] | {"dropout": 0.0}}
    _, wanted = trained(make_training, **settings)
    compiled = resolve("gpt", TEXT | settings | {"compile": "blocks"})
    config = parse(json.dumps(make_config(None, recipe="gpt", config=compiled)))
    prepare_torch({"STOKER_CHECKPOINT_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"}, config, CPU)
    for restart in (False, True):
        torch._dynamo.reset()
        counters.clear()
        training = make_training(None, recipe="gpt", config=compiled)
        losses = []
        for step in range(3):
            train_step(training, torch.arange(6) + 6 * step, Vote())
            losses.append(training.loss.item())
        assert losses == pytest.approx(wanted, rel=1e-4)
        graphs = counters["stats"]["unique_graphs"]
        assert graphs == 1, "both blocks share one"
        train_step(training, torch.arange(4), Vote())
        evaluate(training, lambda: None)
        assert counters["stats"]["unique_graphs"] == graphs
        found = counters["inductor"]["fxgraph_cache_hit"] + counters["aot_autograd"]["autograd_cache_hit"]
        assert bool(found) == restart
    assert any((tmp_path / "compiled").iterdir())


@pytest.mark.slow
def test_a_stop_and_a_resume_with_activations_computed_again_change_no_bit(run, make_config):
    settings = resolve("gpt", TEXT | {"steps": 40, "evalEverySteps": 20, "activationCheckpointing": True})
    whole, parts = run.whole_and_interrupted(make_config(recipe="gpt", config=settings), 1, at=10)
    assert parts == whole


@pytest.mark.sweep  # torch's compiler takes 40 s of CPU
@pytest.mark.timeout(900)
def test_a_stop_and_a_resume_with_compiled_blocks_change_no_bit(run, make_config):
    if blocks._missing_compiler(CPU):
        pytest.skip("no compiler here")
    settings = resolve("gpt", TEXT | {"steps": 40, "evalEverySteps": 20, "compile": "blocks"})
    config, kept = make_config(recipe="gpt", config=settings), str(run.folder / "compiled")

    def finished(script="", **env):
        return run.finish(run.start(config, 1, script, TORCHINDUCTOR_CACHE_DIR=kept, **env), 600)

    assert finished(STOKER_CHECKPOINT_DIR=str(run.folder / "whole"))[0] == [0]
    whole = run.trace()
    (run.folder / "trace").unlink()
    assert finished(STOP, STOP_AFTER="10")[0] == [75]
    codes, outputs = finished()
    assert codes == [0] and "resumed at step" in outputs[0] and "as they are" not in outputs[0], outputs
    assert run.trace() == whole


def test_without_a_compiler_the_log_says_so_and_blocks_run_as_they_are(make_training, monkeypatch, caplog):
    monkeypatch.setattr(blocks.shutil, "which", lambda name: None)
    with caplog.at_level(logging.WARNING):
        _, losses = trained(make_training, compile="blocks")
    assert "compile: the blocks run as they are, since there is no C compiler (g++" in caplog.text
    assert losses == trained(make_training)[1]


def test_a_recipe_without_blocks_is_refused(make_training):
    with pytest.raises(BadConfig, match="the recipe lstm has no blocks"):
        make_training(None, recipe="lstm", config=resolve("lstm", {"activationCheckpointing": True}))
