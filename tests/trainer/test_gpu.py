"""One short job on CUDA in each number format; left out where there is no GPU."""

from __future__ import annotations

import os
import signal

import pytest

torch = pytest.importorskip("torch")

from stoker.spec.recipes import resolve  # noqa: E402

from .conftest import STOP  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU here"),
]


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "fp16"])
def test_a_short_job_learns_and_resumes_on_cuda(run, make_config, precision):
    visible = {"CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "0")}
    config = make_config({"epochs": 8}, precision=precision)
    codes, outputs = run.run(config, fresh=True, **visible)
    assert codes == [0], outputs
    summary = run.progress()["summary"]
    assert summary["accuracy"] >= 0.95 and summary["precision"] == precision and summary["device"] != "cpu"
    wanted = run.trace()
    (run.folder / "trace").unlink()
    short = {**visible, "STOKER_CHECKPOINT_DIR": str(run.folder / "again")}
    processes = run.start(config, fresh=True, **short)
    run.wait_for_steps(60)
    processes[0].send_signal(signal.SIGTERM)
    assert run.finish(processes)[0] == [75]
    assert run.run(config, fresh=True, **short)[0] == [0]
    assert run.trace() == wanted


def test_fp8_learns_as_bf16_does_and_resumes_on_cuda(run, make_config):
    visible = {"CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "0")}
    settings = {"model": {"size": "tiny", "context": 64}, "batchSize": 32, "steps": 120}
    text = resolve("gpt", settings | {"optimizer": {"learningRate": 0.01}})
    if torch.cuda.get_device_capability() < (8, 9):
        assert run.run(make_config(recipe="gpt", config=text, precision="fp8"), fresh=True, **visible)[0] == [64]
        return
    losses = {}
    for precision in ("bf16", "fp8"):
        config = make_config(recipe="gpt", config=text, precision=precision)
        folder = {**visible, "STOKER_CHECKPOINT_DIR": str(run.folder / precision)}
        codes, outputs = run.run(config, fresh=True, **folder)
        assert codes == [0], outputs
        losses[precision] = run.progress()["summary"]["metrics"]["loss"]
        wanted = run.trace()
        (run.folder / "trace").unlink()
    assert losses["fp8"] == pytest.approx(losses["bf16"], rel=0.05)
    short = {**visible, "STOKER_CHECKPOINT_DIR": str(run.folder / "again")}
    codes, _ = run.run(config, script=STOP, fresh=True, STOP_AFTER="50", **short)
    assert codes == [75] and run.run(config, fresh=True, **short)[0] == [0]
    assert run.trace() == wanted


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_recorded_step_learns_and_resumes_on_cuda(run, make_config, precision):
    visible = {"CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "0")}
    config = make_config({"epochs": 8, "cudaGraph": "step"}, precision=precision)
    codes, outputs = run.run(config, fresh=True, **visible)
    assert codes == [0] and "kernel by kernel" not in outputs[0], outputs
    assert run.progress()["summary"]["accuracy"] >= 0.95
    wanted = run.trace()
    (run.folder / "trace").unlink()
    short = {**visible, "STOKER_CHECKPOINT_DIR": str(run.folder / "again")}
    assert run.run(config, script=STOP, fresh=True, STOP_AFTER="60", **short)[0] == [75]
    assert run.run(config, fresh=True, **short)[0] == [0]
    assert run.trace() == wanted


def test_rows_fetched_ahead_are_the_arrays():
    from stoker_trainer.prefetch import Prefetched

    array, places, device = torch.randint(256, (500, 9), dtype=torch.uint8), torch.randperm(500), torch.device("cuda")
    source, order = Prefetched(array, places, device), torch.randperm(500, device=device)
    source.expect(order[:100])
    for start in range(0, 500, 100):
        source.expect(order[start + 100 : start + 200])
        for part in order[start : start + 100].split(30):
            assert torch.equal(source.take(part).cpu(), array[places[part.cpu()]])
