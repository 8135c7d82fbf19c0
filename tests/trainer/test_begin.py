"""A training that begins with what another one has kept: its weights, or its checkpoint, as the job's spec asks."""

from __future__ import annotations

import hashlib
import json

import pytest

torch = pytest.importorskip("torch")

from stoker_trainer import command_line  # noqa: E402
from stoker_trainer.errors import BadConfig  # noqa: E402

pytestmark = pytest.mark.torch


def content(folder):
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize("ranks", [1, 2])
def test_another_jobs_checkpoint_is_gone_on_from(run, make_config, small, tmp_path, ranks):
    """To the bits of one long training, and the other job's folder stays as it is."""
    recipe = small | {"optimizer": {"schedule": "constant", "warmup": 5}, "model": {"width": 4}}
    longer = make_config(recipe)
    codes, said = run.run(longer, ranks, STOKER_CHECKPOINT_DIR=str(tmp_path / "whole"))
    assert codes == [0] * ranks, said
    whole = run.trace()
    (tmp_path / "trace").unlink()
    source = tmp_path / "source"
    codes, said = run.run(make_config(recipe | {"epochs": 1}), ranks, STOKER_CHECKPOINT_DIR=str(source))
    assert codes == [0] * ranks, said
    kept, begin = content(source), {"STOKER_CHECKPOINT_FROM": str(source)}

    codes, said = run.run(make_config(recipe | {"epochs": 1}), ranks, **begin)
    assert codes == [64] * ranks and "step 24 is done and 24 steps are wanted; ask for more" in "".join(said)
    codes, said = run.run(make_config(recipe | {"epochs": 2, "seed": 4}), ranks, **begin)
    assert codes == [64] * ranks and "with its weights alone there is initFrom" in "".join(said)
    codes, said = run.run(longer, ranks, STOKER_CHECKPOINT_FROM_STEP="7", **begin)
    assert codes == [64] * ranks and "holds no whole checkpoint of step 7 to go on from; it has those of 24" in "".join(
        said
    )

    codes, said = run.run(longer, ranks, **begin)
    assert codes == [0] * ranks and "resumed at step 24" in said[0], said
    assert run.trace() == whole and content(source) == kept
    assert (run.progress()["summary"]["lostSteps"], run.progress()["step"]) == (0, 48)
    codes, said = run.run(longer, ranks, **begin)  # by now it has checkpoints of its own
    assert codes == [0] * ranks and "resumed at step 48" in said[0], said


def test_another_jobs_weights_are_begun_with(run, make_config, small, tmp_path):
    recipe = small | {"model": {"width": 4}, "epochs": 1}
    short, once = make_config(recipe), make_config(recipe | {"seed": 9})
    codes, said = run.run(short)
    assert codes == [0], said
    weights = tmp_path / "output" / "best.pt"
    again = {"STOKER_CHECKPOINT_DIR": str(tmp_path / "again"), "STOKER_OUTPUT_DIR": str(tmp_path / "second")}
    fresh, _ = run.run(once, **again | {"STOKER_CHECKPOINT_DIR": str(tmp_path / "fresh")})
    begun, said = run.run(once, STOKER_INIT_FROM=str(weights), **again)
    assert fresh == begun == [0], said
    losses = [line["loss"] for line in run.trace() if line.get("step") == 1 and "loss" in line]
    assert len(losses) == len(set(losses)) == 3  # the first step's: from scratch, of another seed, with the weights
    wide = make_config(small)
    codes, said = run.run(wide, STOKER_INIT_FROM=str(weights), STOKER_CHECKPOINT_DIR=str(tmp_path / "wide"))
    assert codes == [64] and "do not fit this model" in said[0]


def test_what_does_not_go_together(make_config):
    config = {"STOKER_TRAINER_CONFIG": json.dumps(make_config())}
    with pytest.raises(BadConfig, match="brings its own weights"):
        command_line.read([], config | {"STOKER_CHECKPOINT_FROM": "/c", "STOKER_INIT_FROM": "/w"})
    with pytest.raises(BadConfig, match="--checkpoint-step works with --checkpoint-from"):
        command_line.read(["--checkpoint-step", "3"], config)
    partly = command_line.read([], config | {"STOKER_INIT_PARTLY": "1", "STOKER_INIT_FROM": "/w"})
    assert (str(partly.init_from), partly.init_partly) == ("/w", True)
