"""Push into a real Prometheus: values, labels and times as offered; across two hours in which it was down; refused."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client.core import Sample

from stoker.push.client import Receiver
from stoker.push.sender import Push, PushOptions, PushStats
from tests.support.nvml_scenario import NoCompiler, Scenario
from tests.support.testbed.monitoring import Prometheus
from tests.support.testbed.parts import until

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("monitoring")]

HOUR_S = 3600
EVERY_S = 15.0


def energy(joules: float, gpu: int = 0) -> Sample:
    labels = {"node": "n0", "gpu": str(gpu), "uuid": f"GPU-{gpu}"}
    return Sample("stoker_gpu_energy_joules_total", labels, joules)


def offer_hours(push: Push, begin: float, end: float) -> list[tuple[float, float]]:
    """A poll every 15 s of simulated time, of two GPUs; what GPU 0 showed."""
    offered = []
    for number in range(round((end - begin) / EVERY_S)):
        at = begin + number * EVERY_S
        offered.append((at, at - begin + 0.25))
        assert push.offer(at, [energy(offered[-1][1]), energy(1.0, gpu=1)])
    return offered


@pytest.fixture
def pushing(pushes: Callable[[PushOptions], Push]) -> Callable[..., Push]:
    def start(url: str, **more: object) -> Push:
        given = {"receiver": Receiver(url), "first_pause_s": 0.05, "longest_pause_s": 0.5, **more}
        given["labels"] = {"job": "stoker-exporter", "instance": "n0", **given.get("labels", {})}  # type: ignore[dict-item]
        return pushes(PushOptions(**given))  # type: ignore[arg-type]

    return start


def settled(push: Push) -> PushStats:
    until(lambda: push.stats.buffered == 0, "everything to be sent", 60)
    return push.stats


def stored(prometheus: Prometheus, begin: float, end: float) -> list[tuple[float, float]]:
    """GPU 0's samples."""
    found = prometheus.samples('stoker_gpu_energy_joules_total{job="stoker-exporter",gpu="0"}', begin, end)
    return list(found[0].points) if found else []


def test_what_was_offered_is_what_is_stored(pushing: Callable[..., Push]) -> None:
    with Prometheus() as prometheus:
        push = pushing(prometheus.write_url, labels={"cluster": "edge"})
        begin = float(int(time.time()) - 300)
        offered = offer_hours(push, begin, begin + 300)
        assert settled(push) == PushStats(sent=60, refused=0, dropped=0, retries={}, buffered=0)
        assert stored(prometheus, begin, begin + 300) == offered
        labels = prometheus.query('stoker_gpu_energy_joules_total{uuid="GPU-1"}', begin + 290)[0].labels
        assert labels == {
            "__name__": "stoker_gpu_energy_joules_total",
            "job": "stoker-exporter",
            "instance": "n0",
            "cluster": "edge",
            "node": "n0",
            "gpu": "1",
            "uuid": "GPU-1",
        }
        rate = prometheus.value('sum(rate(stoker_gpu_energy_joules_total{gpu="0"}[2m]))', begin + 290)
        assert rate == pytest.approx(1.0)


def test_a_series_that_ends_is_gone_at_once(pushing: Callable[..., Push]) -> None:
    with Prometheus() as prometheus:
        push = pushing(prometheus.write_url)
        begin = float(int(time.time()) - 60)
        push.offer(begin, [energy(1), energy(2, gpu=1)])
        push.offer(begin + 15, [energy(3)])
        settled(push)
        here = 'count(stoker_gpu_energy_joules_total{instance="n0"})'
        assert prometheus.value(here, begin + 14) == 2
        assert prometheus.value(here, begin + 16) == 1  # and not for five minutes more
        push.stop(timeout_s=10)
        assert prometheus.value("up", begin + 16) == 1
        assert prometheus.query('{instance="n0"}', time.time() + 1) == []


def test_two_hours_without_prometheus_leave_no_gap(pushing: Callable[..., Push]) -> None:
    with Prometheus() as prometheus:
        push = pushing(prometheus.write_url)
        end = float(int(time.time()) - 60)
        begin, down, up = end - 3 * HOUR_S, end - 2.5 * HOUR_S, end - 0.5 * HOUR_S
        offered = offer_hours(push, begin, down)
        settled(push)
        prometheus.stop()
        offered += offer_hours(push, down, up)
        until(lambda: push.stats.retries.get("transport", 0) >= 2, "two tries in vain", 30)
        assert push.stats.buffered == 480 * 3  # two GPUs and `up`, each 15 s
        prometheus.start()
        settled(push)
        offered += offer_hours(push, up, end)
        stats = settled(push)
        assert (stats.sent, stats.refused, stats.dropped) == (720 * 3, 0, 0)
        assert stored(prometheus, begin, end) == offered


def test_one_that_has_newer_samples_needs_a_window_for_late_ones(pushing: Callable[..., Push]) -> None:
    now = float(int(time.time()))
    scrape = [{"job_name": "others", "static_configs": [{"targets": ["127.0.0.1:1"]}]}]
    for window, expect_all in (("3h", True), ("", False)):
        with Prometheus(scrape=scrape, out_of_order=window) as prometheus:
            prometheus.until('up{job="others"}')  # its head is at now: without a window, an hour is what it takes back
            push = pushing(prometheus.write_url)
            offered = offer_hours(push, now - 2 * HOUR_S, now)
            stats = settled(push)
            found = stored(prometheus, now - 2 * HOUR_S, now)
            assert stats.sent + stats.refused == 480 * 3 and stats.retries == {}
            assert (found == offered) is expect_all
            assert (stats.refused == 0) is expect_all
            push.stop(timeout_s=5)


def test_an_exporter_pushes_what_it_serves_and_ends_its_series_with_itself(tmp_path: Path) -> None:
    scenario = Scenario(tmp_path)
    scenario.add_gpu(watts=300)
    try:
        scenario.write()
    except NoCompiler as error:
        pytest.skip(str(error))
    with Prometheus() as prometheus:
        options = ["--node", "n7", "--host", "127.0.0.1", "--port", "0", "--push-url", prometheus.write_url]
        options += ["--push-every", "500ms", "--push-label", "cluster=edge"]
        exporter = subprocess.Popen(
            [sys.executable, "-P", "-m", "stoker.exporter", *options], env={**os.environ, **scenario.env()}
        )
        try:
            mine = '{job="stoker-exporter",instance="n7",cluster="edge",node="n7"}'
            assert prometheus.until(f"stoker_gpu_power_watts{mine}")[0].value == 300
            prometheus.until(f'stoker_exporter_push_samples_total{mine[:-1]},outcome="sent"}} > 0')
            assert prometheus.value('stoker_exporter_push_samples_total{outcome="refused"}') == 0
            assert prometheus.value('up{job="stoker-exporter"}') == 1
        finally:
            exporter.terminate()
            assert exporter.wait(20) == 0
        until(lambda: not prometheus.query('{job="stoker-exporter"}'), "the end of its series", 20)
