"""What the outside sees: progress that the spec parses, a ledger of lost work, metrics, weights for plain torch."""

from __future__ import annotations

import http.client
import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from contextlib import closing
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from stoker.spec.worker import Progress  # noqa: E402
from stoker_trainer.distributed import Vote  # noqa: E402
from stoker_trainer.errors import BadConfig, Superseded  # noqa: E402
from stoker_trainer.export import Results  # noqa: E402
from stoker_trainer.fence import Fence  # noqa: E402
from stoker_trainer.ledger import Ledger, Spent  # noqa: E402
from stoker_trainer.metrics import FAMILIES, LABELS, PREFIX, Metrics  # noqa: E402
from stoker_trainer.report import Report  # noqa: E402
from stoker_trainer.save import Keeper  # noqa: E402
from stoker_trainer.step import train_step  # noqa: E402
from stoker_trainer.tensorboard import Board  # noqa: E402

pytestmark = pytest.mark.torch


def trained(make_training, small, steps=3):
    training = make_training(small)
    for step in range(steps):
        train_step(training, torch.arange(61), Vote())
        training.cursor.step = step + 1
        training.tally.samples += 61
    return training


def report_for(training, path, ledger=None, metrics=None):
    return Report(training, Keeper(training, {}, None), ledger or Ledger(None, 1), path, metrics)


def test_progress_is_the_contracts(make_training, small, tmp_path):
    training = trained(make_training, small)
    report = report_for(training, tmp_path / "progress.json")
    report.stepped(61, 0.01)
    text = (tmp_path / "progress.json").read_text()
    progress = Progress.model_validate_json(text)
    assert (progress.step, progress.total_steps, progress.samples) == (3, 48, 183)
    assert progress.metrics["samplesPerSecond"] == pytest.approx(6100)
    assert progress.metrics["loss"] == pytest.approx(training.loss.item())
    assert progress.summary["splitDigest"] == training.data.split_digest
    assert progress.checkpoint is None
    known = {f.alias or name for name, f in Progress.model_fields.items()}
    assert json.loads(text).keys() == known - {"held", "stalled", "stepAt"}  # the supervisor's
    assert [p.name for p in tmp_path.iterdir()] == ["progress.json"]


def test_a_loss_that_is_no_number_keeps_the_file_readable(make_training, small, tmp_path):
    training = trained(make_training, small)
    training.loss = torch.tensor(float("nan"))
    training.gradient_norm = torch.tensor(float("inf"))
    report_for(training, tmp_path / "progress.json").stepped(61, 0.01)
    progress = Progress.model_validate_json((tmp_path / "progress.json").read_text())
    assert "loss" not in progress.metrics and "gradNorm" not in progress.metrics


def test_before_the_first_step_there_is_no_loss(make_training, small, tmp_path):
    report_for(make_training(small), tmp_path / "progress.json").publish()
    progress = Progress.model_validate_json((tmp_path / "progress.json").read_text())
    assert progress.step == 0 and progress.metrics == {"lossScale": 1.0}


def test_a_folder_that_is_gone_is_reported_once_and_left(make_training, small, tmp_path, caplog):
    report = report_for(trained(make_training, small), tmp_path / "gone" / "progress.json")
    report.publish()
    report.publish()
    assert [r.message for r in caplog.records if "progress" in r.message] == [caplog.records[0].message]


def test_the_ledger_keeps_what_was_lost(make_training, small, tmp_path):
    killed = Ledger(tmp_path, 1)
    killed.mine = Spent(steps=10, samples=610, seconds=5.0)
    killed.write()
    (tmp_path / "ledger" / "attempt-00000009.json").write_text("{half")
    training = trained(make_training, small, steps=3)
    training.tally.seconds = 1.5
    ledger = Ledger(tmp_path, 2)
    report = report_for(training, None, ledger)
    report.stepped(61, 0.5)
    summary = report.summary()
    assert summary["lostSteps"] == 10 + 1 - 3
    assert summary["lostS"] == pytest.approx(5.0 + 0.5 - 1.5)
    again = Ledger(tmp_path, 2)  # the same attempt, started again, goes on counting
    assert again.mine.steps == 1 and again.total().steps == 11


def test_metrics_show_the_training(make_training, small):
    training = trained(make_training, small)
    training.tally.metrics, training.tally.time_to_target_s = {"accuracy": 0.9, "loss": 0.4}, 7.0
    metrics = Metrics({"STOKER_JOB": "mnist", "STOKER_JOB_UID": "u1", "STOKER_ATTEMPT": "2"}, "image-classification")
    report = report_for(training, None, metrics=metrics)
    report.waited(0.01)
    report.stepped(61, 0.02)
    report.evaluated(0.1)
    report.saved(0.5)
    report.saved(0.3)
    report.halved()
    at = {"job_name": "mnist", "job_uid": "u1", "project": "", "attempt": "2", "recipe": "image-classification"}

    def value(name, /, **labels):
        return metrics.registry.get_sample_value(f"stoker_train_{name}", at | labels)

    assert value("step_total") == 1 and value("samples_total") == 61
    assert value("step_seconds_count") == 1 and value("step_seconds_sum") == pytest.approx(0.02)
    assert value("loss") == pytest.approx(training.loss.item())
    assert value("eval_metric", name="accuracy") == 0.9
    assert value("loss_scale") == 1 and value("time_to_target_seconds") == 7
    assert value("checkpoint_seconds") == 0.3 and value("checkpoint_last_step") == 3
    assert value("checkpoints_total") == 2 and value("checkpointing_seconds_total") == pytest.approx(0.8)
    assert value("data_wait_seconds_total") == pytest.approx(0.01)
    assert value("oom_total") == 1 and value("progress_ratio") == pytest.approx(3 / 48)
    assert value("phase_seconds_total", phase="eval") == pytest.approx(0.1)
    assert value("last_step_timestamp_seconds") > 1.7e9
    shown = {metric.name: (metric.type, metric.documentation) for metric in metrics.registry.collect()}
    listed = {PREFIX + f.name.removesuffix("_total"): (f.type, f.help) for f in FAMILIES}
    assert shown == listed, "every family has its series, and no series is missing from the list"
    assert "job" not in LABELS, "Prometheus sets that label itself"


def test_tensorboard_gets_scalars_and_metrics_only_where_they_were_measured(
    make_training, small, tmp_path, monkeypatch
):
    written = []

    class SummaryWriter:
        def __init__(self, folder, purge_step):
            written.append((folder, purge_step))

        def add_scalar(self, name, value, step):
            written.append((name, step))

        def flush(self):
            pass

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(BadConfig, match="pip install tensorboard"):
        Board(tmp_path, 3)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", SimpleNamespace(SummaryWriter=SummaryWriter))
    training = trained(make_training, small)
    report = Report(training, Keeper(training, {}, None), Ledger(None, 1), None, None, Board(tmp_path, 3))
    training.tally.metrics = {"accuracy": 0.5, "loss": 2.0}
    for evaluated_step in (3, 2):
        training.tally.evaluated_step = evaluated_step
        report.stepped(61, 0.01)
        report.publish()
    assert written[0] == (str(tmp_path), 4)
    counts = {name: [x[0] for x in written].count(name) for name in ("loss", "learningRate", "accuracy", "testLoss")}
    assert counts["loss"] == counts["learningRate"] > counts["accuracy"] == counts["testLoss"] > 0


def test_weights_load_in_plain_torch(make_training, small, tmp_path):
    """In a process that can't import anything of ours."""
    training = trained(make_training, small, steps=8)
    training.tally.metrics = {"accuracy": 0.5}
    out = tmp_path / "output"
    results = Results(training, "{}", out, None)
    results.best()
    assert results.final({"accuracy": 0.5}) == out / "weights.pt"
    images = training.data.test_images[:50]
    torch.save(images, tmp_path / "images.pt")
    program = f"""
import sys
sys.path[:] = [p for p in sys.path if not p.endswith(("trainer-image", "operator", "api"))]
sys.path.insert(0, {str(out)!r})
import torch, load_example
images = torch.load({str(tmp_path / "images.pt")!r}, weights_only=True)
assert not any(name.startswith("stoker") for name in sys.modules)
print(load_example.classify(images).tolist())
"""
    env = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=env)
    from stoker_trainer.augment import normalised

    with torch.no_grad():
        mine = training.net(normalised(images, training.data.scaling)).argmax(1)
    assert json.loads(done.stdout) == mine.tolist()
    names = sorted(p.name for p in out.iterdir() if p.suffix)
    assert names == ["best.pt", "config.json", "load_example.py", "model.json", "model.py", "result.json", "weights.pt"]


def test_of_averaged_weights_the_last_steps_own_lie_beside_them(make_training, small, tmp_path):
    training = trained(make_training, small | {"optimizer": {"ema": 0.9}})
    results = Results(training, "{}", tmp_path, None)
    results.best()
    results.final({})
    best, weights, own = (
        torch.load(tmp_path / f"{n}.pt", weights_only=True) for n in ("best", "weights", "unaveraged")
    )
    for name, p in training.net.state_dict().items():
        assert torch.equal(own[name], p) and torch.equal(best[name], weights[name])
        assert torch.equal(weights[name], training.average.state()[name]) and not torch.equal(weights[name], p)


def test_a_zombie_does_not_replace_the_result(make_training, small, tmp_path):
    training = trained(make_training, small)
    zombie = Fence.claim(tmp_path / "checkpoints", 1)
    Fence.claim(tmp_path / "checkpoints", 2)
    with pytest.raises(Superseded):
        Results(training, "{}", tmp_path / "output", zombie).best()
    with pytest.raises(Superseded):
        Results(training, "{}", tmp_path / "output", zombie).final({})
    assert not list((tmp_path / "output").iterdir())


@pytest.fixture(scope="module")
def served_on_loopback():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    Metrics({}, "image-classification").serve(port)
    return port


def serves(thread: threading.Thread) -> bool:
    """Whether this is a started thread of the metrics server: `threading.enumerate` lists those about to start, too."""
    return "process_request_thread" in thread.name and thread.is_alive()


def test_a_scraper_that_breaks_off_leaves_no_traceback_in_the_jobs_log(served_on_loopback, capfd):
    with socket.create_connection(("127.0.0.1", served_on_loopback)) as scraper:
        scraper.sendall(b"GET /met")
        while not (serving := [one for one in threading.enumerate() if serves(one)]):
            time.sleep(0.01)
        scraper.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closing resets
    for one in serving:
        one.join(20)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("host", "status"),
    [("127.0.0.1:1", 200), ("localhost", 200), ("[::1]:80", 200), ("evil.example", 403), ("", 403), ("[", 403)],
)
def test_metrics_on_loopback_are_for_callers_who_name_it(served_on_loopback, host, status):
    """A page that lets its own name resolve to 127.0.0.1 sends that name."""
    connection = http.client.HTTPConnection("127.0.0.1", served_on_loopback, timeout=20)
    with closing(connection):
        connection.request("GET", "/metrics", headers={"Host": host})
        answer = connection.getresponse()
        assert answer.status == status and (b"stoker_train_" in answer.read()) == (status == 200)
