"""Users' commands that fail and are held, or make no progress: on one machine, by real supervisors."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stoker.client.client import Client
from stoker.local.agent.memory_groups import find_memory_groups
from stoker.spec.event import Event
from stoker.spec.job import ENDED, Phase, TrainingJob
from stoker.spec.outcome import Category
from stoker.spec.reasons import Code
from tests.support.harness import SHOWS_PROGRESS, Server, running, until

pytestmark = pytest.mark.slow

HOLD, STALL = {"onFailure": {"hold": "10m"}}, {"stall": {"after": "2s"}}
FAIL = "print('weights are on the floor', flush=True); raise SystemExit(3)"
WEDGED = (
    SHOWS_PROGRESS
    + "show(step=3)\ndef wedged_in_a_collective(): ctypes.PyDLL(None).sleep(600)\nwedged_in_a_collective()"
)
RANK_1_IS_WEDGED = """
import threading
if os.environ['RANK'] == '0':
    def waits_for_rank_1(): threading.Event().wait()
    show(step=3)
    waits_for_rank_1()
def never_comes():
    while True: time.sleep(0.01)
never_comes()
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("up") / "data", "--virtual-gpus", "4") as found:
        yield found


def submit(client: Client, name: str, script: str, **spec: Any) -> TrainingJob:
    command = {"trainer": {"command": ["python3", "-c", script], "workingDir": "/"}, "gpusPerWorker": 1}
    return client.submit({**command, "cpu": "100m", "memory": "64Mi", **spec}, name=name)


def log_of(client: Client, name: str, worker: int = 0, attempt: int | None = None) -> str:
    with client.logs(name, worker=worker, attempt=attempt) as chunks:
        return "".join(chunk.text for chunk in chunks)


def held(client: Client, name: str, attempt: int = 1) -> TrainingJob:
    """The job once its hold is known to the operator too."""

    def check() -> TrainingJob | None:
        job = client.get(name)
        return job if job.status.reason is Code.HELD and job.status.attempt == attempt else None

    return until(check, f"{name} held in attempt {attempt}", 20)


def ended(client: Client, name: str, timeout_s: float = 60) -> TrainingJob:
    def check() -> TrainingJob | None:
        job = client.get(name)
        return job if job.status.phase in ENDED else None

    return until(check, f"{name}'s end", timeout_s)


def test_a_hold_outlives_the_server_and_ends_on_request(server: Server) -> None:
    with server.client() as client:
        submit(client, "looked", FAIL, **HOLD)
        job = held(client, "looked")
        hold = job.status.held
        assert hold is not None and (hold.exit_code, hold.message) == (3, "weights are on the floor")
        assert hold.until - hold.since == pytest.approx(600, abs=1)
        assert job.status.phase is Phase.RUNNING and client.queue("default").usage.gpus == 1
        assert client.queue("default").usage.held_gpus == 1
        why = client.why("looked")
        assert "failed (exit 3) and is held until" in why.summary and "`stoker exec looked`" in why.hints[0].message
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


def test_a_worker_that_holds_more_than_its_memory_is_ended_and_says_what_to_ask_for(
    server: Server, tmp_path: Path
) -> None:
    if why_not := find_memory_groups(tmp_path).why_not:
        pytest.skip(why_not)
    with server.client() as client:
        script = "print('taking', flush=True); kept = bytearray(300 << 20)"
        never = {"retry": {"rules": [{"categories": ["Killed"], "limit": 0}]}}
        submit(client, "greedy", script, **never)
        job = ended(client, "greedy")
        assert (job.status.phase, job.status.attempts[-1].category) == (Phase.FAILED, Category.KILLED)
        said = "out of memory: asked 64Mi, peak 64Mi; ask for more: stoker clone greedy --set spec.memory=128Mi"
        assert job.status.message == f"{said} (ended by SIGKILL; its last line: taking)"
        assert said in client.why("greedy").summary
        more = client.clone("greedy", {"memory": "512Mi"})
        assert ended(client, more.metadata.name).status.phase is Phase.SUCCEEDED


def test_a_retry_waits_for_the_end_of_the_hold(server: Server) -> None:
    with server.client() as client:
        rule = {"categories": ["UserError"], "limit": 1, "backoff": "1s"}
        submit(client, "again", FAIL, onFailure={"hold": "1s"}, retry={"rules": [rule]})
        job = ended(client, "again")
    assert (job.status.phase, job.status.attempt, job.status.reason) == (Phase.FAILED, 2, Code.RETRIES_EXHAUSTED)
    assert [1 <= end.held_s < 5 for end in job.status.attempts] == [True, True]
    assert "exit 3" in job.status.message


def test_of_a_gang_the_failed_worker_is_named_and_a_delete_ends_all(server: Server) -> None:
    script = f"import os, time\nif os.environ['RANK'] == '1': {FAIL}\ntime.sleep(600)"
    with server.client() as client:
        submit(client, "gang", script.replace(": print", ":\n  print"), **HOLD, workers=2)
        job = held(client, "gang")
        assert job.status.held is not None and job.status.held.worker == 1
        assert "worker 1 failed (exit 3)" in job.status.message
        assert "`stoker exec gang --worker 1`" in client.why("gang").hints[0].message
        client.delete("gang")
        until(lambda: not server.workers(), "no process left", 20)
        until(lambda: client.queue("default").usage.gpus == 0, "its GPUs", 20)


def test_a_stalled_command_is_ended_reported_and_retried(server: Server) -> None:
    with server.client() as client:
        rule = {"categories": ["Stalled"], "limit": 1, "backoff": "1s"}
        submit(client, "stuck", WEDGED, **STALL, retry={"rules": [rule]})
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
        assert client.why("stuck").hints[0].message.startswith("`stoker logs stuck --attempt 2`")
        until(lambda: not server.workers(), "no process left", 20)
        assert client.queue("default").usage.gpus == 0


def test_of_a_gang_every_worker_shows_where_it_stood(server: Server) -> None:
    with server.client() as client:
        rule = {"categories": ["Stalled"], "limit": 0}
        submit(client, "wedged", SHOWS_PROGRESS + RANK_1_IS_WEDGED, workers=2, **STALL, retry={"rules": [rule]})
        status = until(lambda: _stalled(client, "wedged"), "the stall", 30).status
        assert "step 3 since" in status.message
        assert client.why("wedged").summary.startswith("stalled on ")
        job = ended(client, "wedged")
        assert [end.category for end in job.status.attempts] == [Category.STALLED]
        assert job.status.message.startswith("worker 0: no progress for too long")
        assert "in waits_for_rank_1" in log_of(client, "wedged", 0)
        wedged = log_of(client, "wedged", 1)
        assert "[stoker] no progress: worker 0: step 3 since" in wedged and "in never_comes" in wedged
        assert [event.reason for event in client.past_events("wedged")].count("Stalled") == 1


def _in(client: Client, name: str, phase: Phase) -> TrainingJob | None:
    job = client.get(name)
    return job if job.status.phase is phase else None


def _stalled(client: Client, name: str) -> TrainingJob | None:
    job = client.get(name)
    return job if job.status.reason is Code.STALLED else None
