"""Recipes for text: they learn, an interruption changes no bit, data is found or named, the weights are of use."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import get_args, get_type_hints

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from stoker.spec.recipes import BertSize, GptSize, Seq2seqSize, resolve  # noqa: E402
from stoker_trainer import pairs, tokens  # noqa: E402
from stoker_trainer.errors import BadConfig  # noqa: E402
from stoker_trainer.recipes import bert, gpt, seq2seq  # noqa: E402
from stoker_trainer.recipes.settings import Decoder, Encoder, EncoderDecoder  # noqa: E402
from tests.trainer.conftest import STOPS, moments  # noqa: E402

pytestmark = pytest.mark.torch
CPU = torch.device("cpu")
UNIGRAM_NATS = 3.16  # the test loss of the best guess that looks at no other byte
TEXT = {"batchSize": 16, "steps": 80, "evalEverySteps": 40, "evalSamples": 64, "deterministic": True}
TEXT["optimizer"] = {"learningRate": 0.01}
RECIPES = {  # settings, a test loss that shows learning, a call of what stands beside the weights, its answer's length
    "gpt": (
        {"model": {"size": "tiny", "context": 64, "dropout": 0.1}},
        UNIGRAM_NATS - 0.1,
        "generate(b'def ', 20)",
        24,
    ),
    "lstm": ({"model": {"width": 64, "context": 64, "dropout": 0.1}}, UNIGRAM_NATS - 0.3, "generate(b'def ', 20)", 24),
    "bert": ({"data": "runs", "model": {"size": "tiny", "context": 32}}, 1.0, "restore([3, 3, 3, 3], [1])", 1),
    "seq2seq": (
        {"data": "reverse", "model": {"size": "tiny", "context": 12}, "batchSize": 64, "steps": 100},
        1.0,
        "predict('stoker')[:3]",
        3,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES)
def test_it_learns_and_its_weights_are_of_use(run, make_config, recipe):
    settings, learned, call, length = RECIPES[recipe]
    config = make_config() | {"recipe": recipe, "config": resolve(recipe, TEXT | settings)}
    codes, outputs = run.run(config, STOKER_TRACE_FILE="")
    assert codes == [0], outputs
    summary = run.progress()["summary"]
    assert summary["best"].keys() == {"loss", "accuracy"} and summary["metrics"]["loss"] < learned
    script = f"import os, sys; os.chdir({str(run.folder / 'output')!r}); sys.path[:0] = ['.']; "
    script += f"from load_example import *; print(len({call}), 'stoker_trainer' in sys.modules, flush=True); "
    _, [out] = run.run({}, 1, script + "os._exit(0)")
    assert out.split() == [str(length), "False"]


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("stops", STOPS)
@pytest.mark.parametrize("recipe", RECIPES)
def test_interruptions_change_no_bit(run, make_config, recipe, ranks, stops):
    steps = max(24, 5 * stops)
    settings = TEXT | RECIPES[recipe][0] | {"steps": steps, "evalEverySteps": 8, "evalSamples": 8, "batchSize": 8}
    config = make_config() | {"recipe": recipe, "config": resolve(recipe, settings)}
    whole, parts = run.whole_and_interrupted(config, ranks, at=moments(stops, steps, recipe, ranks))
    assert parts == whole and whole[-1]["step"] == steps


def test_bert_hides_the_same_share_of_each_sample_and_scores_only_that(make_training):
    settings = {"model": {"size": "tiny", "context": 64}, "hidden": 0.25}
    training = make_training(None, recipe="bert", config=resolve("bert", TEXT | settings))
    batch = training.data.batch(1, 2, torch.arange(400))
    shown, hidden = training.recipe.hide(batch)
    again, _ = training.recipe.hide(training.data.batch(1, 2, torch.arange(200, 400)))
    assert torch.equal(shown[200:], again)
    assert hidden.shape == (400, 16) and all(len(set(row)) == 16 for row in hidden.tolist())
    changed = shown != batch.inputs
    elsewhere = torch.ones_like(changed).scatter(1, hidden, False)
    assert not (changed & elsewhere).any()
    assert (shown == 256).sum().item() / hidden.numel() == pytest.approx(0.8, abs=0.02)
    assert changed.sum().item() / hidden.numel() == pytest.approx(0.9, abs=0.02)
    assert training.recipe.loss(batch)[1] == hidden.numel()


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
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "input.txt").write_bytes(bytes(range(200)) * 10)
    tokens.prepare(tmp_path / "one", tmp_path / "of one")
    source = tokens.load(str(tmp_path / "of one"), 16, 10, CPU)
    assert (len(source.train), len(source.test)) == (1800, 200)
    with pytest.raises(BadConfig, match="not empty"):
        tokens.prepare(tmp_path / "texts", out)
    with pytest.raises(BadConfig, match="no files"):
        tokens.prepare(tmp_path / "nothing", tmp_path / "other")


def test_sizes_are_the_settings():
    kinds = (
        (gpt.SIZES, Decoder, GptSize),
        (bert.SIZES, Encoder, BertSize),
        (seq2seq.SIZES, EncoderDecoder, Seq2seqSize),
    )
    for sizes, model, spec in kinds:
        assert set(sizes) == set(get_args(get_type_hints(model)["size"])) == set(spec)


def test_pairs_are_packed_and_only_their_own_tokens_count(make_training, tmp_path):
    lines = [f"text {n}\t{'t' * (n % 7)}" for n in range(50)] + ["a text that is too long for this context\tt"]
    (tmp_path / "pairs.tsv").write_text("\n".join(lines))
    pairs.prepare(tmp_path / "pairs.tsv", tmp_path / "out")
    settings = {"data": str(tmp_path / "out"), "model": {"size": "tiny", "context": 12}}
    training = make_training(recipe="seq2seq", config=resolve("seq2seq", settings))
    source = training.data
    assert (len(source.train) + len(source.test), source.dropped) == (50, 1) and len(source.test) >= 5
    batch = source.batch(1, 0, torch.arange(source.train_rows))
    count = training.recipe.loss(batch)[1]
    assert count.item() == (batch.targets != pairs.END).sum().item() + len(batch.targets)
    some = source.batch(1, 0, torch.arange(4))
    trimmed = replace(some, inputs=some.inputs[:, :9], targets=some.targets[:, :9])
    torch.testing.assert_close(training.recipe.loss(trimmed)[0], training.recipe.loss(some)[0])
    (tmp_path / "bad.tsv").write_text("a\tb\nno pair\n")
    for given, says in (("bad.tsv", "line 2 of .* is not a text, one tab"), ("missing", "prepare: .*No such file")):
        with pytest.raises(BadConfig, match=says):
            pairs.prepare(tmp_path / given, tmp_path / "other")
    with pytest.raises(BadConfig, match="is no folder of pairs"):
        pairs.load(str(tmp_path), 12, 10, CPU)
