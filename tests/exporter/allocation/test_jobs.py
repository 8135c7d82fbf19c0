"""Which job a pod belongs to: asked when it must be, remembered while the api is away."""

import json

import pytest

from stoker.exporter.allocation.jobs import NoAnswer, PodJobs
from stoker.exporter.allocation.owners_route import MAX_PODS, OwnersRoute
from stoker.exporter.owners import Owner
from stoker.push.link import Link
from tests.support.testbed.webhook import Answer, Webhook

from .kubelet_world import gpu_pod

A, B = ("team", "a"), ("team", "b")


@pytest.fixture
def jobs(api, clock):
    return PodJobs(api, clock)


def test_what_is_known_is_asked_again_after_half_a_minute(jobs, api, clock):
    owner = api.knows("a")
    jobs.ask_about({A})
    assert jobs.knows(A) and jobs.owner(A) == owner
    clock.now += 29
    jobs.ask_about({A})
    assert api.asked == [[A]]
    clock.now += 1
    jobs.ask_about({A})
    assert api.asked == [[A], [A]]


def test_who_is_not_known_is_asked_about_every_time(jobs, api, clock):
    jobs.ask_about({A})
    assert not jobs.knows(A) and jobs.owner(A) == Owner("team", "a")
    clock.now += 5
    api.knows("a")
    api.knows("b")
    jobs.ask_about({A, B})
    assert jobs.knows(A) and api.asked == [[A], [A, B]]


def test_a_pod_that_is_no_worker_is_known_to_be_none(jobs, api):
    api.knows("a", job="", uid="pod-9")
    jobs.ask_about({A})
    assert jobs.knows(A) and jobs.owner(A) == Owner("team", "a", "pod-9")


def test_the_name_of_a_job_that_was_made_anew(jobs, api, clock):
    api.knows("a", job="job-1", uid="pod-1")
    jobs.ask_about({A})
    api.knows("a", job="job-2", uid="pod-2")
    clock.now += 30
    jobs.ask_about({A})
    assert (jobs.owner(A).job_uid, jobs.owner(A).pod_uid) == ("job-2", "pod-2")


def test_a_name_that_was_gone_for_a_moment_is_asked_about_at_once(jobs, api):
    api.knows("a", job="job-1")
    jobs.ask_about({A})
    jobs.ask_about(set())
    api.knows("a", job="job-2")
    jobs.ask_about({A})
    assert jobs.owner(A).job_uid == "job-2"


def test_what_was_answered_stays_true_while_the_api_is_away_or_has_forgotten(jobs, api, clock):
    owner = api.knows("a")
    jobs.ask_about({A})
    api.away = True
    clock.now += 3600
    jobs.ask_about({A})
    assert jobs.knows(A) and jobs.owner(A) == owner
    api.away = False
    api.pods.clear()
    clock.now += 3600
    jobs.ask_about({A})
    assert jobs.owner(A) == owner


def test_an_api_that_is_away_is_asked_ever_less_often(jobs, api, clock):
    api.away = True
    asked_at = []
    for _ in range(400):
        before = len(api.asked)
        jobs.ask_about({A})
        if len(api.asked) > before:
            asked_at.append(clock.now - 1000.0)
        clock.now += 1.0
    assert asked_at == [0, 5, 15, 35, 75, 135, 195, 255, 315, 375]
    api.away = False
    api.knows("a")
    clock.now += 60
    jobs.ask_about({A})
    assert jobs.knows(A)


def test_without_an_api_pods_have_no_jobs_and_nothing_is_wrong(clock):
    jobs = PodJobs(None, clock)
    jobs.ask_about({A})
    assert jobs.knows(A) and jobs.owner(A) == Owner("team", "a")


def test_holdings_of_a_pod_whose_job_is_learnt_late(node):
    """Until the api answers, the GPU is the pod's without a job, and counted as such."""
    node.has(gpu_pod("a", "GPU-0000"))
    node.api.away = True
    early = node.read()
    assert early.holdings[0].owner == Owner("team", "a") and early.unattributed == {"owner_unknown": 1}
    assert early.known
    node.api.away = False
    owner = node.api.knows("a")
    node.clock.now += 5
    late = node.read()
    assert late.holdings[0].owner == owner and late.unattributed == {}


# --- the route's client, against a real server


def says(status, data):
    body = data if isinstance(data, bytes) else json.dumps(data).encode()
    return lambda _: Answer(status, body, {"Content-Type": "application/json"})


@pytest.fixture
def owners_api():
    """Answers POST /v1/report/owners."""
    with Webhook(says(200, {"owners": []})) as hook:
        yield hook


def test_the_question_and_its_answer(owners_api, tmp_path):
    (tmp_path / "token").write_text("exp.n0.abc\n")
    pod = {"namespace": "team", "name": "a", "podUid": "p", "jobUid": "j", "project": "team", "jobName": "train"}
    owners_api.answer = says(200, {"owners": [{**pod, "attempt": 2, "worker": 3}, {**pod, "name": "b"}]})
    link = Link(owners_api.url.rstrip("/"), tmp_path / "token")
    answers = OwnersRoute(link).ask([A, B])
    assert answers[0].owner == Owner("team", "a", "p", "j", "team", "train", 2, 3) and not answers[0].ended
    assert answers[1].owner.pod_name == "b"
    pods = [{"namespace": "team", "name": "a"}, {"namespace": "team", "name": "b"}]
    [asked] = owners_api.posted
    assert (asked.path, asked.headers["authorization"]) == ("/v1/report/owners", "Bearer exp.n0.abc")
    assert asked.json() == {"pods": pods}
    link.close()


def test_many_pods_are_several_questions(owners_api):
    link = Link(owners_api.url.rstrip("/"))
    OwnersRoute(link).ask([("team", f"p{n}") for n in range(MAX_PODS + 1)])
    assert [len(asked.json()["pods"]) for asked in owners_api.posted] == [MAX_PODS, 1]
    link.close()


@pytest.mark.parametrize(
    ("status", "data", "why"),
    [
        (503, {}, "503"),
        (403, {}, "403"),
        (200, b"<html>", "not the api's"),
        (200, {"owners": [{"namespace": "x"}]}, "not the api's"),
        (200, {"owners": [3]}, "not the api's"),
        (200, [], "not the api's"),
    ],
)
def test_answers_that_say_nothing(owners_api, status, data, why):
    owners_api.answer = says(status, data)
    link = Link(owners_api.url.rstrip("/"))
    with pytest.raises(NoAnswer, match=why):
        OwnersRoute(link).ask([A])
    link.close()


def test_an_api_that_is_not_there():
    with pytest.raises(NoAnswer, match="refused"):
        OwnersRoute(Link("http://127.0.0.1:1")).ask([A])
