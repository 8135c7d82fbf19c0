"""A rank that was promised a GPU never trains on the CPU instead."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from stoker_trainer.distributed import Place  # noqa: E402
from stoker_trainer.errors import BadConfig, DeviceUnavailable  # noqa: E402
from stoker_trainer.training import device_for  # noqa: E402

pytestmark = pytest.mark.torch
CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("name", "visible", "local_rank", "env", "outcome"),
    [
        ("no GPU promised, none there", 0, 0, {}, CPU),
        ("an empty promise", 0, 1, {"STOKER_GPU_UUIDS": "", "STOKER_GPUS": "0"}, CPU),
        ("simulated GPUs", 0, 1, {"STOKER_GPU_UUIDS": "SIM-0,SIM-1", "STOKER_SIMULATED_GPUS": "1"}, CPU),
        ("promised, and the driver is dead", 0, 0, {"STOKER_GPU_UUIDS": "GPU-a"}, DeviceUnavailable),
        ("promised, and the runtime names none", 0, 0, {"STOKER_GPUS": "1"}, DeviceUnavailable),
        ("one of two is gone", 1, 1, {"STOKER_GPU_UUIDS": "GPU-a,GPU-b"}, DeviceUnavailable),
        ("counted, and does not answer", 1, 0, {"STOKER_GPU_UUIDS": "GPU-a"}, DeviceUnavailable),
        ("more ranks than GPUs", 1, 1, {"STOKER_GPU_UUIDS": "GPU-a"}, BadConfig),
    ],
)
def test_a_ranks_device(monkeypatch, name, visible, local_rank, env, outcome):
    if torch.cuda.is_available():
        pytest.skip("a GPU answers here")
    if visible > local_rank and torch.version.cuda is None:
        pytest.skip("a torch without CUDA counts no GPU")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: visible > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: visible)
    place = Place(local_rank, local_rank, local_rank + 1)
    if isinstance(outcome, torch.device):
        assert device_for(env, place) == outcome, name
    else:
        with pytest.raises(outcome):
            device_for(env, place)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU answers here")
@pytest.mark.slow
def test_a_missing_gpu_is_exit_79_and_one_line(run, make_config, small):
    codes, outputs = run.run(make_config(small), STOKER_GPU_UUIDS="GPU-deadbeef")
    assert codes == [79] and not run.trace()
    assert "torch sees 0 of this worker's 1 GPUs (GPU-deadbeef)" in outputs[0].splitlines()[-1]
