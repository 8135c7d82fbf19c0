"""One call against a server that misbehaves: repeats, refusals, redirects, silence."""

from __future__ import annotations

import socket
import subprocess
import sys
from typing import Any

import pytest

from stoker.client.client import Client
from stoker.client.config import Endpoint
from stoker.client.errors import ApiError, Unreachable
from stoker.client.wire import TRIES, Wire

JOBS = "/v1/projects/default/jobs"
SPEC = {"trainer": {"recipe": "image-classification"}}


def test_a_repeated_submit_carries_the_same_key_so_that_it_makes_one_job(script: Any, make_job: Any) -> None:
    script.on("POST", JOBS, script.cut, script.problem(503, "Busy", "busy", Retry_After="0"), script.json(make_job()))
    with Client(script.url) as client:
        assert client.submit(SPEC).metadata.name == "digits-1"
    keys = {request.headers["idempotency-key"] for request in script.requests}
    assert len(script.requests) == 3 and len(keys) == 1
    assert {str(request.body) for request in script.requests} == {str({"spec": SPEC})}


def test_two_submits_have_two_keys_and_a_given_key_is_used(script: Any, make_job: Any) -> None:
    script.on("POST", JOBS, script.json(make_job()))
    with Client(script.url) as client:
        client.submit(SPEC)
        client.submit(SPEC)
        client.submit(SPEC, idempotency_key="mine")
    first, second, third = (request.headers["idempotency-key"] for request in script.requests)
    assert first != second and third == "mine"


def test_retry_after_is_kept_and_else_the_pauses_double(script: Any) -> None:
    pauses: list[float] = []
    wire = Wire(Endpoint(script.url), timeout_s=5, sleep=pauses.append)
    busy = script.problem(429, "TooMany", "slow down", Retry_After="7")
    script.on("GET", "/x", busy, script.cut, script.cut, script.json({"ok": True}))
    assert wire.call("GET", "/x").body == {"ok": True}
    assert pauses[0] == 7
    assert 0.1 < pauses[1] < pauses[2] < 1
    wire.close()


def test_a_proxy_s_answer_while_the_server_restarts_is_no_refusal(script: Any) -> None:
    wire = Wire(Endpoint(script.url), timeout_s=5, sleep=lambda _: None)

    def plain(status: int) -> Any:
        def answer(handler: Any) -> None:
            handler.send_response(status)
            handler.send_header("Content-Length", "6")
            handler.end_headers()
            handler.wfile.write(b"<html>")

        return answer

    script.on("GET", "/x", plain(502), plain(504), plain(500), script.json({"ok": True}))
    assert wire.call("GET", "/x").body == {"ok": True}
    script.on("GET", "/x", script.problem(500, "InternalError", "an error of its own"))
    with pytest.raises(ApiError, match="an error of its own"):
        wire.call("GET", "/x")
    script.on("GET", "/x", plain(502))
    with pytest.raises(Unreachable, match="HTTP 502 from it or from a proxy"):
        wire.call("GET", "/x")
    wire.close()


def test_an_hour_of_retry_after_is_reported_not_slept(script: Any) -> None:
    pauses: list[float] = []
    wire = Wire(Endpoint(script.url), timeout_s=5, sleep=pauses.append)
    script.on("GET", "/x", script.problem(503, "Busy", "maintenance until noon", Retry_After="3600"))
    with pytest.raises(Unreachable, match=r"maintenance until noon; try again in 3600 s"):
        wire.call("GET", "/x")
    assert pauses == []
    wire.close()


def test_a_refusal_is_not_repeated_and_keeps_its_faults(script: Any) -> None:
    script.on("POST", JOBS, script.problem(422, "Invalid", "the job is not valid", (("/spec/cpu", "no quantity"),)))
    with Client(script.url) as client, pytest.raises(ApiError) as met:
        client.submit(SPEC)
    assert len(script.requests) == 1
    assert (met.value.status, met.value.code, met.value.errors[0].pointer) == (422, "Invalid", "/spec/cpu")


def test_nothing_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:  # bound, never listening: refused for certain
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        pauses: list[float] = []
        wire = Wire(Endpoint(url, local=True), timeout_s=5, sleep=pauses.append)
        with pytest.raises(Unreachable, match=r"connection refused; start it with `stoker up`"):
            wire.call("GET", "/v1/whoami")
        assert len(pauses) == TRIES - 1
        wire.close()


def test_a_silent_server_is_not_waited_for_for_ever() -> None:
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()  # accepts, never answers
        wire = Wire(Endpoint(f"http://127.0.0.1:{mute.getsockname()[1]}"), timeout_s=0.05, sleep=lambda _: None)
        with pytest.raises(Unreachable, match="no answer in time"):
            wire.call("GET", "/v1/whoami")
        wire.close()


def test_the_token_is_not_carried_along_a_redirect(script: Any) -> None:
    script.on("GET", "/v1/whoami", script.json({}, 307, Location=f"{script.url}/thief"))
    with Client(script.url, "secret") as client, pytest.raises(ApiError, match=r"redirects to .*/thief"):
        client.whoami()
    assert [request.path for request in script.requests] == ["/v1/whoami"]
    assert script.requests[0].headers["authorization"] == "Bearer secret"


def test_a_proxy_of_the_environment_never_sees_a_loopback_token(script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    script.on("GET", "/v1/whoami", script.json({"name": "me", "role": "user", "projects": ["a"]}))
    with Client(script.url, "secret") as client:
        assert client.whoami().projects == ("a",)


def test_a_newer_server_s_fields_are_left_aside_and_nonsense_is_named(script: Any, make_job: Any) -> None:
    newer = make_job()
    newer["status"]["weather"] = "fine"
    script.on("GET", f"{JOBS}/a", script.json(newer))
    script.on("GET", f"{JOBS}/b", script.json({"metadata": {}}))
    script.on("GET", f"{JOBS}/c", script.text(b"<html>", "text/html"))
    with Client(script.url) as client:
        assert client.get("a").status.phase == "Queued"
        with pytest.raises(ApiError, match="this client can't read"):
            client.get("b")
    with Client(script.url.replace("127.0.0.1", "localhost")) as client:
        script.on("GET", f"{JOBS}/d", script.json([], 404))
        with pytest.raises(ApiError, match="not as Stoker does"):
            client.get("d")


def test_the_whole_list_comes_page_by_page(script: Any, make_job: Any) -> None:
    pages = [
        {"items": [make_job("a"), make_job("b")], "nextCursor": "c1"},
        {"items": [make_job("c"), make_job("d")], "nextCursor": None},
    ]
    script.on("GET", JOBS, *(script.json(page) for page in pages))
    with Client(script.url) as client:
        jobs = client.ls(queue="q", phases=["Queued", "Running"])
        assert next(jobs).metadata.name == "a" and len(script.requests) == 1
        assert [job.metadata.name for job in jobs] == ["b", "c", "d"]
    first, second = (request.query for request in script.requests)
    assert first == {"limit": "500", "queue": "q", "phase": "Queued,Running"}
    assert second == {**first, "cursor": "c1"}


@pytest.mark.parametrize(("limit", "pages"), [(1, 1), (2, 1), (3, 2)])
def test_a_limit_is_kept_over_pages(script: Any, make_job: Any, limit: int, pages: int) -> None:
    page = {"items": [make_job("a"), make_job("b")], "nextCursor": "more"}
    script.on("GET", JOBS, script.json(page))
    with Client(script.url) as client:
        assert len(list(client.ls(limit=limit))) == limit
    assert len(script.requests) == pages


def test_a_lost_answer_to_a_delete_or_a_retry_is_no_error(script: Any, make_job: Any) -> None:
    script.on("DELETE", "/v1/queues/q", script.cut, script.problem(404, "NotFound", "no queue q"))
    script.on("POST", f"{JOBS}/a/retry", script.cut, script.problem(409, "NotEnded", "a is Queued"))
    script.on("GET", f"{JOBS}/a", script.json(make_job("a", "Queued")))
    with Client(script.url) as client:
        client.delete_queue("q")
        assert client.retry("a").status.phase == "Queued"
        script.on("DELETE", "/v1/queues/q", script.problem(404, "NotFound", "no queue q"))
        with pytest.raises(ApiError, match="no queue q"):
            client.delete_queue("q")


def test_the_sdk_is_imported_when_it_is_first_used() -> None:
    script = "import sys, stoker; assert 'pydantic' not in sys.modules; stoker.Client; assert 'pydantic' in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
    with pytest.raises(ImportError):
        from stoker import Nothing  # type: ignore[attr-defined]  # noqa: F401
