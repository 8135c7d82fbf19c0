"""Users' commands that make no progress, on one machine, by real supervisors: ended, retried, stacks in the log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stoker.client.client import Client
from stoker.spec.event import Event
from stoker.spec.job import ENDED, Phase, TrainingJob
from stoker.spec.outcome import Category
from stoker.spec.reasons import Code
from tests.support.harness import Server, running, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

PROGRESS = """
import ctypes, json, os, time
def tell(step):
    path = os.environ['STOKER_PROGRESS_FILE']
    with open(path + '.new', 'w') as file: json.dump({'step': step}, file)
    os.replace(path + '.new', path)
"""
WEDGED = PROGRESS + "tell(3)\ndef wedged_in_a_collective(): ctypes.PyDLL(None).sleep(600)\nwedged_in_a_collective()"
RANK_1_IS_WEDGED = """
import threading
if os.environ['RANK'] == '0':
    def waits_for_rank_1(): threading.Event().wait()
    tell(3)
    waits_for_rank_1()
def never_comes():
    while True: pass
never_comes()
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with running(tmp_path / "data", "--virtual-gpus", "4") as found:
        yield found


def submit(client: Client, name: str, script: str, **spec: Any) -> TrainingJob:
    command = {"trainer": {"command": ["python3", "-c", script], "workingDir": "/"}, "gpusPerWorker": 1}
    small = {"cpu": "100m", "memory": "64Mi", "stall": {"after": "2s"}}
    return client.submit({**command, **small, **spec}, name=name)


def ended(client: Client, name: str, timeout_s: float = 60) -> TrainingJob:
    def check() -> TrainingJob | None:
        job = client.get(name)
        return job if job.status.phase in ENDED else None

    return until(check, f"{name}'s end", timeout_s)


def log_of(client: Client, name: str, worker: int = 0, attempt: int | None = None) -> str:
    with client.logs(name, worker=worker, attempt=attempt) as chunks:
        return "".join(chunk.text for chunk in chunks)


def test_a_stalled_command_is_ended_told_and_retried(server: Server) -> None:
    with server.client() as client:
        rule = {"categories": ["Stalled"], "limit": 1, "backoff": "1s"}
        submit(client, "stuck", WEDGED, retry={"rules": [rule]})
        job = ended(client, "stuck")
        assert (job.status.phase, job.status.attempt, job.status.reason) == (Phase.FAILED, 2, Code.RETRIES_EXHAUSTED)
        assert [end.category for end in job.status.attempts] == [Category.STALLED] * 2
        assert "no progress for too long (signal 6): step 3 since 2 s" in job.status.message

        def stalled() -> list[Event]:  # events are written behind the status
            found = [event for event in client.past_events("stuck") if event.reason == "Stalled"]
            return found if len(found) == 2 else []

        stalls = until(stalled, "both events", 20)
        assert "`stoker logs stuck --attempt 1`" in stalls[0].message
        for attempt in (1, 2):
            log = log_of(client, "stuck", attempt=attempt)
            assert "[stoker] no progress: step 3" in log and "in wedged_in_a_collective" in log
        assert client.explain("stuck").hints[0].startswith("`stoker logs stuck --attempt 2`")
        until(lambda: not server.workers(), "no process left", 20)
        assert client.queue("default").usage.gpus == 0


def test_of_a_gang_every_worker_shows_where_it_stood(server: Server) -> None:
    with server.client() as client:
        rule = {"categories": ["Stalled"], "limit": 0}
        submit(client, "gang", PROGRESS + RANK_1_IS_WEDGED, workers=2, retry={"rules": [rule]})
        told = until(lambda: _stalled(client, "gang"), "the stall is told", 30)
        assert "step 3 since" in told.status.message
        assert client.explain("gang").summary.startswith("stalled on ")
        job = ended(client, "gang")
        assert [end.category for end in job.status.attempts] == [Category.STALLED]
        assert job.status.message.startswith("worker 0: no progress for too long")
        assert "in waits_for_rank_1" in log_of(client, "gang", 0)
        wedged = log_of(client, "gang", 1)
        assert "[stoker] no progress: worker 0: step 3 since" in wedged and "in never_comes" in wedged
        assert [event.reason for event in client.past_events("gang")].count("Stalled") == 1


def test_slow_is_not_stalled_and_without_a_limit_nothing_is(server: Server) -> None:
    slow = PROGRESS + "for step in range(6): tell(step); time.sleep(0.8)"
    with server.client() as client:
        submit(client, "slow", slow, stall={"after": "4s"})
        submit(client, "none", PROGRESS + "tell(1); time.sleep(5)", stall={})
        submit(client, "silent", "import time; time.sleep(5)")
        for name in ("slow", "none", "silent"):
            assert ended(client, name).status.phase is Phase.SUCCEEDED


def _stalled(client: Client, name: str) -> TrainingJob | None:
    job = client.get(name)
    return job if job.status.reason is Code.STALLED else None
