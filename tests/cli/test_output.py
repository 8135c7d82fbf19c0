"""What tables look like: in a pipe whole, on a narrow terminal cut where it hurts least."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.cli.job_details import job_details
from stoker.cli.job_table import JOBS, JOBS_WIDE, PROJECT, clock_text
from stoker.cli.job_text import explanation_text, state_text
from stoker.cli.layout import width_of
from stoker.cli.object_tables import NODES, QUEUES
from stoker.cli.output import Column, one_line, table
from stoker.cli.usage_text import hint_lines, job_usage_text
from stoker.spec.meta import StatusModel
from stoker.spec.reasons import Explanation
from stoker.spec.rest import JobUsageReport, QueueWithUsage
from stoker.spec.rest_nodes import NodeWithUsage
from tests.support.examples import examples

from .test_fields import least

PROGRESS = {
    "at": 0,
    "step": 120,
    "totalSteps": 460,
    "metrics": {"loss": 0.12345, "accuracy": 0.9722, "samplesPerSecond": 12300.4},
    "checkpoint": {"step": 100, "path": "/data/a"},
    "summary": {"splitDigest": "abc"},
}


def _sent(model: type[StatusModel], body: Any) -> Any:
    """As the server sends it."""
    return model.model_validate(body).model_dump(mode="json", by_alias=True, exclude_none=True)


def _shown(columns: Sequence[Column], items: Iterable[Any], width: int | None = None, colour: bool = False) -> str:
    rows = [[column.read(item) for column in columns] for item in items]
    return table(columns, rows, width=width, colour=colour)


def _jobs(make_job: Any) -> list[Any]:
    gang = {"trainer": {"recipe": "image-classification"}, "workers": 2, "gpusPerWorker": 4, "queue": "research"}
    return [
        make_job("mnist-ddp-x7k2p", "Queued", gang, message="8 GPUs at once; 2 of 8 free"),
        _by("ada", make_job("digits-1", "Running", reason="WorkersRunning", progress=PROGRESS, ranS=100.0, heldS=30.0)),
    ]


def _by(user: str, job: Any) -> Any:
    job["metadata"]["annotations"] = {"stoker.dev/submitter": user}
    return job


def test_in_a_pipe_nothing_is_cut(make_job: Any) -> None:
    assert _shown(JOBS, _jobs(make_job)) == (
        "NAME             PHASE    QUEUE     USER     GPUS   AGE    RAN  STATE\n"
        "mnist-ddp-x7k2p  Queued   research  -     8 (2x4)  1h2m      -  8 GPUs at once; 2 of 8 free\n"
        "digits-1         Running  default   ada         1  1h2m  2m10s  "
        "step 120/460 · loss 0.1235 · accuracy 97.22% · 12,300 samples/s\n"
    )


def test_of_an_elastic_job_the_workers_that_it_has(make_job: Any) -> None:
    spec = {"trainer": {"recipe": "lstm"}, "workers": 6, "gpusPerWorker": 2, "elastic": {"min": 2, "max": 8}}
    placed = [{"worker": at, "node": "a"} for at in range(3)]
    waits, runs = make_job("a", "Queued", spec), make_job("a", "Running", spec, placement=placed)
    assert [_shown(JOBS, [job]).split()[12:14] for job in (waits, runs)] == [["12", "(6x2)"], ["6", "(3x2)"]]
    assert "workers  6 (elastic, 2 to 8), each 2 GPUs" in job_details(waits)
    assert "workers  3 (elastic, 2 to 8), each 2 GPUs" in job_details(runs)


def test_on_a_narrow_terminal_the_state_keeps_its_room_and_names_and_phases_stay_whole(make_job: Any) -> None:
    columns, jobs = [PROJECT, *JOBS], _jobs(make_job)
    assert _shown(columns, jobs, 84) == (
        "PROJECT  NAME             PHASE    QUEUE        GPUS    RAN  STATE\n"
        "default  mnist-ddp-x7k2p  Queued   research  8 (2x4)      -  8 GPUs at once; 2 of 8…\n"
        "default  digits-1         Running  default         1  2m10s  step 120/460 · loss 0.…\n"
    )
    assert _shown(JOBS, jobs, 60) == (
        "NAME             PHASE       GPUS  STATE\n"
        "mnist-ddp-x7k2p  Queued   8 (2x4)  8 GPUs at once; 2 of 8 f…\n"
        "digits-1         Running        1  step 120/460 · loss 0.12…\n"
    )


@examples(200)
@given(
    cells=st.lists(st.lists(st.text(max_size=30), min_size=6, max_size=6), max_size=4),
    looks=st.lists(st.tuples(st.booleans(), st.booleans(), st.integers(0, 2)), min_size=6, max_size=6),
    width=st.integers(1, 120),
)
def test_no_line_wraps_and_no_number_is_cut(cells: Any, looks: Any, width: int) -> None:
    columns = [
        Column(f"TITLE{at}", cut=cut and not right, right=right, drops=drops)
        for at, (cut, right, drops) in enumerate(looks)
    ]
    rows = [
        [str(len(cell)) if column.right else cell for column, cell in zip(columns, row, strict=True)] for row in cells
    ]
    shown = table(columns, rows, width=width, colour=False)
    assert all(width_of(line) <= width for line in shown.splitlines()) and len(shown.splitlines()) == len(rows) + 1
    titles = shown.splitlines()[0].split()
    for at, column in enumerate(columns[1:], start=1):
        if column.right and column.title in titles:
            for line, row in zip(shown.splitlines()[1:], rows, strict=True):
                assert row[at] in line


def test_every_table_of_ours_fits_every_terminal(make_job: Any) -> None:
    node = least(NodeWithUsage).model_dump(mode="json", by_alias=True, exclude_none=True)
    queue = least(QueueWithUsage).model_dump(mode="json", by_alias=True, exclude_none=True)
    for width in range(20, 140):
        for columns, items in (
            (JOBS, _jobs(make_job)),
            (JOBS_WIDE, _jobs(make_job)),
            (NODES, [node]),
            (QUEUES, [queue]),
        ):
            assert max(len(line) for line in _shown(columns, items, width).splitlines()) <= width


def test_wide_letters_take_two_places() -> None:
    columns = (Column("MODEL", cut=True), Column("N", right=True))
    assert table(columns, [["学習", "1"], ["abcdefghijkl", "2"]], width=12, colour=False) == (
        "MODEL      N\n学習       1\nabcdefgh…  2\n"
    )


def test_wide_has_everything(make_job: Any) -> None:
    attempts = [
        {
            "number": 1,
            "endedAt": "2026-01-01T00:00:30Z",
            "startedAt": "2026-01-01T00:00:10Z",
            "workers": [{"worker": 0, "node": "box-7"}],
        }
    ]
    job = make_job("a", "Succeeded", attempt=1, attempts=attempts, gpuType="h100", usage={"gpuSeconds": 7200})
    shown = _shown(JOBS_WIDE, [_by("ada", job)])
    assert all(part in shown for part in ("box-7", "h100", "ada", "2.00", clock_text("2026-01-01T00:00:10Z")))


def test_colour_only_where_wanted(make_job: Any) -> None:
    assert "\x1b[" in _shown(JOBS, _jobs(make_job), 120, colour=True)
    assert "\x1b" not in _shown(JOBS, _jobs(make_job), 120)


def test_markup_in_a_message_is_text(make_job: Any) -> None:
    job = make_job("a", "Failed", message="[red]x[/red]\nnext [/] line")
    assert "[red]x[/red] next [/] line" in _shown(JOBS, [job])


@pytest.mark.parametrize(("progress", "says"), [({}, ""), ({"step": 3, "metrics": {"loss": 0.5}}, "step 3 · loss 0.5")])
def test_progress_says_what_is_known(make_job: Any, progress: Any, says: str) -> None:
    assert state_text(make_job("a", "Running", progress={"at": 0, **progress})) == says


def test_details_of_an_ended_job(make_job: Any) -> None:
    attempts = [
        {"number": 1, "endedAt": "2026-01-01T00:00:30Z", "category": "NodeLost", "message": "agent\nlost"},
        {
            "number": 2,
            "startedAt": "2026-01-01T00:00:40Z",
            "endedAt": "2026-01-01T00:01:00Z",
            "workers": [{"worker": 0, "node": "box-7"}],
        },
    ]
    job = make_job("a", "Succeeded", reason="Completed", attempt=2, attempts=attempts, progress=PROGRESS, ranS=20.0)
    job["status"]["resources"] = {"cpu": "7", "memory": "56Gi", "memoryFrom": "GpuShare"}
    created = job["metadata"]["creationTimestamp"]
    job["status"]["finishedAt"] = "2026-01-01T00:01:00Z"
    report = {"cost": 1.5, "currency": "EUR", "unpricedHours": 0.0}
    assert job_details(_by("ada", job), usage=report) == (
        "name         a\n"
        "project      default\n"
        "phase        Succeeded (Completed)\n"
        "queue        default, priority 0\n"
        "workers      1, each 1 GPU, 7 cores, 56Gi memory (share of a GPU)\n"
        "runs         image-classification\n"
        "user         ada\n"
        f"created      {clock_text(created)} (1h2m ago)\n"
        f"started      {clock_text('2026-01-01T00:00:40Z')}\n"
        f"ended        {clock_text('2026-01-01T00:01:00Z')}\n"
        "ran          20s\n"
        "attempt      2\n"
        "nodes        box-7\n"
        "progress     step 120/460 · loss 0.1235 · accuracy 97.22% · 12,300 samples/s\n"
        "checkpoint   step 100 /data/a\n"
        "cost         1.50 EUR\n"
        "splitDigest  abc\n"
        "attempt 1    NodeLost agent lost\n"
    )


def test_a_held_job_does_not_look_as_if_it_trained(make_job: Any) -> None:
    until = datetime(2026, 1, 1, 12, 34, tzinfo=UTC)
    hold = {"since": until.timestamp() - 600, "until": until.timestamp(), "exitCode": 1, "message": "KeyError"}
    local = f"{until.astimezone():%H:%M}"
    job = make_job("a", "Running", attempt=2, heldS=600.0, progress={**PROGRESS, "held": hold})
    assert state_text(job) == f"held until {local} after exit code 1 · `stoker exec a` enters"
    shown = job_details(job)
    assert f"hold        held until {local} after exit code 1; enter: stoker exec a\n" in shown
    assert "held        10m after failures\n" in shown
    far = until.timestamp() + 2 * 86400
    killed = {**hold, "exitCode": 137, "worker": 3, "until": far}
    job = make_job("a", "Running", progress={"at": 0, "held": killed})
    day = f"{(until + timedelta(days=2)).astimezone():%Y-%m-%d %H:%M}"
    assert state_text(job) == f"held until {day} after signal 9 · `stoker exec a --worker 3` enters"
    ended = make_job("a", "Failed", message="it failed", progress={"at": 0, "held": hold})
    assert state_text(ended) == "it failed"


def test_a_stalled_or_idle_job_does_not_look_as_if_it_trained(make_job: Any) -> None:
    stalled = {"attempt": 2, "since": 0, "until": 15, "step": 120, "message": "step 120 since 600 s"}
    job = make_job("a", "Running", attempt=2, progress={**PROGRESS, "stalled": stalled})
    assert state_text(job) == "stalled: step 120 since 600 s; its workers save their stacks and are ended"
    assert "stalled     step 120 since 600 s\n" in job_details(job)
    before = make_job("a", "Running", attempt=3, progress={**PROGRESS, "stalled": stalled})
    assert state_text(before).startswith("step 120/460")

    usage = {"idleSince": (datetime.now(UTC) - timedelta(minutes=31)).isoformat(), "gpuSeconds": 1}
    idle = make_job("a", "Running", progress=PROGRESS, usage=usage)
    assert "idle        GPUs idle for 31m\n" in job_details(idle)
    assert state_text(idle).startswith("GPUs idle for ") and "step 120/460" in state_text(idle)
    pause = {"idleSince": (datetime.now(UTC) - timedelta(seconds=20)).isoformat(), "gpuSeconds": 1}
    working = make_job("a", "Running", progress=PROGRESS, usage=pause)
    assert "idle" not in job_details(working)

    made = make_job("a", "Suspended", message="suspend requested")
    assert state_text(made) == "suspend requested"
    made["metadata"]["annotations"] = {"stoker.dev/idle-suspended": "2026-01-01T00:00:00Z"}
    shown = state_text(made)
    assert shown == "suspended by Stoker, its GPUs were idle · `stoker resume a` goes on"


def test_why() -> None:
    why = _sent(
        Explanation,
        {
            "phase": "Queued",
            "summary": "it needs\n2 GPUs\x1b[31m at once",
            "blockers": [{"code": "NoCapacity", "message": "node laptop: 1 of 2 GPUs free, short by 1"}],
            "position": 1,
            "hints": [{"code": "WouldStart", "message": "with workers: 1 instead of 2 it would start now"}],
            "queues": [
                {
                    "name": "team",
                    "held": {"gpus": 6, "cpu": 12.5, "memory": 2**30, "gpus.h100": 1},
                    "limit": {"gpus": 8, "memory": 2**31},
                    "guarantee": {"gpus": 4, "gpus.h100": 2},
                    "share": 0.5,
                    "shareOf": "gpus.h100",
                },
                {"name": "all", "held": {"gpus": 9}, "limit": {}, "guarantee": {}},
                {"name": "top", "held": {}, "limit": {}, "guarantee": {}, "problem": "its parent\nis missing"},
            ],
        },
    )
    assert explanation_text("mnist", why) == (
        "mnist is Queued: it needs 2 GPUs?[31m at once\n"
        "  - node laptop: 1 of 2 GPUs free, short by 1\n"
        "It is next in its queue.\n"
        "Queue team holds 6 GPUs (limit 8, guarantee 4), 1Gi memory (limit 2Gi), 1 h100 GPU (guarantee 2). "
        "Its share is 0.5, of h100 GPUs.\n"
        "Queue top: its parent is missing.\n"
        "What would start it:\n"
        "  - with workers: 1 instead of 2 it would start now"
    )


def _condition(kind: str, status: str) -> dict[str, str]:
    at = "2026-07-01T10:00:00Z"
    return {"type": kind, "status": status, "reason": "A", "message": f"{kind}!", "lastTransitionTime": at}


def test_queues_show_used_of_limit() -> None:
    queue = _sent(
        QueueWithUsage,
        {
            "metadata": {"name": "nlp"},
            "spec": {
                "limit": {"gpus": 8, "memory": "64Gi", "gpuTypes": {"h100": 2}},
                "projects": ["a", "b"],
            },
            "status": {
                "used": {"gpuTypes": {"h100": 1}},
                "conditions": [_condition("Active", "True"), _condition("Valid", "False")],
            },
            "usage": {"gpus": 3, "heldGpus": 1, "cpuMilli": 1500, "memoryBytes": 2**31, "running": 2, "pending": 5},
        },
    )
    assert _shown(QUEUES, [queue]) == (
        "NAME  PARENT            GPUS  GUARANTEED  WEIGHT  HELD  CORES    MEMORY  RUNNING  PENDING  PROJECTS  MESSAGE\n"
        "nlp   -       3/8 (h100 1/2)           -       1     1    1.5  2Gi/64Gi        2        5  a,b       Valid!\n"
    )


def test_nodes_say_what_is_simulated_and_what_is_lost() -> None:
    gpus = [
        {"uuid": "a", "index": 0, "model": "virtual", "memoryBytes": 1, "simulated": True},
        {"uuid": "b", "index": 1, "model": "virtual", "memoryBytes": 1, "simulated": True, "unavailable": "lost"},
    ]
    node = _sent(
        NodeWithUsage,
        {
            "metadata": {"name": "laptop"},
            "status": {"ready": True, "cpuMilli": 2000, "memoryBytes": 2**33, "gpus": gpus},
            "usage": {"gpus": 1, "cpuMilli": 1000, "memoryBytes": 2**30},
        },
    )
    assert _shown(NODES, [node]) == (
        "NAME    READY  GPUS  CORES   MEMORY  GPU MODELS           MESSAGE\n"
        "laptop  yes     1/1    1/2  1Gi/8Gi  virtual (simulated)  GPU 1: lost\n"
    )
    assert "GPU 1: lost; its exporter does not report any more\n" in _shown(NODES, [node | {"exporter": "Silent"}])


def test_nodes_say_which_gpus_are_tested_wait_for_that_or_are_blamed() -> None:
    at = "2026-01-01T00:00:00Z"
    blames = [{"jobUid": uid, "attempt": 1, "at": at} for uid in ("a", "b")]
    blamed = [{"uuid": "c", "index": 3, "blames": blames}, {"uuid": "d", "index": 4, "blames": blames[:1]}]
    tests = [
        {"gpu": "a", "index": 0, "state": "Testing", "job": "stoker-system/burn-in-a"},
        {"gpu": "b", "index": 1, "state": "Waiting", "dueAt": at},
        {"gpu": "f", "index": 2, "state": "Failed", "message": "is in why the GPU is unavailable"},
    ]
    node = {"metadata": {"name": "n1"}, "status": {"ready": True, "blamed": blamed}, "burnIns": tests}
    assert _shown(NODES, [_sent(NodeWithUsage, node)]).endswith(
        "GPU 0 is tested by job stoker-system/burn-in-a; GPU 1 waits for a burn-in; GPU 3 is blamed by 2 jobs; "
        "GPU 4 is blamed by 1 job\n"
    )


def test_no_name_moves_the_terminal_it_is_shown_on() -> None:
    name = "a\x1b]0;owned\x07\x1b[2Jb"
    shown = table([Column("USER")], [[name]], width=None, colour=True)
    head = {"project": "p", "job": "j", "jobUid": "u", "queue": "q", "user": name, "deleted": False}
    report = _sent(JobUsageReport, {**head, "usage": {}})
    for text in (shown, one_line(name), job_usage_text(report), hint_lines([name])):
        assert "a?]0;owned??[2Jb" in text
        assert "\x07" not in text and "\x1b]" not in text and "\x1b[2J" not in text
