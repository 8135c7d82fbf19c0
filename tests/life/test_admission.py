"""Which jobs may run as they stand, and what their status says of it: tables of rules."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.life.admission import ACCEPTED_CONDITION, ADMISSION_CODES, admission_blockers
from stoker.life.lifecycle import step
from stoker.life.step import Facts, Settings, Step
from stoker.spec.job import Phase, TrainingJob
from stoker.spec.reasons import Code, Reason
from stoker.spec.runtime import effective_runtime

SETTINGS = Settings(notice_after_s=2.0)
BAR = Reason(code=Code.PROJECT_NOT_ALLOWED, message="queue 'q' is not open to project 'p'", queue="q")
OTHER = Reason(code=Code.PRIORITY_TOO_HIGH, message="priority 5 is above 1, the highest that queue 'q' takes")


def rule(name: str, expect: list[str], *, queue: dict[str, Any] | None, runtime: dict[str, Any] | None = None, **job):
    return pytest.param(queue, runtime, job, expect, id=name)


RULES = [
    rule("an open queue takes all projects", [], queue={}),
    rule("no such queue", ["QueueMissing"], queue=None),
    rule("the project is one of the queue's", [], queue={"projects": ("default",)}),
    rule("the project is none of the queue's", ["ProjectNotAllowed"], queue={"projects": ("others",)}),
    rule("an empty list is open to no project", ["ProjectNotAllowed"], queue={"projects": ()}),
    rule("the highest priority itself is taken", [], queue={"highest": 5}, priority=5),
    rule("a priority above the highest", ["PriorityTooHigh"], queue={"highest": 5}, priority=6),
    rule("a highest priority may be negative", ["PriorityTooHigh"], queue={"highest": -1}),
    rule("all that is wrong", ["ProjectNotAllowed", "PriorityTooHigh"], queue={"projects": (), "highest": -1}),
    rule("nothing named, nothing there: the built-in runtime", [], queue={}),
    rule("nothing named, `default` is for others", ["RuntimeMissing"], queue={}, runtime={"projects": ("others",)}),
    rule("the runtime named is for the project", [], queue={}, runtime={"projects": ("default",)}, runtime_name="r"),
    rule("the runtime named is for others", ["RuntimeMissing"], queue={}, runtime={"projects": ()}, runtime_name="r"),
    rule("the runtime named is not there", ["RuntimeMissing"], queue={}, runtime_name="r"),
    rule("`default` by name must be there", ["RuntimeMissing"], queue={}, runtime_name="default"),
    rule("both", ["QueueMissing", "RuntimeMissing"], queue=None, runtime_name="r"),
]


@pytest.mark.parametrize(("queue", "runtime", "job", "expect"), RULES)
def test_rules(sched, queue, runtime, job, expect) -> None:
    named = job.pop("runtime_name", None)
    wanted = sched.job("x", runtime=named, **job)
    there = None if queue is None else sched.queue(**queue)
    object_ = None if runtime is None else sched.runtime(named or "default", **runtime)
    found = list(admission_blockers(wanted, there, named or "default", object_))
    assert [str(bar.code) for bar in found] == expect
    assert {bar.code for bar in found} <= ADMISSION_CODES
    # The scheduler never starts what is barred, and says so first.
    world = sched.World().feed(sched.node("n"), *[one for one in (there, object_) if one is not None], wanted)
    assert world.codes("x")[: len(expect)] == expect if expect else world.starts() == {"x": ["n"]}


class Case:
    def __init__(self, sched: Any) -> None:
        self.sched = sched

    def job(self, reported: Reason | None = None, **given: Any) -> TrainingJob:
        job: TrainingJob = self.sched.job("x", **given)
        return job if reported is None else self.after(job, reported)

    def after(self, job: TrainingJob, barred_by: Reason | None, seconds: float = 60) -> TrainingJob:
        found = self.step(job, barred_by, seconds)
        assert found.status is not None
        return job.model_copy(update={"status": found.status})

    def step(self, job: TrainingJob, barred_by: Reason | None, seconds: float = 60) -> Step:
        return step(job, (), self.sched.at(seconds), SETTINGS, Facts(barred_by=barred_by))


@pytest.fixture
def case(sched) -> Case:
    return Case(sched)


def accepted(job: TrainingJob) -> list[tuple[str, str, str]]:
    return [(c.status, c.reason, c.message) for c in job.status.conditions if c.type == ACCEPTED_CONDITION]


def test_a_barred_job_is_reported_once_with_reason_message_condition_and_event(case: Case) -> None:
    found = case.step(case.job(), BAR)
    reported = case.after(case.job(), BAR)
    assert accepted(reported) == [("False", "ProjectNotAllowed", BAR.message)]
    assert (reported.status.phase, reported.status.reason, reported.status.message) == (
        Phase.QUEUED,
        BAR.code,
        BAR.message,
    )
    assert found.note is not None and (found.note.reason, found.note.warning) == ("NotAccepted", True)
    assert case.step(reported, BAR, 10_000) == Step(), "nothing more to write"


def test_a_fresh_job_gets_a_moment(case: Case, sched) -> None:
    found = case.step(case.job(), BAR, 1.9)
    assert (found.status, found.wake_at) == (None, sched.at(2))
    assert case.step(case.job(), BAR, 2.0).status is not None


def test_another_bar_is_another_condition_and_event(case: Case) -> None:
    found = case.step(case.job(BAR), OTHER)
    assert accepted(case.after(case.job(BAR), OTHER)) == [("False", "PriorityTooHigh", OTHER.message)]
    assert found.note is not None


def test_other_numbers_are_written_without_an_event(case: Case) -> None:
    moved = OTHER.model_copy(update={"message": "priority 5 is above 2, the highest that queue 'q' takes"})
    found = case.step(case.job(OTHER), moved)
    assert accepted(case.after(case.job(OTHER), moved)) == [("False", "PriorityTooHigh", moved.message)]
    assert found.note is None


def test_what_bars_it_no_more_is_taken_away_with_its_reason(case: Case) -> None:
    freed = case.after(case.job(BAR), None)
    assert (accepted(freed), freed.status.reason, freed.status.message) == ([], Code.SUBMITTED, "")
    assert case.step(freed, None) == Step()


@pytest.mark.parametrize(
    ("change", "phase"),
    [({"cancel": True}, Phase.CANCELLED), ({"suspend": True}, Phase.SUSPENDED)],
    ids=["cancelled", "suspended"],
)
def test_a_barred_job_that_is_asked_to_go_loses_the_condition_in_the_same_write(
    case: Case, change: dict[str, Any], phase: Phase
) -> None:
    reported = case.job(BAR)
    asked = reported.model_copy(update={"spec": reported.spec.model_copy(update=change)})
    gone = case.after(asked, BAR)
    assert (gone.status.phase, accepted(gone)) == (phase, [])
    assert case.step(gone, BAR).status is None, (
        "nothing more to write: what does not want to start is not admission_step"
    )


def test_what_was_unreadable_and_is_read_now_is_judged_like_any_other(case: Case) -> None:
    unread = Reason(code=Code.SUBMITTED, message="Stoker can't read this job: …")
    assert accepted(case.after(case.job(unread), None)) == []
    assert accepted(case.after(case.job(unread), BAR)) == [("False", "ProjectNotAllowed", BAR.message)]


def test_the_condition_never_outlives_the_wait(case: Case, sched) -> None:
    """An operator of an earlier version may have left it on a job that ran since."""
    reported = case.job(BAR)
    for phase in (Phase.RUNNING, Phase.SUCCEEDED):
        old = reported.model_copy(update={"status": reported.status.model_copy(update={"phase": phase})})
        assert accepted(case.after(old, None)) == []


EFFECTIVE = [
    ("named", ("r", "a"), {"default": (), "x": ("a",)}, "r"),
    ("the one that claims the project", (None, "a"), {"default": (), "x": ("a", "b")}, "x"),
    ("`default` for unclaimed projects", (None, "c"), {"default": (), "x": ("a", "b")}, "default"),
    ("`default` even where there is none", (None, "c"), {}, "default"),
    ("of several the first by name", (None, "a"), {"y": ("a",), "default": (), "x": ("a",)}, "x"),
    ("`default` may claim too", (None, "a"), {"y": ("a",), "default": ("a",)}, "default"),
]


@pytest.mark.parametrize(
    ("asked", "claims", "expect"), [one[1:] for one in EFFECTIVE], ids=[one[0] for one in EFFECTIVE]
)
def test_effective_runtime(sched, asked, claims, expect) -> None:
    runtimes = [sched.runtime(name, default_for=projects) for name, projects in claims.items()]
    assert effective_runtime(*asked, runtimes) == expect
    assert effective_runtime(*asked, reversed(runtimes)) == expect


NAMES = ["default", "a", "b"]
CHANGES = st.lists(
    st.tuples(st.sampled_from(NAMES), st.none() | st.sets(st.sampled_from(["p", "q"]))), min_size=1, max_size=8
)


@given(changes=CHANGES, first=st.integers(0, 8))
def test_jobs_follow_the_default_of_their_project_whatever_changes(sched, changes, first) -> None:
    """Jobs that are observed at any moment, and then left alone, are where a state made afresh would have them."""
    world, runtimes = sched.World().feed(sched.node("n", labels={"r": "a"}), sched.queue()), {}
    jobs = [
        sched.job(f"{project}-{named}", project=project, runtime=named) for project in "pq" for named in (None, "a")
    ]
    for number, (name, claims) in enumerate(changes):
        if number == first:
            world.feed(*jobs)
        if claims is None:
            runtimes.pop(name, None)
            world.state.forget_runtime(name)
        else:
            runtimes[name] = sched.runtime(name, selector={"r": name}, default_for=tuple(sorted(claims)))
            world.feed(runtimes[name])
    world.feed(*jobs)
    fresh = sched.World().feed(sched.node("n", labels={"r": "a"}), sched.queue(), *runtimes.values(), *jobs)
    for job in jobs:
        expect = effective_runtime(job.spec.runtime, job.metadata.namespace, runtimes.values())
        assert world.state.entries[job.key].runtime.name == expect
        assert world.state.entries[job.key].request == fresh.state.entries[job.key].request
    users = {name: set(known.users) for name, known in world.state.runtimes.states.items() if known.users}
    assert users == {name: set(known.users) for name, known in fresh.state.runtimes.states.items() if known.users}
    assert world.starts() == fresh.starts()
