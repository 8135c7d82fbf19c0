"""Number formats: which type the convolutions really run in, and a loss scale that falls, recovers and gives up."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from stoker_trainer import precision  # noqa: E402
from stoker_trainer.distributed import Vote  # noqa: E402
from stoker_trainer.precision import LossScaler, resolve  # noqa: E402
from stoker_trainer.step import train_step  # noqa: E402

pytestmark = pytest.mark.torch
CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("name", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)]
)
def test_convolutions_run_in_the_named_type(make_training, name, dtype):
    training = make_training({"model": {"width": 4}, "batchSize": 8}, precision=name)
    seen = []
    for module in training.net.modules():
        if isinstance(module, torch.nn.Conv2d):
            module.register_forward_hook(lambda m, args, out: seen.append(out.dtype))
    train_step(training, torch.arange(8), Vote())
    assert seen == [dtype, dtype]
    assert all(p.dtype == torch.float32 for p in training.net.parameters())
    assert training.loss.dtype == torch.float32
    assert torch.isfinite(training.loss).item()


@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_sixteen_bits_learn_as_fp32_does(make_training, name):
    losses = {}
    for kind in ("fp32", name):
        training = make_training({"model": {"width": 4}, "batchSize": 16}, precision=kind)
        for step in range(12):
            train_step(training, torch.arange(16), Vote())
            training.cursor.step = 100 + step  # past the warm-up
        losses[kind] = training.loss.item()
    assert losses[name] == pytest.approx(losses["fp32"], rel=0.05)


def test_auto_is_fp32_on_the_cpu():
    assert resolve("auto", CPU) == "fp32"
    assert resolve("tf32", CPU) == "fp32"
    assert resolve("bf16", CPU) == "bf16"


@pytest.mark.parametrize(
    ("asked", "capability", "want"),
    [
        ("auto", (7, 5), "fp16"),
        ("auto", (8, 0), "bf16"),
        ("auto", (9, 0), "bf16"),
        ("tf32", (7, 5), "fp32"),
        ("tf32", (8, 0), "tf32"),
    ],
)
def test_what_is_asked_on_cuda_depends_on_the_capability(monkeypatch, asked, capability, want):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert resolve(asked, torch.device("cuda", 0)) == want


@pytest.mark.parametrize(("on", "arithmetic"), [(True, "tf32"), (False, "ieee")])
def test_tf32_is_switched_for_products_and_cudnn_alike(on, arithmetic):
    backends = torch.backends
    new = hasattr(backends.cudnn, "conv")
    products = (backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn) if new else ()
    before = [product.fp32_precision for product in products]
    try:
        precision.switch_tf32(on)
        if new:
            assert {product.fp32_precision for product in products} == {arithmetic}
        else:
            assert backends.cuda.matmul.allow_tf32 == backends.cudnn.allow_tf32 == on
    finally:
        for product, was in zip(products, before, strict=True):
            product.fp32_precision = was


def feed(scaler, flags):
    for flag in flags:
        scaler.update(torch.tensor(flag))


def test_the_scale_halves_on_each_bad_step_and_doubles_after_good_ones():
    scaler = LossScaler("fp16", CPU, growth_steps=7)
    feed(scaler, [False, False])
    assert scaler.scale.item() == precision.FIRST_SCALE / 4
    feed(scaler, [True] * 7)
    assert scaler.scale.item() == precision.FIRST_SCALE / 2
    feed(scaler, [True] * 6 + [False])
    assert scaler.scale.item() == precision.FIRST_SCALE / 4
    assert scaler.skipped() == 3


def test_the_scale_has_a_floor_and_a_ceiling():
    scaler = LossScaler("fp16", CPU, growth_steps=7)
    feed(scaler, [False] * 40)
    assert scaler.scale.item() == precision.SCALE_FLOOR
    feed(scaler, [True] * 7 * 40)
    assert scaler.scale.item() == precision.HIGHEST_SCALE


def test_fp16_is_hopeless_only_at_the_floor():
    scaler = LossScaler("fp16", CPU, growth_steps=7)
    halvings = 16  # from 2**16 to the floor of 1
    feed(scaler, [False] * (halvings + precision.BAD_STEPS - 1))
    assert not scaler.too_many_skipped()
    feed(scaler, [False])
    assert scaler.too_many_skipped()


@pytest.mark.parametrize("name", ["fp32", "bf16"])
def test_without_a_scale_a_row_of_bad_steps_is_hopeless(name):
    scaler = LossScaler(name, CPU, growth_steps=7)
    feed(scaler, [False] * (precision.BAD_STEPS - 1) + [True] + [False] * (precision.BAD_STEPS - 1))
    assert not scaler.too_many_skipped()
    feed(scaler, [False])
    assert scaler.too_many_skipped()
    assert scaler.scale.item() == 1.0


def test_a_gradient_that_is_not_finite_changes_no_weight(make_training):
    training = make_training({"model": {"width": 4}, "batchSize": 8}, precision="fp16")
    before = training.flat.parameters.clone()
    training.scaler.scale.fill_(1e38)  # the scaled loss overflows
    train_step(training, torch.arange(8), Vote())
    assert torch.equal(training.flat.parameters, before)
    assert training.scaler.skipped() == 1
    assert torch.isfinite(training.loss).item()
