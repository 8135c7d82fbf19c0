"""`batch: auto`: the search, its agreement over ranks, its cache, and that a resume keeps what was found."""

from __future__ import annotations

import json
import math
import resource

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from stoker_trainer import tune  # noqa: E402
from stoker_trainer.config import parse  # noqa: E402
from stoker_trainer.distributed import Place, Ranks  # noqa: E402
from stoker_trainer.save import gathered_state, pack, unpack  # noqa: E402
from stoker_trainer.trials import Server, Speed, TrialFailed  # noqa: E402
from stoker_trainer.tune import Timed, Tuned, knee  # noqa: E402

pytestmark = pytest.mark.torch
CPU = torch.device("cpu")


def by(of_sample, most=10**9, steps=10**9, cost=1.0):
    """Trials of a device that takes `of_sample(micro)` seconds for a sample and holds `most`; and what was tried."""
    tried = []

    def measure(micro):
        tried.append(micro)
        fits = micro <= most
        return Timed(micro * of_sample(micro) if fits else math.inf, 0.0, steps, cost * len(tried))

    return measure, tried


@pytest.mark.parametrize(
    ("of_sample", "most", "found"),
    [
        (lambda m: 1.0, 10**9, 1),  # all alike: the least memory
        (lambda m: 1.0 if m >= 32 else 2.0, 10**9, 32),
        (lambda m: 1.0 + 10.0 / m, 100, 86),  # the larger the faster: between 64, which fits, and 128, which does not
        (lambda m: 1.0 if m <= 8 else 1.2, 10**9, 1),
        (lambda m: 1.0, 0, 1),
    ],
)
def test_the_knee(of_sample, most, found):
    measure, tried = by(of_sample, most)
    assert knee(512, measure) == found
    assert len(tried) == len(set(tried))


@given(st.integers(1, 3000), st.integers(1, 3000), st.floats(0.0, 64.0))
def test_what_is_found_fits_and_is_near_the_best(share, most, overhead):
    def seconds(micro):
        return math.ceil(share / micro) * (micro + overhead)

    measure, tried = by(lambda m: (m + overhead) / m, most)
    found = knee(share, measure)
    assert 1 <= found <= max(1, min(share, most)) and len(tried) <= 26
    assert seconds(found) <= 1.05 * min(seconds(m) for m in tried if m <= most)


def test_past_its_share_of_the_run_the_search_ends_but_not_before_something_fits():
    measure, tried = by(lambda m: 1.0, most=100, steps=10, cost=1000.0)
    assert knee(512, measure) == 64 and tried == [512, 256, 128, 64]


def test_where_trials_fail_the_batch_stays_whole():
    assert knee(512, lambda micro: Timed(math.inf, 0.0, 0, 1.0, failed=True)) == 512


class Canned:
    """A server whose trials take a millisecond for a sample; none of over 20 fits."""

    def __init__(self, config, env):
        self.cpu_s = 1.0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def run(self, micro):
        return Speed(1e-3 * micro + 1e-3, 1e-4, 10**6) if micro <= 20 else None


def test_what_was_found_is_kept_by_model_device_and_precision(make_config, tmp_path, monkeypatch):
    monkeypatch.setattr(tune, "Server", Canned)

    def found(settings=None, **top):
        text = json.dumps(make_config({"batch": "auto"} | (settings or {}), **top))
        ranks = Ranks(Place(), CPU, deterministic=False)
        return tune.micro_batch(parse(text), text, {}, CPU, ranks, tmp_path / "tuned", lambda: None).micro_batch

    assert found() == 16
    monkeypatch.setattr(Canned, "run", lambda self, micro: Speed(float(micro), 0.0, 10**6))
    assert found() == 16, "read from the cache"
    assert found({"seed": 9, "epochs": 3}) == 16, "the same work"
    assert found(precision="bf16") == found({"model": {"width": 16}}) == 1
    for path in (tmp_path / "tuned").iterdir():
        path.write_text("{")
    assert found() == 1, "a damaged file is no answer"


def test_what_was_found_is_part_of_the_state(make_training, small):
    training = make_training(small)
    training.tuned, training.micro_batch = Tuned(micro_batch=7, seconds=2.0), 7
    other = make_training(small)
    unpack(other, pack(gathered_state(training)))
    assert other.tuned == training.tuned and other.micro_batch == 7


@pytest.mark.slow
def test_trials_are_processes_with_nine_tenths_of_the_memory(make_config):
    """RLIMIT_DATA stands for the memory of a device."""
    text = json.dumps(make_config({"model": {"width": 64}, "data": "digits", "batchSize": 65536}))
    before = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (1 << 30, before[1]))
    try:
        with Server(text, {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}) as server:
            assert server.run(65536) is None
            speed = server.run(16)
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)
    assert speed is not None and speed.of_pass > 0 and speed.total_steps == 20
    assert server.cpu_s > 0
    with Server("{}", {}) as server, pytest.raises(TrialFailed, match="BadConfig"):
        server.run(16)


@pytest.mark.slow
def test_two_ranks_agree_and_a_resume_keeps_it(run, make_config, small):
    """Rank 1 holds less, so both take less; the restarted job asks no trial again."""
    script = """
import os
from stoker_trainer import tune
from stoker_trainer.trials import Speed
class Canned:
    cpu_s = 0.0
    def __init__(self, config, env): pass
    def __enter__(self): return self
    def __exit__(self, *_): pass
    def run(self, micro):
        return Speed(1.0, 0.0, 10**6) if micro <= (31, 8)[int(os.environ["RANK"])] else None
tune.Server = Canned
"""
    config = make_config(small | {"batch": "auto"})
    whole, parts = run.whole_and_interrupted(config, 2, at=10, script=script)
    assert parts == whole
    assert run.progress()["summary"]["microBatch"] == 8
    tuned = list((run.folder / "checkpoints" / "tuned").iterdir())
    assert len(tuned) == 1 and json.loads(tuned[0].read_text()) == {"microBatch": 8}
