"""One short job on CUDA in both 16-bit formats; left out where there is no GPU."""

from __future__ import annotations

import os
import signal

import pytest

torch = pytest.importorskip("torch")

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


def test_rows_fetched_ahead_are_the_arrays():
    from stoker_trainer.prefetch import Prefetched

    array, places, device = torch.randint(256, (500, 9), dtype=torch.uint8), torch.randperm(500), torch.device("cuda")
    source, order = Prefetched(array, places, device), torch.randperm(500, device=device)
    source.expect(order[:100])
    for start in range(0, 500, 100):
        source.expect(order[start + 100 : start + 200])
        for part in order[start : start + 100].split(30):
            assert torch.equal(source.take(part).cpu(), array[places[part.cpu()]])
