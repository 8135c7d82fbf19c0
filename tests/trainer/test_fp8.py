"""Products in 8 bits: near those in 16, refused without the hardware, resumed bit by bit (here on the CPU's own
`_scaled_mm`, which rounds as a GPU's does)."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from stoker.spec.recipes import resolve  # noqa: E402
from stoker_trainer import fp8  # noqa: E402
from stoker_trainer.distributed import Vote  # noqa: E402
from stoker_trainer.errors import BadConfig  # noqa: E402
from stoker_trainer.evaluate import evaluate  # noqa: E402
from stoker_trainer.step import train_step  # noqa: E402

pytestmark = pytest.mark.torch
TEXT = {"model": {"size": "tiny", "context": 16}, "batchSize": 8, "steps": 6, "evalEverySteps": 6, "evalSamples": 32}
ANYWHERE = "import stoker_trainer.fp8 as fp8\nfp8.check = lambda device: None\n"


@pytest.fixture
def anywhere(monkeypatch):
    monkeypatch.setattr(fp8, "check", lambda device: None)


@pytest.mark.parametrize("rows", [32, 37, 1])
@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
def test_products_and_gradients_are_near_the_true_ones(rows, size):
    numbers = torch.Generator().manual_seed(rows)
    x = (size * torch.randn(rows, 48, generator=numbers)).bfloat16().requires_grad_()
    weight = torch.randn(32, 48, generator=numbers).requires_grad_()
    outer = (torch.randn(rows, 32, generator=numbers) / size).bfloat16()
    y = fp8.product(x, weight)
    y.backward(outer)
    assert (y.dtype, x.grad.dtype, weight.grad.dtype) == (torch.bfloat16, torch.bfloat16, torch.float32)
    wide, g = x.detach().float(), outer.float()
    # e4m3 rounds by at most 1/16 of a number, e5m2 by 1/8; in a sum of independent ones much of it cancels out.
    for got, want, most in (
        (y, wide @ weight.detach().T, 0.06),
        (x.grad, g @ weight.detach(), 0.11),
        (weight.grad, g.T @ wide, 0.11),
    ):
        assert ((got.float() - want).norm() / want.norm()).item() < most


def test_rounding_takes_the_whole_range_and_keeps_what_is_not_finite():
    for kind, largest in ((fp8.E4M3, 448.0), (fp8.E5M2, 57344.0)):
        low, scale = fp8.rounded(torch.tensor([1e-3, -7.0, 0.5]), kind)
        assert low.dtype == kind and low.float().abs().max() == largest
        assert (low.float() * scale)[1] == pytest.approx(-7.0)
        assert torch.equal(fp8.rounded(torch.zeros(3), kind)[0].float(), torch.zeros(3))
    for bad in (float("inf"), float("nan")):
        low, _ = fp8.rounded(torch.tensor([1.0, bad]), fp8.E5M2)
        assert not torch.isfinite(low.float()).all()


@pytest.mark.parametrize(("recipe", "layers"), [("gpt", 8), ("bert", 8), ("seq2seq", None)])
def test_it_learns_as_bf16_does(make_training, anywhere, monkeypatch, recipe, layers):
    """Only the blocks' linear layers, and only while they train."""
    products, real = [], torch._scaled_mm
    monkeypatch.setattr(torch, "_scaled_mm", lambda *args, **how: products.append(1) or real(*args, **how))
    losses, settings = {}, {"model": TEXT["model"]}
    for kind in ("bf16", "fp8"):
        training = make_training(recipe=recipe, config=resolve(recipe, settings | {"batchSize": 16}), precision=kind)
        products.clear()
        train_step(training, torch.arange(16), Vote())
        inside = [m for block in training.recipe.blocks for m in block.modules() if isinstance(m, torch.nn.Linear)]
        assert len(products) == (3 * len(inside) if kind == "fp8" else 0) and len(inside) == (layers or len(inside))
        for step in range(15):
            train_step(training, torch.arange(16), Vote())
            training.cursor.step = 100 + step  # past the warm-up
        products.clear()
        assert evaluate(training, lambda: None)["loss"] > 0 and not products
        losses[kind] = training.loss.item()
    assert losses["fp8"] == pytest.approx(losses["bf16"], rel=0.05)


def test_a_gradient_that_is_not_finite_skips_the_step(make_training, anywhere):
    training = make_training(recipe="gpt", config=resolve("gpt", {"model": TEXT["model"]}), precision="fp8")
    before = training.flat.parameters.clone()
    training.net.blocks[1].register_full_backward_hook(lambda module, into, out: (into[0] * float("inf"),))
    train_step(training, torch.arange(8), Vote())
    assert training.scaler.skipped() == 1 and torch.equal(training.flat.parameters, before)


@pytest.mark.parametrize(("ranks", "more"), [(1, {"activationCheckpointing": True}), (2, {})])
def test_a_resume_keeps_every_bit(run, make_config, ranks, more):
    config = make_config(recipe="gpt", config=resolve("gpt", TEXT | more), precision="fp8")
    whole, parts = run.whole_and_interrupted(config, ranks, 3, ANYWHERE)
    assert parts == whole and len([line for line in whole if "evaluation" not in line]) == 6


def test_without_the_hardware_or_the_layers_it_is_refused(make_training, monkeypatch):
    with pytest.raises(BadConfig, match="or newer, and this rank trains on the CPU"):
        make_training(recipe="gpt", config=resolve("gpt", TEXT), precision="fp8")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA A100")
    with pytest.raises(BadConfig, match=r"NVIDIA A100 has 8\.0: take bf16"):
        fp8.check(torch.device("cuda", 0))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 9))
    fp8.check(torch.device("cuda", 0))
    monkeypatch.setattr(fp8, "check", lambda device: None)
    with pytest.raises(BadConfig, match="the recipe image-classification has no linear layers that can run in fp8"):
        make_training(precision="fp8")
