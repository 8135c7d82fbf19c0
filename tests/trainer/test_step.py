"""One step: the gradient is the global batch's whatever its split; memory that runs out costs speed, not samples."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from stoker_trainer import step as steps  # noqa: E402
from stoker_trainer.augment import augmented  # noqa: E402
from stoker_trainer.counter import keep_mask  # noqa: E402
from stoker_trainer.distributed import Vote  # noqa: E402
from stoker_trainer.errors import OutOfMemory  # noqa: E402
from stoker_trainer.recipes import RECIPES  # noqa: E402
from stoker_trainer.step import share, train_step  # noqa: E402
from stoker_trainer.trace import digests  # noqa: E402
from tests.trainer import test_toy_recipe  # noqa: E402

pytestmark = pytest.mark.torch
ROWS = torch.arange(50, 77)


@given(world=st.integers(1, 64), count=st.integers(0, 500))
def test_shares_are_even_and_complete(world, count):
    parts = [share(rank, world, count) for rank in range(world)]
    assert [i for part in parts for i in range(count)[part]] == list(range(count))
    sizes = [part.stop - part.start for part in parts]
    assert max(sizes) - min(sizes) <= 1


def plain_gradient(training, rows):
    """The same batch by plain torch, in one piece."""
    net, recipe, data = training.net, training.config.config, training.data
    parameters = list(net.parameters())
    images = augmented(data.train_images[rows], rows, recipe.seed, 0, recipe.augment, data.scaling)
    keep = keep_mask(recipe.seed, 0, rows, net.features, recipe.model.dropout)
    loss = torch.nn.functional.cross_entropy(
        net(images, keep), data.train_labels[rows], label_smoothing=recipe.label_smoothing
    )
    return loss, torch.autograd.grad(loss, parameters)


@pytest.mark.parametrize("micro", [27, 10, 4, 1])
def test_any_micro_batch_gives_the_global_batchs_gradient(make_training, small, micro):
    training = make_training(small | {"optimizer": {"gradClip": 0}})
    training.micro_batch = micro
    loss, wanted = plain_gradient(training, ROWS)
    train_step(training, ROWS, Vote())
    assert training.loss.item() == pytest.approx(loss.item(), rel=1e-5)
    for p, g in zip(training.net.parameters(), wanted, strict=True):
        torch.testing.assert_close(p.grad, g, rtol=1e-4, atol=1e-5)


def test_clipping_bounds_the_norm(make_training, small):
    training = make_training(small | {"optimizer": {"gradClip": 0.01}})
    train_step(training, ROWS, Vote())
    assert training.gradient_norm.item() > 0.01
    assert training.flat.gradient.norm().item() == pytest.approx(0.01, rel=1e-3)


def limit_memory(monkeypatch, most):
    """Micro-batches over `most` samples run out of memory, after half of their work."""
    real, sizes = steps.backward, []

    def backward(training, rows, total):
        sizes.append(len(rows))
        if len(rows) > most:
            real(training, rows[: (len(rows) + 1) // 2], total)
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        real(training, rows, total)

    monkeypatch.setattr(steps, "backward", backward)
    return sizes


@pytest.mark.parametrize("recipe", ["image-classification", "toy"])
def test_out_of_memory_halves_the_micro_batch_and_changes_nothing_else(make_training, small, monkeypatch, recipe):
    """The toy has BatchNorm and torch's dropout: the step begins again with the buffers and generators it had."""

    monkeypatch.setitem(RECIPES, "toy", test_toy_recipe.ENTRY)

    def make():
        return make_training(small) if recipe != "toy" else make_training(recipe="toy", config=test_toy_recipe.SETTINGS)

    wanted = make()
    wanted.micro_batch = 7
    train_step(wanted, ROWS, Vote())
    training = make()
    training.micro_batch = 27
    limit_memory(monkeypatch, 10)
    train_step(training, ROWS, Vote())
    assert training.micro_batch == 7 and training.loss.item() == wanted.loss.item()
    assert digests(training) == digests(wanted)


def test_out_of_memory_at_one_sample_is_the_end(make_training, small, monkeypatch):
    training = make_training(small)
    sizes = limit_memory(monkeypatch, 0)
    with pytest.raises(OutOfMemory):
        train_step(training, ROWS, Vote())
    assert sizes[-1] == 1 and training.micro_batch == 1


def test_other_errors_are_not_taken_for_a_lack_of_memory(make_training, small, monkeypatch):
    def backward(*args):
        raise RuntimeError("shape mismatch")

    monkeypatch.setattr(steps, "backward", backward)
    with pytest.raises(RuntimeError, match="shape mismatch"):
        train_step(make_training(small), ROWS, Vote())
