"""Cross-entropy by chunks: the loss and gradients of the plain way, without its memory."""

from __future__ import annotations

import json

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402

from stoker.spec.recipes import resolve  # noqa: E402
from stoker_trainer import cross_entropy, tokens  # noqa: E402

pytestmark = pytest.mark.torch
N, W, V = 50, 8, 32


class Largest(TorchFunctionMode):
    """The most numbers in one tensor that a call of torch returned. (A dispatch mode would import torch's compiler.)"""

    numbers = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor):
            self.numbers = max(self.numbers, out.numel())
        return out


def plain(x, weight, bias, targets):
    scores = F.linear(x, weight, bias).float()
    return F.cross_entropy(scores, targets, reduction="sum")


@pytest.mark.parametrize(("dtype", "near"), [(None, 1e-5), (torch.bfloat16, 0.02), (torch.float16, 0.003)])
@pytest.mark.parametrize("chunk", [V * 7, V * N], ids=["chunks", "one piece"])
@pytest.mark.parametrize("biased", [False, True])
def test_loss_and_gradients_are_those_of_the_plain_way(monkeypatch, dtype, near, chunk, biased):
    monkeypatch.setattr(cross_entropy, "_CPU_CHUNK", chunk)
    torch.manual_seed(1)
    x, weight = torch.randn(N, W), torch.randn(V, W)
    inputs = [x, weight, torch.randn(V)] if biased else [x, weight]
    targets, found = torch.randint(V, (N,)), []
    for compute in (plain, cross_entropy.loss):
        leaves = [tensor.clone().requires_grad_() for tensor in inputs]
        with torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
            loss = compute(*leaves, *([] if biased else [None]), targets)
        (loss * 3 / N).backward()
        found.append([loss.detach() / N, *(leaf.grad for leaf in leaves)])
    for ours, wanted in zip(found[1], found[0], strict=True):
        assert ours.dtype == wanted.dtype
        torch.testing.assert_close(ours, wanted, rtol=near, atol=near * wanted.abs().max().item())
    scored = cross_entropy.score(*inputs, *([] if biased else [None]), targets)
    torch.testing.assert_close(scored[0] / N, found[0][0], rtol=max(near, 1e-5), atol=near)
    assert scored[1] == (F.linear(*inputs).argmax(-1) == targets).sum()


@pytest.mark.parametrize("recipe", ["gpt", "bert", "lstm"])
def test_no_training_or_evaluation_makes_all_scores(make_training, monkeypatch, tmp_path, recipe):
    for side in ("train", "test"):
        np.save(tmp_path / f"{side}.npy", np.arange(2000, dtype=np.uint16) % 1024)
    (tmp_path / tokens.ABOUT).write_text(json.dumps({"vocabulary": 1024, "digest": "d"}))
    settings = {
        "data": str(tmp_path),
        "model": {"context": 32} | ({"width": 16} if recipe == "lstm" else {"size": "tiny"}),
    }
    settings |= {"hidden": 0.9} if recipe == "bert" else {}
    training = make_training(None, recipe=recipe, config=resolve(recipe, settings))
    batch, sizes = training.data.batch(1, 0, torch.arange(32)), []
    for chunk in (1 << 30, 1024 * 16):
        monkeypatch.setattr(cross_entropy, "_CPU_CHUNK", chunk)
        with Largest() as seen:
            training.recipe.loss(batch)[0].backward()
        with Largest() as evaluated, torch.no_grad():
            training.recipe.score(batch)
        sizes.append((seen.numbers, evaluated.numbers))
    scores = training.recipe.units * 32 * 1024
    assert min(sizes[0]) >= scores > max(sizes[1])
