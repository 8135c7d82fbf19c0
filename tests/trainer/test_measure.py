"""What a training measures of itself: phases, arithmetic, energy, and the verdict."""

from __future__ import annotations

import sys
import types

import pytest

torch = pytest.importorskip("torch")

from stoker.spec.recipes import resolve  # noqa: E402
from stoker_trainer import measure  # noqa: E402
from stoker_trainer.distributed import Vote  # noqa: E402
from stoker_trainer.measure import Energy, datasheet_flops, flops_of_sample, product_flops, verdict  # noqa: E402
from stoker_trainer.step import train_step  # noqa: E402

pytestmark = pytest.mark.torch
CPU = torch.device("cpu")


def phases(data=0.0, forward_backward=0.0, reduce=0.0, update=0.0):
    return {"data": data, "forward_backward": forward_backward, "reduce": reduce, "update": update}


@pytest.mark.parametrize(
    ("took", "idle", "of_product", "bound", "because"),
    [
        (phases(3, 6, 0, 1), 0.9, None, "input", "30% of a step is making the batch"),
        (phases(3, 3, 4, 0), None, 0.5, "communication", "40% of a step is adding up gradients"),
        (phases(1, 8, 0, 1), 0.5, 0.1, "launch", "before 50% of the steps the GPU had run out of work"),
        (phases(1, 8, 0, 1), 0.4, 0.35, "compute", "80% of a step is forward and backward, at 35% of a large"),
        (phases(1, 8, 0, 1), None, None, "compute", "80% of a step is forward and backward"),
    ],
)
def test_the_verdict_names_the_largest_cause(took, idle, of_product, bound, because):
    found = verdict(took, idle, of_product)
    assert found.bound == bound and found.because.startswith(because)


def test_before_the_first_step_there_is_no_verdict():
    assert verdict(phases(), None, None) is None


def test_phases_add_up_to_the_steps(make_training):
    now = iter(range(100))
    training = make_training({"model": {"width": 4}, "batchSize": 8})
    training.clock = measure.Clock(CPU, lambda: next(now))
    training.micro_batch = 4
    train_step(training, torch.arange(8), Vote())
    assert training.clock.read() == phases(2, 2, 1, 1)


@pytest.mark.parametrize(
    ("recipe", "settings", "wanted"),
    [
        # 2 layers of 12 width² and the output, each token; attention: 4 T² W a layer; three times for backward.
        ("gpt", {"size": "tiny", "context": 16}, 3 * (2 * 16 * (2 * 12 * 64**2 + 256 * 64) + 2 * 4 * 16**2 * 64)),
        ("lstm", {"width": 8, "context": 16}, 3 * 2 * 16 * (2 * 4 * 8 * 8 + 256 * 8)),
        ("image-classification", {"width": 4}, 3 * 2 * (25 * 4 * 64 + 9 * 4 * 8 * 16 + 128 * 10)),
    ],
)
def test_operations_are_those_of_the_formula(make_training, recipe, settings, wanted):
    training = make_training(None, recipe=recipe, config=resolve(recipe, {"model": settings}))
    before = torch.get_rng_state()
    assert flops_of_sample(training.recipe, training.data, CPU) == wanted
    assert torch.equal(torch.get_rng_state(), before) and training.net.training
    assert product_flops("fp32", CPU) > 0


@pytest.mark.parametrize(
    ("gpu", "precision", "tflops"),
    [
        ("NVIDIA H100 80GB HBM3", "bf16", 989),
        ("NVIDIA H100 PCIe", "fp16", 756),
        ("NVIDIA H200", "tf32", 495),
        ("NVIDIA A100-SXM4-80GB", "fp32", 19.5),
        ("NVIDIA L4", "bf16", 121),
        ("NVIDIA A10", "bf16", 125),
    ],
)
def test_peaks_go_by_the_gpus_name(gpu, precision, tflops):
    assert datasheet_flops(gpu, precision) == tflops * 1e12
    assert datasheet_flops("NVIDIA A30", "bf16") is None


def test_energy_is_the_counters_difference_and_unknown_without_nvml(monkeypatch):
    cuda, counter = torch.device("cuda", 0), iter([5_000, 7_500, 9_000])
    nvml = types.SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByUUID=lambda uuid: uuid,
        nvmlDeviceGetTotalEnergyConsumption=lambda handle: next(counter),
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: types.SimpleNamespace(uuid="1"))
    energy = Energy(cuda)
    assert (energy.joules(), energy.joules()) == (2.5, 1.5)
    assert energy.joules() != energy.joules(), "the counter is gone: not a number"
    assert Energy(CPU).joules() != 0.0
