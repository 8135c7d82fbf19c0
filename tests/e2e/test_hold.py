"""A worker whose command failed is held, on one machine, by a real supervisor: shown, counted, ended as it should."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stoker.client.client import Client
from stoker.spec.job import ENDED, Phase, TrainingJob
from stoker.spec.outcome import Category
from stoker.spec.reasons import Code
from tests.support.harness import Server, running, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

FAIL = "print('weights are on the floor', flush=True); raise SystemExit(3)"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with running(tmp_path / "data", "--virtual-gpus", "4") as found:
        yield found


def submit(client: Client, name: str, script: str = FAIL, *, hold: str = "10m", **spec: Any) -> TrainingJob:
    command = {"trainer": {"command": ["python3", "-c", script], "workingDir": "/"}, "gpusPerWorker": 1}
    small = {"cpu": "100m", "memory": "64Mi"}
    return client.submit({**command, **small, "onFailure": {"hold": hold}, **spec}, name=name)


def held(client: Client, name: str, attempt: int = 1) -> TrainingJob:
    """The job once its hold is known to the operator too."""

    def check() -> TrainingJob | None:
        job = client.get(name)
        return job if job.status.reason is Code.HELD and job.status.attempt == attempt else None

    return until(check, f"{name} held in attempt {attempt}", 20)


def ended(client: Client, name: str, timeout_s: float = 20) -> TrainingJob:
    def check() -> TrainingJob | None:
        job = client.get(name)
        return job if job.status.phase in ENDED else None

    return until(check, f"{name}'s end", timeout_s)


def test_a_hold_outlives_the_server_and_ends_on_request(server: Server) -> None:
    with server.client() as client:
        submit(client, "looked")
        job = held(client, "looked")
        hold = job.status.held
        assert hold is not None and (hold.exit_code, hold.message) == (3, "weights are on the floor")
        assert hold.until - hold.since == pytest.approx(600, abs=1)
        assert job.status.phase is Phase.RUNNING and client.queue("default").usage.gpus == 1
        assert client.queue("default").usage.held_gpus == 1
        why = client.explain("looked")
        assert "failed (exit 3) and is held until" in why.summary and "`stoker exec looked`" in why.hints[0]
        assert [event.reason for event in client.past_events("looked")].count("Held") == 1

    server.kill()
    server.start()
    with server.client() as client:
        assert client.get("looked").status.held == hold
        client.suspend("looked")
        paused = until(lambda: _in(client, "looked", Phase.SUSPENDED), "suspended")
        assert paused.status.held is None and paused.status.progress.held is None
        assert client.queue("default").usage.gpus == 0
        client.resume("looked")
        held(client, "looked", attempt=2)
        began = time.monotonic()
        client.cancel("looked")
        over = ended(client, "looked")
        assert time.monotonic() - began < 10
    assert over.status.phase is Phase.CANCELLED
    assert [end.category for end in over.status.attempts] == [Category.USER_ERROR] * 2
    assert over.status.held_s == pytest.approx(sum(end.held_s for end in over.status.attempts))
    assert over.status.held_s > 0.5 and over.status.ran_s < over.status.held_s


def test_a_retry_waits_for_the_end_of_the_hold(server: Server) -> None:
    with server.client() as client:
        rule = {"categories": ["UserError"], "limit": 1, "backoff": "1s"}
        submit(client, "again", hold="1s", retry={"rules": [rule]})
        job = ended(client, "again", 40)
    assert (job.status.phase, job.status.attempt, job.status.reason) == (Phase.FAILED, 2, Code.RETRIES_EXHAUSTED)
    assert [1 <= end.held_s < 5 for end in job.status.attempts] == [True, True]
    assert "exit 3" in job.status.message


def test_max_duration_ends_a_hold_and_hides_no_failure(server: Server) -> None:
    with server.client() as client:
        submit(client, "limited", stop={"maxDuration": "5s"})
        job = ended(client, "limited")
    end = job.status.attempts[-1]
    assert (job.status.phase, end.category) == (Phase.FAILED, Category.USER_ERROR)
    assert "exit 3" in job.status.message and 0.5 < end.held_s < 15


def test_of_a_gang_the_failed_worker_is_named_and_a_delete_ends_all(server: Server) -> None:
    script = f"import os, time\nif os.environ['RANK'] == '1': {FAIL}\ntime.sleep(600)"
    with server.client() as client:
        submit(client, "gang", script.replace(": print", ":\n  print"), workers=2)
        job = held(client, "gang")
        assert job.status.held is not None and job.status.held.worker == 1
        assert "worker 1 failed (exit 3)" in job.status.message
        assert "`stoker exec gang --worker 1`" in client.explain("gang").hints[0]
        client.delete("gang")
        until(lambda: not server.workers(), "no process left", 20)
        until(lambda: client.queue("default").usage.gpus == 0, "its GPUs", 20)


def test_what_is_done_is_not_held(server: Server) -> None:
    with server.client() as client:
        submit(client, "done", "pass")
        assert ended(client, "done").status.held_s == 0


def _in(client: Client, name: str, phase: Phase) -> TrainingJob | None:
    job = client.get(name)
    return job if job.status.phase is phase else None
