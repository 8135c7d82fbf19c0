"""The recipe `gpt`: it learns, an interruption changes no bit, its data is found or named, its weights are of use."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import get_args, get_type_hints

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from stoker.spec.recipes import GptSize, resolve  # noqa: E402
from stoker_trainer import tokens  # noqa: E402
from stoker_trainer.errors import BadConfig  # noqa: E402
from stoker_trainer.recipes import gpt  # noqa: E402
from stoker_trainer.recipes.settings import Transformer  # noqa: E402

pytestmark = pytest.mark.torch
CPU = torch.device("cpu")
UNIGRAM_NATS = 3.08  # the test loss of the best guess that looks at no other byte
TINY = {
    "model": {"size": "tiny", "context": 64, "dropout": 0.1},
    "batchSize": 16,
    "steps": 80,
    "evalEverySteps": 40,
    "evalSamples": 64,
}


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_it_learns_and_an_interruption_changes_no_bit(run, make_config, ranks):
    config = make_config() | {"recipe": "gpt", "config": resolve("gpt", TINY | {"deterministic": True})}
    whole, parts = run.whole_and_interrupted(config, ranks, at=30)
    assert parts == whole and whole[-1]["step"] == 80
    summary = run.progress()["summary"]
    assert summary["metrics"]["loss"] < UNIGRAM_NATS - 0.15 and summary["best"].keys() == {"loss", "accuracy"}
    if ranks == 1:
        program = [sys.executable, "-I", "-c", "import sys; sys.path[:0] = ['.']; from load_example import generate; "]
        program[-1] += "print(len(generate(b'def ', 20))); print('stoker_trainer' in sys.modules)"
        out = subprocess.check_output(program, cwd=run.folder / "output", text=True, timeout=100)
        assert out.split() == ["24", "False"]


def test_every_token_is_predicted_once_but_for_the_ends(tmp_path):
    text = np.arange(1000) % 251
    np.save(tmp_path / "train.npy", text.astype(np.uint8))
    np.save(tmp_path / "test.npy", (text + 60_000).astype(np.uint16))
    (tmp_path / tokens.ABOUT).write_text(json.dumps({"vocabulary": 65_536, "digest": "d"}))
    source = tokens.load(str(tmp_path), 16, 1000, CPU)
    for epoch in range(3):
        batch = source.batch(7, epoch, torch.arange(source.train_rows))
        assert torch.equal(batch.inputs[:, 1:], batch.targets[:, :-1])
        assert torch.equal(batch.inputs[1:, 0], batch.targets[:-1, -1])
        assert batch.targets.numel() > 1000 - 3 * 16
    assert not torch.equal(source.batch(7, 0, torch.arange(2)).inputs, source.batch(7, 1, torch.arange(2)).inputs)
    assert source.test_batch(torch.arange(1)).inputs[0, :3].tolist() == [60_000, 60_001, 60_002]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ("/missing/tokens", "config.data: /missing/tokens is no folder of tokens (FileNotFoundError"),
        ("few", "few has 5 training tokens, too few for a context of 16"),
        ("large", "train.npy holds token 9, the vocabulary is 9"),
    ],
)
def test_data_that_will_not_do_is_named(tmp_path, data, says):
    for name, text, vocabulary in (("few", [1] * 5, 9), ("large", [9] * 99, 9)):
        (tmp_path / name).mkdir()
        for side in ("train", "test"):
            np.save(tmp_path / name / f"{side}.npy", np.array(text, dtype=np.uint8))
        (tmp_path / name / tokens.ABOUT).write_text(json.dumps({"vocabulary": vocabulary, "digest": "d"}))
    with pytest.raises(BadConfig) as caught:
        tokens.load(str(tmp_path / data), 16, 10, CPU)
    assert says in str(caught.value)


def test_texts_are_packed_once_and_copies_share_a_side(tmp_path):
    (tmp_path / "texts" / "deeper").mkdir(parents=True)
    for number in range(60):
        (tmp_path / "texts" / f"{number}.txt").write_text(f"document {number}\n" * 3)
        (tmp_path / "texts" / "deeper" / f"{number}.txt").write_text(f"document {number}\n" * 3)
    out = tmp_path / "out"
    tokens.prepare(tmp_path / "texts", out)
    source = tokens.load(str(out), 16, 10, CPU)
    train, test = (set(bytes(side.numpy()).split(b"\n")) for side in (source.train, source.test))
    assert len(train | test) == 60 + 1 and train & test == {b""} and len(test) > 1
    with pytest.raises(BadConfig, match="not empty"):
        tokens.prepare(tmp_path / "texts", out)
    with pytest.raises(BadConfig, match="no files"):
        tokens.prepare(tmp_path / "nothing", tmp_path / "other")


def test_sizes_are_the_settings():
    assert set(gpt.SIZES) == set(get_args(get_type_hints(Transformer)["size"])) == set(GptSize)
