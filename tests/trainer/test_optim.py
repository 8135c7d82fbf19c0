"""The flat optimizers are torch.optim's, and a step that does not count leaves every bit."""

from __future__ import annotations

import warnings
from itertools import pairwise
from types import MappingProxyType

import pytest

torch = pytest.importorskip("torch")

from stoker_trainer import optim  # noqa: E402
from stoker_trainer.flat import FlatModel  # noqa: E402
from stoker_trainer.recipe import Group  # noqa: E402
from stoker_trainer.recipes.digit_net import DigitNet  # noqa: E402
from stoker_trainer.settings import Optimizer  # noqa: E402

pytestmark = pytest.mark.torch


def rule(**changes):
    base = {
        "name": "adamw",
        "learning_rate": 0.01,
        "weight_decay": 0.1,
        "momentum": 0.9,
        "beta2": 0.999,
        "schedule": "cosine",
        "warmup": 0.1,
        "cooldown": 0.2,
        "grad_clip": 1.0,
        "ema": 0.0,
    }
    base |= {"lr": "given", "scaling": "none", "base_batch": None}
    return Optimizer(**(base | changes))


def flat_net(seed=0, groups=MappingProxyType({"classify.weight": Group.DECAYED})):
    torch.manual_seed(seed)
    return FlatModel(DigitNet(8, 8, 10), 1, groups)


def test_the_models_tensors_are_views_of_the_buffers():
    flat = flat_net()
    flat.parameters.fill_(3.0)
    flat.gradient.fill_(2.0)
    for p in flat.module.parameters():
        assert bool((p == 3).all() and (p.grad == 2).all())
    assert sum(p.numel() for p in flat.module.parameters()) == flat.parameters.numel()


def test_autograd_adds_into_the_flat_gradient():
    flat = flat_net()
    plain = DigitNet(8, 8, 10)
    plain.load_state_dict(flat.module.state_dict())
    x = torch.randn(5, 1, 8, 8)
    flat.clear()
    for part in (x[:2], x[2:]):
        flat.module(part).square().sum().backward()
    plain(x).square().sum().backward()
    wanted = dict(plain.named_parameters())
    for name, p in flat.module.named_parameters():
        torch.testing.assert_close(p.grad, wanted[name].grad, rtol=1e-4, atol=1e-4)
    assert flat.gradient.abs().sum().item() > 0


@pytest.mark.parametrize(("name", "momentum"), [("adamw", 0.9), ("sgd", 0.9), ("sgd", 0.0)])
def test_updates_are_torchs(name, momentum):
    flat = flat_net()
    update = optim.build(rule(name=name, momentum=momentum), flat)
    twin = DigitNet(8, 8, 10)
    twin.load_state_dict(flat.module.state_dict())
    groups = [
        {"params": [p for p in twin.parameters() if p.ndim >= 2], "weight_decay": 0.1},
        {"params": [p for p in twin.parameters() if p.ndim < 2], "weight_decay": 0.0},
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch._dynamo's own, on import
        theirs = (
            torch.optim.AdamW(groups, lr=0.01)
            if name == "adamw"
            else torch.optim.SGD(groups, lr=0.01, momentum=momentum, nesterov=momentum > 0)
        )
    go = torch.tensor(True)
    for step in range(20):
        flat.clear()
        torch.manual_seed(step)
        for p, q in zip(flat.module.parameters(), twin.parameters(), strict=True):
            q.grad = torch.randn_like(q)
            p.grad.copy_(q.grad / 2)
        update.step(0.01 / (step + 1), go, torch.tensor(0.5))
        for group in theirs.param_groups:
            group["lr"] = 0.01 / (step + 1)
        theirs.step()
    for p, q in zip(flat.module.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=2e-5, atol=2e-6)


def test_a_group_says_what_decays():
    flat = flat_net(groups={"classify.weight": Group.PLAIN, "classify.bias": Group.DECAYED})
    update = optim.build(rule(weight_decay=0.1), flat)
    before = {name: p.detach().clone() for name, p in flat.module.named_parameters()}
    update.step(0.01, torch.tensor(True), torch.tensor(1.0))  # of no gradient: decay alone
    changed = {name for name, p in flat.module.named_parameters() if not torch.equal(p, before[name])}
    assert changed == {"convolutions.0.weight", "convolutions.4.weight", "classify.bias"}


@pytest.mark.parametrize("shape", [(3, 16, 16), (2, 8, 40), (2, 40, 8)])
def test_orthogonal_moves_singular_values_to_about_one(shape):
    torch.manual_seed(1)
    values = torch.linalg.svdvals(optim.orthogonal(torch.randn(shape)))
    assert values.min() > 0.5 and values.max() < 1.3
    assert not optim.orthogonal(torch.zeros(shape)).any()


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this torch has no Muon to compare with")
def test_muon_is_torchs_for_matrices_and_adamw_for_the_rest():
    flat, twin = flat_net(), DigitNet(8, 8, 10)
    twin.load_state_dict(flat.module.state_dict())
    update = optim.build(rule(name="muon", beta2=0.95), flat)
    matrices = [p for p in twin.convolutions.parameters() if p.ndim > 2]
    flattened = [torch.nn.Parameter(p.detach().flatten(1)) for p in matrices]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        muon = torch.optim.Muon(
            flattened, lr=0.01, weight_decay=0.1, momentum=0.9, adjust_lr_fn="match_rms_adamw", eps=1e-7
        )
        rest = [
            {"params": [twin.classify.weight], "weight_decay": 0.1},
            {"params": [p for p in twin.parameters() if p.ndim < 2], "weight_decay": 0.0},
        ]
        adamw = torch.optim.AdamW(rest, lr=0.01, betas=(0.9, 0.95))
    began = flat.parameters.clone()
    for step in range(5):
        torch.manual_seed(step)
        for p, q in zip(flat.module.parameters(), twin.parameters(), strict=True):
            q.grad = torch.randn_like(q)
            p.grad.copy_(q.grad * 4)
        for p, q in zip(flattened, matrices, strict=True):
            p.grad = q.grad.flatten(1)
        update.step(0.01, torch.tensor(True), torch.tensor(4.0))
        muon.step()
        adamw.step()
    for name, p in flat.module.named_parameters():
        theirs = dict(twin.named_parameters())[name]
        if any(theirs is q for q in matrices):  # torch's iterates in bfloat16
            theirs = next(f for f, q in zip(flattened, matrices, strict=True) if q is theirs).view_as(p)
            start = flat.views(began)[name]
            assert (p - theirs).norm() < 0.03 * (theirs - start).norm()
        else:
            torch.testing.assert_close(p, theirs, rtol=2e-5, atol=2e-6)


def test_an_average_is_one_of_running_statistics_too():
    net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))
    average = optim.Average(FlatModel(net), 0.5)
    assert sorted(average.buffers) == ["1.running_mean", "1.running_var"]
    wanted = net[1].running_mean.clone()
    for step, go in enumerate([True, False, True]):
        net[1].running_mean += 1.0
        average.update(average.share(step), torch.tensor(go))
        if go:
            wanted.lerp_(net[1].running_mean, 1 - min(0.5, (1 + step) / (10 + step)))
    torch.testing.assert_close(average.state()["1.running_mean"], wanted)
    own = net[1].running_mean.clone()
    with average.in_place():
        torch.testing.assert_close(net[1].running_mean, wanted)
    assert torch.equal(net[1].running_mean, own)
    average.restart()
    assert torch.equal(average.buffers["1.running_mean"], own)


def test_an_average_follows_the_weights_and_lends_itself():
    flat = flat_net()
    average = optim.Average(flat, 0.75)
    first, wanted = flat.parameters.clone(), flat.parameters.clone()
    for step, go in enumerate((True, True, False, True, True)):
        flat.parameters.normal_()
        average.update(average.share(step), torch.tensor(go))
        share = 1 - min(0.75, (1 + step) / (10 + step))
        wanted = (1 - share) * wanted + share * flat.parameters if go else wanted
    own = flat.parameters.clone()
    with average.in_place():
        torch.testing.assert_close(flat.parameters, wanted)
        assert not torch.equal(flat.parameters, first)
    assert torch.equal(flat.parameters, own)


@pytest.mark.parametrize("name", ["adamw", "sgd", "muon"])
@pytest.mark.parametrize("poison", [float("nan"), float("inf"), 1.0])
def test_a_skipped_step_changes_no_bit(name, poison):
    flat = flat_net()
    update = optim.build(rule(name=name), flat)
    flat.gradient.normal_()
    update.step(0.01, torch.tensor(True), torch.tensor(1.0))
    before = [flat.parameters.clone(), *(t.clone() for t in update.state().values())]
    flat.gradient.fill_(poison)
    update.step(0.01, torch.tensor(False), torch.tensor(1.0))
    after = [flat.parameters, *update.state().values()]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_the_learning_rate_warms_up_and_decays():
    r = rule(learning_rate=1.0, warmup=0.1)
    rates = [optim.learning_rate(r, step, 200) for step in range(200)]
    assert rates[0] == pytest.approx(1 / 20) and max(rates) == pytest.approx(1.0)
    top = rates.index(max(rates))
    assert 18 <= top <= 20
    assert all(a <= b for a, b in pairwise(rates[: top + 1]))
    assert all(a >= b for a, b in pairwise(rates[20:]))
    assert rates[-1] < 1e-3


@pytest.mark.parametrize(
    ("schedule", "wanted"),
    [
        ("constant", [0.5, 1, 1, 1, 1, 1, 1, 1]),
        ("linear", [0.5, 1, 1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6]),
        ("wsd", [0.5, 1, 1, 1, 1, 3 / 4, 2 / 4, 1 / 4]),
    ],
)
def test_schedules_by_steps(schedule, wanted):
    r = rule(learning_rate=1.0, schedule=schedule, warmup=2.0, cooldown=4.0)
    assert [optim.learning_rate(r, step, 8) for step in range(8)] == pytest.approx(wanted)
    shares = rule(learning_rate=1.0, schedule=schedule, warmup=0.25, cooldown=0.5)
    assert [optim.learning_rate(shares, step, 8) for step in range(8)] == pytest.approx(wanted)


@pytest.mark.parametrize("total", [1, 2, 3])
@pytest.mark.parametrize("warmup", [0.0, 0.1, 0.99])
def test_short_trainings_have_a_rate(total, warmup):
    rates = [optim.learning_rate(rule(warmup=warmup), step, total) for step in range(total)]
    assert all(0 < rate <= 0.01 for rate in rates)
