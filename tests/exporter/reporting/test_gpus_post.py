"""How the GPUs are reaches the api: at once when it has changed, and never at the cost of receipts."""

from __future__ import annotations

import pytest

from stoker.exporter.reporting import gpus_post
from tests.support.harness import until

from .recording_api import Say, problem, receipt

WELL, SICK = [{"uuid": "GPU-0", "index": 0, "lost": False}], [{"uuid": "GPU-0", "index": 0, "lost": True}]


def reports(api):
    return [post.body["gpus"] for post in list(api.posts) if post.path == "/v1/report/gpus"]


def test_what_has_changed_is_posted_once(api, reporter):
    made = reporter()
    for gpus in (WELL, WELL, [], WELL):
        made.gpus(gpus)
    until(lambda: reports(api) == [WELL])
    assert api.posts[0].body["node"] == "n0"
    made.gpus(SICK)
    until(lambda: reports(api) == [WELL, SICK])
    made.offer([receipt(1, final=True)])
    until(lambda: made.stats.receipts["sent"] == 1)
    assert reports(api) == [WELL, SICK]


def test_what_has_not_changed_is_posted_again_now_and_then(api, reporter, monkeypatch):
    monkeypatch.setattr(gpus_post, "AGAIN_S", 0.0)
    reporter().gpus(WELL)
    until(lambda: len(reports(api)) > 2)


@pytest.mark.parametrize("answer", [problem(404), problem(503), problem(422), Say(302)])
def test_an_api_that_does_not_take_it_gets_the_receipts_all_the_same(api, reporter, answer, monkeypatch):
    monkeypatch.setattr(gpus_post, "REFUSED_S", 0.1)
    takes = False
    api.answer = lambda post: answer if post.path == "/v1/report/gpus" and not takes else Say()
    made = reporter()
    made.gpus(SICK)
    made.offer([receipt(1, final=True)])
    until(lambda: made.stats.receipts["sent"] == 1 and len(reports(api)) > 1)
    takes = True
    before = len(reports(api))
    until(lambda: len(reports(api)) > before)
    assert reports(api)[-1] == SICK
