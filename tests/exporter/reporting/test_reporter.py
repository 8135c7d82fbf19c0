"""The reporter against a real HTTP server: when it posts, what each answer means, what survives."""

import json
import threading
from dataclasses import replace

import pytest

from stoker.exporter.owners import Owner
from stoker.exporter.reporting.reporter import PAUSE_MAX_S, _longer
from stoker.nvml.frames import GpuEvent
from tests.support.harness import until

from .recording_api import HTML, RecordingApi, Say, problem, receipt

NEVER_S = 3600.0
XID = GpuEvent(1.8e9, "GPU-0", 0, "xid", 79, "GPU has fallen off the bus")


def nonzero(counts):
    return {outcome: count for outcome, count in counts.items() if count}


def workers(api):
    return [item["worker"] for item in api.taken]


# --- when


def test_receipts_go_as_they_were_offered(api, reporter, tmp_path):
    (tmp_path / "token").write_text("exp.n0.1\n")
    made = reporter(token=tmp_path / "token")
    mine = receipt(3, energy_j=12.5, idle_s={"no_process": 1.0})
    made.offer([mine])
    until(lambda: api.posts)
    post = api.posts[0]
    assert (post.path, post.authorization) == ("/v1/report/usage", "Bearer exp.n0.1")
    assert post.body == {"node": "n0", "receipts": [mine.as_json()]}
    (tmp_path / "token").write_text("exp.n0.2")  # replaced while we run
    made.offer([receipt(4)])
    until(lambda: len(api.posts) > 1)
    assert api.posts[1].authorization == "Bearer exp.n0.2"
    assert api.posts[1].connection == api.posts[0].connection
    until(lambda: nonzero(made.stats.receipts) == {"sent": 2})
    assert made.stats.waiting_receipts == 0


def test_what_was_taken_is_not_sent_again(api, reporter):
    made = reporter()
    made.offer([receipt(1)])
    until(lambda: made.stats.receipts.get("sent"))
    made.offer([receipt(1), receipt(1, worker=1)])
    until(lambda: made.stats.receipts["sent"] == 2)
    assert workers(api) == [0, 1]


def test_a_final_receipt_goes_at_once_and_takes_the_others_along(api, reporter):
    made = reporter(every_s=NEVER_S)
    made.offer([receipt(1, worker=0)])
    made.offer([receipt(9, worker=1, final=True)])
    until(lambda: len(api.taken) == 2)
    assert workers(api) == [1, 0]


def test_a_storm_of_one_xid_is_one_event_a_minute(api, reporter):
    made = reporter(every_s=NEVER_S)
    job, other = (Owner("vision", f"{name}-1-0", name, name, "vision", name, 1, 0) for name in ("train", "other"))
    for tenth in range(1000):
        made.event(replace(XID, at=XID.at + tenth / 10), [job])
    made.event(replace(XID, code=31), [job])
    made.event(XID, [job, other])
    for kind in ("lost", "recovered", "lost"):
        made.event(replace(XID, kind=kind, code=0), [job])
    until(lambda: made.stats.events.get("sent") == 7)
    reported = [(one["kind"], one["code"], one["at"] - XID.at, len(one["owners"])) for one in api.taken]
    xids = [("xid", 79, 0, 1), ("xid", 79, 60, 1), ("xid", 31, 0, 1), ("xid", 79, 0, 2)]
    assert reported == [*xids, ("lost", 0, 0, 1), ("recovered", 0, 0, 1), ("lost", 0, 0, 1)]


def test_an_event_goes_at_once_with_the_jobs_on_its_gpu(api, reporter):
    made = reporter(every_s=NEVER_S)
    job = Owner("vision", "train-1-0", "pod-1", "job-1", "vision", "train", 1, 0)
    sibling = Owner("vision", "train-1-1", "pod-2", "job-1", "vision", "train", 1, 1)
    made.event(XID, [job, sibling, Owner("kube-system", "foreign")])
    until(lambda: api.posts)
    post = api.posts[0]
    assert (post.path, post.body["node"]) == ("/v1/report/gpu-events", "n0")
    (sent,) = post.items
    assert sent.pop("id")
    assert sent == {
        "at": 1.8e9,
        "uuid": "GPU-0",
        "index": 0,
        "kind": "xid",
        "code": 79,
        "text": "GPU has fallen off the bus",
        "owners": [{"jobUid": "job-1", "project": "vision", "jobName": "train"}],
    }
    until(lambda: nonzero(made.stats.events) == {"sent": 1})


def test_pauses_grow_and_the_api_may_ask_for_more():
    pauses, pause_s = [], 0.0
    for _ in range(9):
        pause_s = _longer(pause_s, 0.0, lambda: 0.5)
        pauses.append(round(pause_s, 6))
    assert pauses == [1, 2, 4, 8, 16, 32, PAUSE_MAX_S, PAUSE_MAX_S, PAUSE_MAX_S]
    assert _longer(0.0, 120.0, lambda: 0.5) == 120.0
    assert _longer(1.0, 0.0, lambda: 0.0) < 2.0 < _longer(1.0, 0.0, lambda: 1.0)


# --- what answers mean


def test_what_the_api_refuses_is_given_up_alone(api, reporter, caplog):
    def say(post):
        bad = [i for i, item in enumerate(post.items) if item["worker"] == 1]
        refused = [{"index": i, "why": "worker: unknown"} for i in bad]
        return Say(body={"taken": len(post.items) - len(bad), "refused": refused})

    api.answer = say
    made = reporter()
    made.offer([receipt(worker=worker, final=True) for worker in range(3)])
    until(lambda: nonzero(made.stats.receipts) == {"sent": 2, "refused": 1})
    made.offer([receipt(worker=worker, final=True) for worker in range(4)])
    until(lambda: nonzero(made.stats.receipts) == {"sent": 3, "refused": 1})
    assert "worker: unknown" in caplog.text and workers(api) == [0, 1, 2, 3]


@pytest.mark.parametrize("status", [400, 413, 422])
def test_a_batch_that_is_refused_as_a_whole_is_taken_apart(api, reporter, status):
    api.answer = lambda post: problem(status) if any(item["worker"] == 5 for item in post.items) else Say()
    made = reporter()
    made.offer([receipt(worker=worker, final=True) for worker in range(9)])
    until(lambda: nonzero(made.stats.receipts) == {"sent": 8, "refused": 1})


@pytest.mark.parametrize(
    "say",
    [
        problem(401),
        problem(403),
        problem(404),
        problem(429),
        problem(500),
        problem(503),
        Say(400, b"<html>The plain HTTP request was sent to HTTPS port</html>", HTML),
        Say(200, b"<html>log in first</html>", HTML),
        Say(200, {"hello": "world"}),
        Say(302, b"", HTML, {"Location": "https://elsewhere"}),
    ],
    ids=lambda say: f"{say.status} {say.media_type}",
)
def test_what_is_no_refusal_of_the_apis_is_kept_and_sent_later(api, reporter, say):
    api.answer = lambda _: say
    made = reporter()
    made.event(XID, [])  # first: what is there goes at once, and after an event that fails no receipt is posted
    made.offer([receipt(7, final=True)])
    until(lambda: made.stats.events.get("failed"))
    assert nonzero(made.stats.receipts) == {} and made.stats.waiting_receipts == 1
    api.answer = lambda _: Say()
    until(lambda: made.stats.receipts.get("sent") == 1 and made.stats.events.get("sent") == 1)


def test_retry_after_is_obeyed(api, reporter):
    api.answer = lambda _: problem(429, Retry_After="3600")
    made = reporter()
    made.offer([receipt(1, final=True)])
    until(lambda: made.stats.receipts.get("failed"))
    until(lambda: made._pause_s > 200)  # bounded by the link


def test_an_api_that_is_silent_is_given_up_and_asked_again(api, reporter):
    gate = threading.Event()
    api.answer = lambda _: (gate.wait(20), Say())[1]
    made = reporter(timeout_s=0.2)
    made.offer([receipt(1)])
    until(lambda: made.stats.receipts.get("failed"))
    gate.set()
    until(lambda: made.stats.receipts.get("sent") == 1)


def test_an_api_that_restarts_is_found_again(reporter):
    first = RecordingApi()
    made = reporter(url=first.url)
    made.offer([receipt(1)])
    until(lambda: first.posts)
    first.close()
    made.offer([receipt(2)])
    until(lambda: made.stats.receipts.get("failed"))
    second = RecordingApi(first.port)
    until(lambda: [item["seq"] for item in second.taken] == [2])
    second.close()


def test_a_receipt_that_is_no_json_costs_no_other(api, reporter):
    made = reporter()
    made.offer([receipt(1, allocated_s=float("nan")), receipt(1, worker=1)])
    until(lambda: nonzero(made.stats.receipts) == {"sent": 1, "refused": 1})


# --- what survives


def test_what_was_not_taken_survives_a_restart_the_newest_of_each_key(api, reporter, tmp_path):
    api.answer = lambda _: problem(503)
    before = reporter()
    before.offer([receipt(1), receipt(5, worker=1, final=True)])
    before.offer([receipt(2)])
    before.event(XID, [])
    until(lambda: before.stats.events.get("failed"))
    before.stop()
    api.posts.clear()
    api.answer = lambda _: Say()
    after = reporter(every_s=NEVER_S)
    until(lambda: nonzero(after.stats.receipts) == {"sent": 2} and nonzero(after.stats.events) == {"sent": 1})
    assert {(item["worker"], item["seq"]) for item in api.taken if "seq" in item} == {(0, 2), (1, 5)}
    after.stop()
    assert json.loads((tmp_path / "spool" / "receipts.json").read_text())["items"] == []
    assert (tmp_path / "spool" / "receipts.json").stat().st_mode & 0o777 == 0o600


def test_a_final_receipt_is_on_disk_before_the_network_is_tried(api, reporter, tmp_path):
    """A crash while the api is silent loses nothing."""
    on_disk = []
    spool = tmp_path / "spool" / "receipts.json"
    api.answer = lambda _: (on_disk.append(spool.exists() and len(json.loads(spool.read_text())["items"])), Say())[1]
    made = reporter(every_s=NEVER_S)
    made.offer([receipt(1, final=True)])
    until(lambda: made.stats.receipts.get("sent"))
    assert on_disk == [1]
    until(lambda: json.loads(spool.read_text())["items"] == [])


def test_in_the_ordinary_course_nothing_is_written(api, reporter, tmp_path):
    made = reporter()
    for seq in range(1, 5):
        made.offer([receipt(seq)])
        until(lambda seq=seq: made.stats.receipts.get("sent") == seq)
    made.stop()
    assert not (tmp_path / "spool").exists()


def test_stop_sends_what_waits(api, reporter):
    made = reporter(every_s=NEVER_S)
    made.offer([receipt(1)])
    made.stop()
    assert workers(api) == [0]


def test_stop_keeps_what_a_silent_api_does_not_take(api, reporter, tmp_path):
    gate = threading.Event()
    api.answer = lambda _: (gate.wait(20), Say())[1]
    made = reporter(every_s=NEVER_S, timeout_s=20.0)
    made.offer([receipt(1)])
    made.stop(timeout_s=0.1)
    gate.set()
    assert '"seq":1' in (tmp_path / "spool" / "receipts.json").read_text()


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"version":2,"items":[]}', '{"version":1,"items":[{"a":1}]}', "[" * 9999]
)
def test_a_spool_that_can_not_be_read_is_put_aside(api, reporter, tmp_path, caplog, text):
    (tmp_path / "spool").mkdir()
    (tmp_path / "spool" / "receipts.json").write_text(text)
    made = reporter(every_s=NEVER_S)
    assert "begun anew" in caplog.text
    assert (tmp_path / "spool" / "receipts.unreadable.json").read_text() == text
    made.offer([receipt(1, final=True)])
    until(lambda: made.stats.receipts.get("sent"))


def test_a_state_folder_that_can_not_be_written_costs_only_what_a_restart_would_keep(api, reporter, tmp_path, caplog):
    (tmp_path / "spool").write_text("a file is in the way")
    made = reporter(every_s=NEVER_S)
    made.offer([receipt(1, final=True)])
    until(lambda: made.stats.receipts.get("sent"))
    assert "can't be kept on disk" in caplog.text


def test_without_a_state_folder(api, reporter):
    made = reporter(state=None)
    made.offer([receipt(1, final=True)])
    until(lambda: made.stats.receipts.get("sent"))
