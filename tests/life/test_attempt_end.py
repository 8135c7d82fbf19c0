"""How an attempt ended, of what, and what follows from it, rule by rule: the name is the rule, the body is data."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from stoker.life.step import Step
from stoker.spec.job import Phase, TrainingJob, TrainingJobStatus
from stoker.spec.job_parts import MAX_WORKERS
from stoker.spec.outcome import Category, Intent
from stoker.spec.pod import NEVER_STARTED, REJECTED, Pod, PodPhase
from stoker.spec.reasons import Code
from stoker.spec.worker import Checkpoint, Progress, RankExit

from .gang import FAILED, NOW, after, ago, container, done, failed, go, job, lost, pod, record, running, status_of


def disrupted(reason: str) -> dict[str, Any]:
    return {"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": reason, "message": "drained"}]}


def stopping(intent: Intent, **given: Any) -> TrainingJob:
    return job(Phase.STOPPING, intent=intent, **given)


PHASES = [
    # (case, job, pods, phase, category, reason)
    ("exit 0", job(), [done()], Phase.SUCCEEDED, None, Code.COMPLETED),
    ("so short that it was never seen running", job(Phase.STARTING), [done()], Phase.SUCCEEDED, None, Code.COMPLETED),
    ("exit 1 is the user's", job(), [failed()], Phase.FAILED, Category.USER_ERROR, Code.FAILED),
    ("a user's own 75", job(), [failed(0, 75)], Phase.FAILED, Category.USER_ERROR, Code.FAILED),
    ("a user's own 64", job(), [failed(0, 64)], Phase.FAILED, Category.USER_ERROR, Code.FAILED),
    ("a user's own 77", job(), [failed(0, 77)], Phase.FAILED, Category.USER_ERROR, Code.FAILED),
    ("our 64", job(recipe=True), [failed(0, 64)], Phase.FAILED, Category.BAD_CONFIG, Code.FAILED),
    ("our 76", job(recipe=True), [failed(0, 76)], Phase.FAILED, Category.OUT_OF_MEMORY, Code.FAILED),
    ("our 77", job(recipe=True), [failed(0, 77)], Phase.FAILED, Category.DIVERGED, Code.FAILED),
    ("our 78 is tried again", job(recipe=True), [failed(0, 78)], Phase.QUEUED, Category.STALLED, Code.BACKING_OFF),
    ("our 79 is tried elsewhere", job(recipe=True), [failed(0, 79)], Phase.QUEUED, Category.DEVICE_UNAVAILABLE,
     Code.BACKING_OFF),
    ("killed", job(), [failed(0, 137, signal=9)], Phase.QUEUED, Category.KILLED, Code.BACKING_OFF),
    ("a crash of the user's", job(), [failed(0, 139, signal=11)], Phase.FAILED, Category.USER_ERROR, Code.FAILED),
    ("lost", job(), [lost()], Phase.QUEUED, Category.NODE_LOST, Code.BACKING_OFF),
    ("refused", job(), [pod(phase=FAILED, reason=REJECTED)], Phase.QUEUED, Category.REJECTED, Code.BACKING_OFF),
    ("stopped from outside", job(), [failed(0, 75, stop_requested=True)], Phase.QUEUED, Category.INTERRUPTED,
     Code.BACKING_OFF),
    ("suspended", stopping(Intent.SUSPEND, suspend=True), [failed(0, 75, stop_requested=True)], Phase.SUSPENDED,
     Category.INTERRUPTED, Code.SUSPENDED),
    ("cancelled", stopping(Intent.CANCEL, cancel=True), [failed(0, 143, signal=15, stop_requested=True)],
     Phase.CANCELLED, Category.INTERRUPTED, Code.CANCELLED),
    ("done before the stop came", stopping(Intent.SUSPEND), [done()], Phase.SUCCEEDED, None, Code.COMPLETED),
    ("out of time", stopping(Intent.MAX_DURATION), [failed(0, 75, stop_requested=True)], Phase.FAILED,
     Category.MAX_DURATION, Code.FAILED),
    ("failed by itself while a suspend was asked", stopping(Intent.SUSPEND, recipe=True), [failed(0, 64)],
     Phase.FAILED, Category.BAD_CONFIG, Code.FAILED),
    ("withdrawn before it ran", stopping(Intent.WITHDRAW), [pod(phase=FAILED, reason=NEVER_STARTED)], Phase.QUEUED,
     Category.START_TIMEOUT, Code.BACKING_OFF),
]  # fmt: skip


@pytest.mark.parametrize(
    ("subject", "pods", "phase", "category", "reason"), [c[1:] for c in PHASES], ids=[c[0] for c in PHASES]
)
def test_what_follows(
    subject: TrainingJob, pods: list[Pod], phase: Phase, category: Category | None, reason: Code
) -> None:
    status = status_of(go(subject, *pods))
    assert (status.phase, status.attempts[-1].category, status.reason) == (phase, category, reason)
    assert (status.placement, status.intent) == ((), Intent.NONE)
    assert (status.finished_at is not None) == (phase in (Phase.SUCCEEDED, Phase.FAILED, Phase.CANCELLED))
    if phase is Phase.SUCCEEDED:
        assert status.ran_s == pytest.approx(20)


def test_gpu_seconds_add_up_over_attempts() -> None:
    subject = job(workers=2, gpus_per_worker=4, attained_gpu_seconds=100.0)
    assert status_of(go(subject, done(), done(1))).attained_gpu_seconds == pytest.approx(100 + 20 * 8)


@pytest.mark.parametrize(
    "said",
    [
        {"started_at": NOW.timestamp()},
        {"finished_at": ago(3600).timestamp()},
        {"started_at": 0.0, "finished_at": 2e11},
        {"held_s": 3600.0, "failed_at": ago(3590).timestamp()},
    ],
    ids=["begun when it ended", "ended when it began", "for ages", "held all the time"],
)
def test_what_a_job_says_of_its_own_time_counts_no_further_than_its_kubelet_agrees(said: dict[str, Any]) -> None:
    """An image of the job's own may stand in for its supervisor; `las` goes by what jobs have had."""
    began, ended = ago(3600), NOW
    own = record(1, **({"started_at": began.timestamp(), "finished_at": ended.timestamp()} | said))
    times = {"startedAt": began.isoformat(), "finishedAt": ended.isoformat()}
    state = {"exitCode": 1, "reason": "Error", "message": own.model_dump_json(by_alias=True), **times}
    worker = pod(phase=FAILED, containerStatuses=[{"name": "worker", "state": {"terminated": state}}])
    status = status_of(go(job(gpus_per_worker=8, since_s=3700), worker))
    assert status.attained_gpu_seconds == pytest.approx(3600 * 8, abs=60 * 8)
    assert status.ran_s + status.held_s == pytest.approx(3600, abs=60)


NUMBERS = ["1e999", "-1e999", "NaN", "Infinity", "1e308", "-1e308", "1" + "0" * 400, "-9223372036854775809", "-1"]
FIELDS = [
    *("startedAt", "finishedAt", "exitCode", "signal", "failedAt", "failedRank", "heldS", "memoryPeakBytes"),
    *(f"progress.{name}" for name in ("at", "step", "stepAt", "totalSteps", "epoch", "samples")),
    *("progress.metrics.x", "progress.summary.x", "progress.summary.x.0", "progress.checkpoint.step"),
    *("progress.checkpoint.at", "progress.held.since", "progress.held.exitCode", "progress.stalled.attempt"),
]
WHOLE = {
    "memoryKilled": True,
    "progress": {
        "at": 1.0,
        "metrics": {"x": 1.0},
        "summary": {"x": [1]},
        "checkpoint": {"step": 1, "at": 1.0},
        "held": {"since": 1.0, "until": 2.0, "exitCode": 1},
        "stalled": {"attempt": 1, "since": 1.0, "until": 2.0},
    },
}


@pytest.mark.parametrize("field", FIELDS)
def test_an_attempt_ends_whatever_numbers_its_record_holds(field: str) -> None:
    """Else it would keep its place for ever: the store takes no such status."""
    for number in NUMBERS:
        said: Any = json.loads(record(137).model_dump_json(by_alias=True)) | json.loads(json.dumps(WHOLE))
        *path, last = [int(part) if part.isdigit() else part for part in field.split(".")]
        part_of = said
        for part in path:
            part_of = part_of[part]
        part_of[last] = "HERE"
        text = json.dumps(said).replace('"HERE"', number)
        subject = job(attained_gpu_seconds=1e9, ran_s=1e9, held_s=1e9, gpus_per_worker=64)
        status = status_of(go(subject, pod(phase=FAILED, **container(code=137, message=text))))
        assert status.phase in (Phase.QUEUED, Phase.FAILED), number
        raw = json.dumps(status.model_dump(mode="json", by_alias=True, exclude_none=True), allow_nan=False)
        assert TrainingJobStatus.model_validate_json(raw) == status, number
        assert all(-(2**63) <= one < 2**63 for one in integers(json.loads(raw))), number


def test_a_summary_may_hold_any_integer() -> None:
    """A count of floating-point operations, say, takes more than 64 bits."""
    text = json.dumps({"at": 0, "summary": {"flops": 10**30, "all": [{"x": 10**400}, 7]}})
    progress = Progress.model_validate_json(text)
    assert progress.summary == {"flops": 1e30, "all": [{"x": None}, 7]}


def integers(value: Any) -> list[int]:
    if isinstance(value, dict | list):
        return [one for item in (value.values() if isinstance(value, dict) else value) for one in integers(item)]
    return [value] if isinstance(value, int) else []


SAVED = record(75, stop_requested=True)
GONE = container("ContainerStatusUnknown", 137, started=False)
HOOK = "error running prestart hook: nvidia-container-cli: no driver"
NO_SPACE = {"state": {"terminated": {"exitCode": 1, "reason": "Error", "message": "no space"}}}
KUBELETS = [
    # (case, the status of the pod, category, message)
    ("the kubelet has no device", {"reason": "UnexpectedAdmissionError", "message": "Allocate failed"},
     Category.REJECTED, "UnexpectedAdmissionError: Allocate failed"),
    ("the kubelet has no room", {"reason": "OutOfnvidia.com/gpu", "message": "Node didn't have enough resource"},
     Category.REJECTED, "OutOfnvidia.com/gpu"),
    ("the kubelet has other labels than the scheduler saw",
     {"reason": "NodeAffinity", "message": "Predicate NodeAffinity failed"}, Category.REJECTED, "NodeAffinity"),
    ("a port is taken", {"reason": "NodePorts"}, Category.REJECTED, "NodePorts"),
    ("rejected as the node goes down", {"reason": "NodeShutdown", "message": "the node is shutting down"},
     Category.REJECTED, "shutting down"),
    ("evicted without a record", {"reason": "Evicted", "message": "low on memory", **container(code=137)},
     Category.INTERRUPTED, "low on memory"),
    ("evicted, and it saved", {"reason": "Evicted", **container(code=75, message=SAVED)}, Category.INTERRUPTED, ""),
    ("drained, and its supervisor saw SIGTERM and had nothing to save",
     {"deleted_at": NOW, **disrupted("EvictionByEvictionAPI"),
      **container(code=75, message=record(75, stop_requested=True, message="Terminated"))},
     Category.INTERRUPTED,
     "stopped from outside: evicted from n0, by a drain or on request (EvictionByEvictionAPI: drained)"),
    ("preempted by a critical pod of the node's", {"reason": "Preempting"}, Category.INTERRUPTED, "Preempting"),
    ("the node shuts down", {"reason": "Terminated"}, Category.INTERRUPTED, "Terminated"),
    ("evicted by the taint manager",
     {"deleted_at": NOW, **container(code=143), **disrupted("DeletionByTaintManager")},
     Category.INTERRUPTED, "DeletionByTaintManager: drained"),
    ("its node was removed, the garbage collector cleared up", disrupted("DeletionByPodGC"), Category.INTERRUPTED,
     "DeletionByPodGC"),
    ("deleted by hand, without a supervisor", {"deleted_at": NOW, **container(code=143)}, Category.INTERRUPTED, ""),
    ("deleted before its container was made", {"deleted_at": NOW, **GONE}, Category.INTERRUPTED, ""),
    ("the container is not to be found", container("ContainerStatusUnknown", 137), Category.NODE_LOST, ""),
    ("the kernel killed it", container("OOMKilled", 137), Category.KILLED,
     "out of memory: asked 1Gi, reached; ask for more: stoker clone j --set spec.memory=2Gi"),
    ("the kernel killed it, but not its supervisor", container("OOMKilled", 137, record(137, signal=9)),
     Category.KILLED, "out of memory: asked 1Gi, reached;"),
    ("killed by hand", container(code=137), Category.KILLED, "killed"),
    ("a bare worker failed", container(code=3, message="one\nValueError: no\n"), Category.USER_ERROR,
     "ValueError: no"),
    ("a bare worker is done", {"phase": PodPhase.SUCCEEDED, **container("Completed", 0)}, None, ""),
    ("there is no shell in the image", container("StartError", 128, 'exec: "/bin/sh": no such file'),
     Category.USER_ERROR, "/bin/sh"),
    ("the node's driver is broken", container("StartError", 128, HOOK), Category.REJECTED, "nvidia"),
    ("the supervisor could not be installed", {"initContainerStatuses": [{"name": "stoker-supervisor", **NO_SPACE}]},
     Category.REJECTED, "no space"),
]  # fmt: skip


@pytest.mark.parametrize(("status", "category", "message"), [c[1:] for c in KUBELETS], ids=[c[0] for c in KUBELETS])
def test_what_a_kubelet_says(status: dict[str, Any], category: Category | None, message: str) -> None:
    new = status_of(go(job(), pod(**({"phase": FAILED} | status))))
    assert new.attempts[-1].category is category
    assert message in new.message
    back = category in (Category.REJECTED, Category.INTERRUPTED, Category.KILLED, Category.NODE_LOST)
    assert (new.phase is Phase.QUEUED) == back
    blamed = [(blame.node, blame.until) for blame in new.blamed]
    own = category in (Category.REJECTED, Category.NODE_LOST)
    assert blamed == ([("n0", NOW + timedelta(seconds=120))] if own else [])


@pytest.mark.parametrize(
    ("said", "category", "message"),
    [
        (
            {"signal": 9, "memory_peak_bytes": 2**30},
            Category.KILLED,
            "out of memory: asked 1Gi, peak 1Gi; ask for more",
        ),
        ({"memory_peak_bytes": 2**30}, Category.KILLED, "out of memory: asked 1Gi, peak 1Gi; ask for more"),
        (
            {"memory_peak_bytes": 2**29},
            Category.KILLED,
            "out of memory: asked 1Gi, peak 512Mi: the node itself ran out",
        ),
        ({"stop_requested": True, "memory_peak_bytes": 2**30}, Category.INTERRUPTED, "stopped from outside"),
    ],
)
def test_a_supervisor_says_that_memory_ran_out(said: dict[str, Any], category: Category, message: str) -> None:
    new = status_of(go(job(), failed(0, 1, memory_killed=True, **said)))
    assert new.attempts[-1].category is category and new.message.startswith(message)


def test_what_was_killed_for_its_memory_names_its_last_line_behind_the_command() -> None:
    new = status_of(
        go(job(workers=2), done(), failed(1, 137, signal=9, memory_killed=True, message="ended by SIGKILL"))
    )
    assert new.message.startswith("worker 1: out of memory: ") and new.message.endswith("=2Gi (ended by SIGKILL)")


def test_of_an_exit_record_that_was_cut_the_whole_fields_count_and_another_pods_is_none() -> None:
    ranks = tuple(RankExit(rank=rank, exit_code=1, at=1.0) for rank in range(200))
    whole = record(76, message="x" * 300, ranks=ranks, progress=Progress(at=0)).model_dump_json(by_alias=True)
    assert len(whole) > 4096
    foreign = whole.replace("pod-1-0", "pod-1-1")
    for recipe, text, category in (
        (True, whole[:4096], Category.OUT_OF_MEMORY),
        (True, foreign[:4096], Category.USER_ERROR),
        (False, whole[:60], Category.USER_ERROR),
    ):
        end = pod(phase=FAILED, **container(code=76, message=text))
        assert status_of(go(job(recipe=recipe), end)).attempts[-1].category is category


def test_a_gpu_that_cannot_be_used_blames_its_node_and_explains_its_peers_errors() -> None:
    new = status_of(go(job(workers=2, recipe=True), failed(0, 79, failed_at=9.0), failed(1, 1, failed_at=5.0)))
    assert new.message.startswith("worker 0:") and [blame.node for blame in new.blamed] == ["n0"]


def test_a_recipe_says_why_it_is_done() -> None:
    progress = Progress(at=0, summary={"ended": "no better loss in 5 evaluations (best 1.9 at step 400)"})
    for recipe, says in ((True, f"done: {progress.summary['ended']}"), (False, "done")):
        new = status_of(go(job(recipe=recipe), done(progress=progress)))
        assert (new.phase, new.message) == (Phase.SUCCEEDED, says)


def test_a_command_says_what_it_reached() -> None:
    said = "target reached: score 0.95 is at least 0.9"
    target = {"stop": {"target": {"metric": "score", "value": 0.9, "mode": "max"}}}
    for given, says in ((target, f"done: {said}"), ({}, "done")):
        new = status_of(go(job(**given), done(message=said)))
        assert (new.phase, new.message) == (Phase.SUCCEEDED, says)
    assert status_of(go(job(**target), done())).message == "done", "it ended by itself"


# -- a gang


def test_one_worker_done_waits_for_the_others() -> None:
    assert go(job(workers=2), done(0), running(1)) == Step()


def test_one_worker_failed_stops_the_others_and_then_ends_the_attempt() -> None:
    two = job(workers=2)
    assert [p.metadata.name for p in go(two, failed(0), running(1)).stop] == ["j-1-1"]
    status = status_of(go(two, failed(0, message="boom"), failed(1, 75, stop_requested=True, deleted_at=NOW)))
    assert (status.phase, status.reason) == (Phase.FAILED, Code.FAILED)
    assert status.attempts[0].category is Category.USER_ERROR
    assert "worker 0" in status.message and "boom" in status.message
    assert [w.category for w in status.attempts[0].workers] == [Category.USER_ERROR, Category.INTERRUPTED]


@pytest.mark.parametrize(
    "pods",
    [
        pytest.param([failed(0, 3, failed_at=9.0), failed(1, 4, failed_at=8.0)], id="the earliest failure"),
        pytest.param([failed(0, 1, failed_at=1.0), lost(1)], id="a lost worker explains its peers' errors"),
        pytest.param([failed(0, 143, stop_requested=True), failed(1, failed_at=5.0)], id="not who was stopped"),
    ],
)
def test_one_worker_is_the_cause(pods: list[Pod]) -> None:
    assert status_of(go(job(workers=2), *pods)).message.startswith("worker 1:")


def test_a_gang_that_agreed_to_stop_is_interrupted_though_one_supervisor_alone_was_asked() -> None:
    """SIGTERM to one worker: our trainer's ranks agree among themselves, and the others end with 75 unasked."""
    ends = failed(0, 75, stop_requested=True), failed(1, 75)
    status = status_of(go(job(workers=2, recipe=True), *ends))
    assert [w.category for w in status.attempts[0].workers] == [Category.INTERRUPTED, Category.INTERRUPTED]
    assert (status.phase, status.attempts[0].category) == (Phase.QUEUED, Category.INTERRUPTED)
    assert status_of(go(job(workers=2), *ends)).attempts[0].category is Category.USER_ERROR


# -- exit 0 after a stop

STOPPED = {"stop": {"exitZeroAfterSignal": "Stopped"}}
ZERO = "exit 0 after SIGTERM counts as done; set stop.exitZeroAfterSignal: Stopped"


@pytest.mark.parametrize("intent", list(Intent))
@pytest.mark.parametrize("workers", [1, 2])
def test_exit_0_after_a_stop_is_exit_75_where_the_job_says_so_and_else_done_with_a_warning(
    workers: int, intent: Intent
) -> None:
    phase = Phase.RUNNING if intent is Intent.NONE else Phase.STOPPING

    def ends(code: int, **spec: Any) -> Step:
        pods = [failed(w, code, stop_requested=True, deleted_at=NOW) for w in range(workers)]
        return go(job(phase, intent=intent, workers=workers, **spec), *pods)

    as_75 = status_of(ends(75))
    stopped = ends(0, **STOPPED)
    assert stopped.before is None
    now = status_of(stopped)
    assert (now.phase, now.reason) == (as_75.phase, as_75.reason)
    assert (now.retries, now.not_before) == (as_75.retries, as_75.not_before)
    assert now.attempts[-1].category is as_75.attempts[-1].category

    by_default = ends(0)
    assert status_of(by_default).phase is Phase.SUCCEEDED
    assert by_default.before is not None and by_default.before.warning and ZERO in by_default.before.message
    assert go(job(phase, intent=intent, workers=workers), *(done(w) for w in range(workers))).before is None


@pytest.mark.parametrize(
    ("peer", "phase", "category"),
    [
        (failed(1, 75, stop_requested=True), Phase.QUEUED, Category.INTERRUPTED),
        (done(1), Phase.QUEUED, Category.INTERRUPTED),
        (failed(1, 143, signal=15, stop_requested=True), Phase.QUEUED, Category.INTERRUPTED),
        (failed(1, 3, failed_at=5.0), Phase.FAILED, Category.USER_ERROR),
    ],
    ids=["saved and said 75", "exit 0 unasked", "ended by the signal", "a failure explains its peers"],
)
def test_a_gang_of_which_one_worker_stopped_with_0(peer: Pod, phase: Phase, category: Category) -> None:
    status = status_of(go(job(workers=2, **STOPPED), done(0, stop_requested=True), peer))
    assert (status.phase, status.attempts[-1].category) == (phase, category)


def test_a_gang_does_not_wait_for_the_peers_of_a_worker_that_stopped_with_0() -> None:
    """SIGTERM reached one worker's supervisor, and its pod is not under deletion: its phase says Succeeded."""
    end = done(0, stop_requested=True)
    assert [p.metadata.name for p in go(job(workers=2, **STOPPED), end, running(1)).stop] == ["j-1-1"]
    assert go(job(workers=2), end, running(1)) == Step()
    assert go(job(workers=2, **STOPPED), done(0), running(1)) == Step(), "done without a stop"


def test_a_recipes_exit_0_is_done_without_a_warning_whatever_was_asked() -> None:
    result = go(job(recipe=True), done(stop_requested=True))
    assert (status_of(result).phase, result.before) == (Phase.SUCCEEDED, None)


@pytest.mark.parametrize("why", [{"deleted_at": NOW}, disrupted("EvictionByEvictionAPI")], ids=["deleted", "drained"])
def test_exit_0_of_a_worker_without_a_supervisor_is_a_stop_if_its_pod_was_under_deletion(why: dict[str, Any]) -> None:
    end = pod(phase=PodPhase.SUCCEEDED, **why, **container("Completed", 0))
    result = go(job(), end)
    assert status_of(result).phase is Phase.SUCCEEDED
    assert result.before is not None and result.before.reason == "ExitZeroAfterSignal"
    status = status_of(go(job(**STOPPED), end))
    assert (status.phase, status.attempts[-1].category) == (Phase.QUEUED, Category.INTERRUPTED)


# -- retries


def test_retries_are_counted_per_category_with_doubling_back_off_and_end() -> None:
    rules = {"rules": [{"categories": ["UserError"], "limit": 2, "backoff": "4s"}]}
    status = job().status
    for wait_s in (4, 8):
        subject = job(retry=rules, retries=status.retries, attempts=status.attempts)
        status = status_of(go(subject, failed()))
        assert status.not_before == NOW + timedelta(seconds=wait_s)
    status = status_of(go(job(retry=rules, retries=status.retries), failed()))
    assert (status.phase, status.reason) == (Phase.FAILED, Code.RETRIES_EXHAUSTED)


def interrupted(subject: TrainingJob, *, saved: int = 0, ran_s: float = 1.0) -> TrainingJobStatus:
    """The status after one more attempt that was stopped from outside."""
    now = NOW + timedelta(seconds=ran_s)
    progress = Progress(at=0, checkpoint=Checkpoint(step=saved)) if saved else None
    end = failed(0, 75, stop_requested=True, progress=progress)
    began = after(subject, subject.status.model_copy(update={"started_at": NOW}))
    status = status_of(go(began, end, now=now))
    assert (status.phase, status.not_before is not None) == (Phase.QUEUED, True)
    again = {"phase": Phase.RUNNING, "placement": subject.status.placement}
    return status.model_copy(update=again | {"not_before": NOW + ((status.not_before or now) - now)})


def test_ends_that_are_not_the_jobs_fault_spend_no_retries_but_wait_longer_while_nothing_comes_of_it() -> None:
    subject, waits = job(), []
    for options in ({}, {}, {}, {"saved": 5}, {"saved": 9}, {"saved": 9}, {}, {"ran_s": 3600.0}, {}):
        status = interrupted(subject, **options)
        waits.append((status.not_before - NOW).total_seconds())
        subject = after(subject, status)
    assert waits == [1, 2, 4, 1, 1, 1, 2, 1, 1]
    for _ in range(60):
        subject = after(subject, interrupted(subject))
    assert subject.status.not_before == NOW + timedelta(minutes=10)


def test_the_history_of_the_largest_gang_stays_smaller_than_an_object_may_be() -> None:
    """1.5 MiB with etcd: else the status of its end is refused for good, and it holds its nodes."""
    subject = job(workers=MAX_WORKERS)
    for _ in range(3):
        step = go(subject, failed(0, 137, signal=9), *(done(worker) for worker in range(1, MAX_WORKERS)))
        assert step.status is not None
        subject = after(job(workers=MAX_WORKERS), job(workers=MAX_WORKERS, attempts=step.status.attempts).status)
    assert [len(end.workers) for end in subject.status.attempts] == [0, 0, MAX_WORKERS]
    assert len(json.dumps(subject.dump())) < 2**20
