"""Random numbers are a function of (seed, epoch, sample, purpose): neither rank, world nor micro-batch can show."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from stoker_trainer.augment import Scaling, affine_matrices, augmented, normalised  # noqa: E402
from stoker_trainer.counter import Purpose, keep_mask, order, uniforms, words  # noqa: E402
from stoker_trainer.recipes.settings import Augment  # noqa: E402
from tests.support.examples import examples  # noqa: E402

pytestmark = pytest.mark.torch
SCALING = Scaling(255, 0.2, 0.3)
RULE = Augment(shift=1.0, rotate=10.0, scale=0.1)
samples = st.lists(st.integers(0, 2**40), min_size=1, max_size=30)


@examples(50)
@given(rows=samples, seed=st.integers(0, 2**31 - 1), epoch=st.integers(0, 10**6), cut=st.integers(0, 30))
def test_draws_do_not_depend_on_the_company(rows, seed, epoch, cut):
    all_rows = torch.tensor(rows)
    whole = uniforms(seed, epoch, Purpose.AUGMENT, all_rows, 5)
    parts = [uniforms(seed, epoch, Purpose.AUGMENT, part, 5) for part in (all_rows[:cut], all_rows[cut:])]
    assert torch.equal(whole, torch.cat(parts))
    assert bool((whole >= 0).all() and (whole < 1).all())


@examples(20)
@given(cut=st.integers(1, 15), epoch=st.integers(0, 1000))
def test_augmented_images_do_not_depend_on_the_micro_batch(cut, epoch):
    images = torch.randint(0, 256, (16, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    rows = torch.arange(100, 116)
    whole = augmented(images, rows, 9, epoch, RULE, SCALING)
    cuts = [augmented(images[s], rows[s], 9, epoch, RULE, SCALING) for s in (slice(0, cut), slice(cut, None))]
    assert torch.equal(whole, torch.cat(cuts))


def test_words_are_splitmix64():
    """Against the generator written down in plain integers."""
    mask = 2**64 - 1

    def mix(x):
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
        return x ^ (x >> 31)

    gamma = 0x9E3779B97F4A7C15
    got = words(5, 7, Purpose.AUGMENT, torch.tensor([11]), 3)[0].tolist()

    def mix_in(x):
        return mix((x + gamma) & mask)

    start = mix_in(mix_in(mix_in(5) ^ 7) ^ 2)
    key = mix((11 * gamma + start) & mask)
    want = [mix((key + n * gamma) & mask) for n in (1, 2, 3)]
    assert [x & mask for x in got] == want


def test_epochs_seeds_and_purposes_differ():
    rows = torch.arange(64)
    draws = [words(seed, epoch, purpose, rows, 4) for seed in (1, 2) for epoch in (0, 1) for purpose in Purpose]
    for i, a in enumerate(draws):
        for b in draws[:i]:
            assert not bool((a == b).any())


def test_uniforms_are_uniform():
    draws = uniforms(1, 0, Purpose.AUGMENT, torch.arange(20_000), 8).double()
    n = draws.numel()
    assert abs(draws.mean().item() - 0.5) < 5 / math.sqrt(12 * n)
    counts = torch.histc(draws.float(), 64, 0, 1)
    chi2 = ((counts - n / 64) ** 2 / (n / 64)).sum().item()
    assert chi2 < 63 + 6 * math.sqrt(2 * 63)
    neighbours = torch.corrcoef(draws.T)
    assert (neighbours - torch.eye(8)).abs().max().item() < 0.05


@pytest.mark.parametrize("dropout", [0.1, 0.25, 0.5, 0.9])
def test_dropout_keeps_the_right_share_and_the_mean(dropout):
    keep = keep_mask(1, 0, torch.arange(2000), 101, dropout)
    assert keep.shape == (2000, 101)
    assert keep.unique().tolist() == pytest.approx([0.0, 1 / (1 - dropout)])
    sigma = math.sqrt(dropout * (1 - dropout) / keep.numel())
    assert abs((keep == 0).double().mean().item() - dropout) < 5 * sigma


def test_the_order_is_a_permutation_that_changes_with_the_epoch():
    orders = [order(1, epoch, 1437, torch.device("cpu")) for epoch in range(3)]
    for o in orders:
        assert torch.equal(o.sort().values, torch.arange(1437))
    assert not torch.equal(orders[0], orders[1])


def test_no_change_is_no_change():
    images = torch.randint(0, 256, (4, 28, 28), dtype=torch.uint8)
    still = augmented(images, torch.arange(4), 1, 0, Augment(shift=0.0, rotate=0.0, scale=0.0), SCALING)
    assert torch.equal(still, normalised(images, SCALING))


def test_a_full_draw_shifts_by_whole_pixels():
    rule = Augment(shift=2.0, rotate=0.0, scale=0.0)
    matrix = affine_matrices(torch.tensor([[0.0, 0.0, 1.0, 0.0]]), rule, 8, 8)
    x = torch.rand(1, 1, 8, 8)
    grid = torch.nn.functional.affine_grid(matrix, [1, 1, 8, 8], align_corners=False)
    moved = torch.nn.functional.grid_sample(x, grid, align_corners=False)
    assert torch.allclose(moved[..., :6], x[..., 2:], atol=1e-5)
    assert moved[..., 6:].abs().max().item() < 1e-5
