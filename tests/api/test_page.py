"""The page as it is served: strict headers, kept by content, small; and the tickets by which a browser signs in and
fetches a file, in both modes."""

from __future__ import annotations

import gzip
import re
from datetime import timedelta
from pathlib import Path

import pytest

from stoker.store.clock import ManualClock
from stoker_api.page.assets import WEB, assets, imported
from stoker_api.page.links import grafana_url
from stoker_api.page.tickets import FILE_S, MOST_WRONG, OF_CALLER, SIGN_IN_S, Tickets, WantedFile, WrongTickets

CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
MOST_BYTES = 250_000
ELSEWHERE = re.compile(r"innerHTML|dangerously|document\.write|\beval\(|https?://(?!www\.w3\.org)")
VIEWS = ("/", "/jobs/alpha/one", "/compare", "/queues", "/gpus", "/docs")


async def test_the_index_comes_at_each_view(world):
    for path in VIEWS:
        answer = await world.client.get(path)
        assert answer.status_code == 200 and answer.headers["content-type"] == "text/html; charset=utf-8"
        assert answer.headers["content-security-policy"] == CSP
        assert answer.headers["cache-control"] == "no-cache"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert "set-cookie" not in answer.headers
        assert not re.search(r"<script(?! type=\"module\" src=)|<style| style=| on\w+=", answer.text)


async def test_files_are_kept_for_ever_under_their_digest(world):
    index = (await world.client.get("/")).text
    named = re.findall(r'(?:href|src)="([^"]+)"', index)
    assert named
    for path in named:
        answer = await world.client.get(path)
        assert answer.status_code == 200, path
        assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
        assert answer.headers["content-encoding"] == "gzip" and answer.headers["vary"] == "Accept-Encoding"
        plain = await world.client.get(path, headers={"Accept-Encoding": "identity"})
        assert "content-encoding" not in plain.headers and plain.content == answer.content
    wrong = re.sub(r"/page/\w+/", "/page/0123456789abcdef/", named[0])
    missing = await world.client.get(wrong)
    assert missing.status_code == 404 and missing.headers["cache-control"] == "no-store"


def test_all_of_it_is_small():
    found = assets()
    total = sum(len(file.packed) for file in found.files.values()) + len(found.index.packed)
    assert total <= MOST_BYTES, f"{total} bytes packed"
    assert gzip.decompress(found.files["js/main.js"].packed) == found.files["js/main.js"].data


def test_every_import_is_there_and_none_leads_elsewhere():
    files = assets().files
    for name, file in files.items():
        text = file.data.decode()
        if not name.startswith("vendor/"):
            assert not ELSEWHERE.search(text), name
        for late in re.findall(r'import\("([^"]+)"\)', text):
            assert (WEB / Path(name).parent / late).resolve().is_file(), f"{name}: {late}"
    first = imported({name: file.data for name, file in files.items()})
    assert "js/views/jobs.js" in first and "vendor/preact.js" in first and "vendor/uplot.js" not in first
    assert set(first) <= set(files)


async def test_a_sign_in_ticket_is_good_once(world):
    made = await world.call("POST", "/v1/sign-in-tickets")
    assert made.status_code == 201 and made.json()["goodS"] == SIGN_IN_S
    ticket = made.json()["ticket"]
    answer = await world.client.post("/v1/sign-in-tickets/exchange", json={"ticket": ticket})
    assert answer.status_code == 200 and answer.json() == {"token": world.keys["alice"]}
    assert answer.headers["cache-control"] == "no-store"
    again = await world.client.post("/v1/sign-in-tickets/exchange", json={"ticket": ticket})
    assert again.status_code == 410 and again.json()["code"] == "TicketSpent"
    assert (await world.client.post("/v1/sign-in-tickets")).status_code == 401
    assert world.keys["alice"] not in repr(vars(world.services.tickets))


async def test_wrong_tickets_end_an_address_patience(world):
    for _ in range(MOST_WRONG):
        answer = await world.client.post("/v1/sign-in-tickets/exchange", json={"ticket": "stt_wrong"})
        assert answer.status_code == 410
    ticket = (await world.call("POST", "/v1/sign-in-tickets")).json()["ticket"]
    refused = await world.client.post("/v1/sign-in-tickets/exchange", json={"ticket": ticket})
    assert refused.status_code == 429 and refused.json()["code"] == "TooManyWrongTickets"
    assert 0 < int(refused.headers["retry-after"]) <= 60


async def test_a_file_ticket_is_for_who_may_read_files(world):
    await world.job("one")
    path = "/v1/projects/alpha/jobs/one/file-tickets"
    for who, status in (("reader", 403), ("bob", 404), ("garbage", 401)):
        assert (await world.call("POST", path, who=who, json={"path": "a"})).status_code == status
    ticket = (await world.call("POST", path, json={"path": "a"})).json()["ticket"]
    wrong = await world.client.post("/v1/sign-in-tickets/exchange", json={"ticket": ticket})
    assert wrong.status_code == 410, "of another kind, and not used up by that"
    answer = await world.client.get(f"/v1/file-tickets/{ticket}")
    assert answer.json()["code"] in ("NoFile", "NotRunning"), answer.text
    assert (await world.client.get(f"/v1/file-tickets/{ticket}")).json()["code"] == "TicketSpent"


async def test_whoami_says_what_the_token_may(world):
    async def may(who, project=None):
        answer = await world.call("GET", "/v1/whoami", who=who, params={"project": project} if project else {})
        return set(answer.json()["may"])

    assert "update trainingjobs" in await may("alice", "alpha")
    assert "update trainingjobs" not in await may("alice")
    assert await may("alice", "beta") == await may("alice", "gamma") == await may("alice")
    assert {"get trainingjobs", "list trainingjobs"} <= await may("reader", "alpha")
    assert not {"update trainingjobs", "get trainingjobs/files"} & await may("reader", "alpha")
    assert {"update queues", "list gpunodes"} <= await may("admin")
    assert "update queues" not in await may("alice", "alpha")


def test_an_address_of_a_grafana_is_one():
    assert grafana_url("") == "" and grafana_url("https://grafana.example/g/") == "https://grafana.example/g"
    for wrong in ("javascript:alert(1)", "grafana.example", "https://", "https://g.example/?a=b", "ftp://g.example"):
        with pytest.raises(ValueError, match="no address of a Grafana"):
            grafana_url(wrong)


def test_a_ticket_ends_with_its_time():
    clock = ManualClock()
    tickets = Tickets(clock)
    early, _ = tickets.issue("alice", "token")
    file, _ = tickets.issue("alice", "token", WantedFile("alpha", "one", "a"))
    clock.advance(FILE_S)
    assert tickets.take(file, file=True) is None
    clock.advance(SIGN_IN_S - FILE_S)
    assert tickets.take(early, file=False) is None and len(tickets) == 0


def test_one_callers_tickets_push_out_only_its_own():
    tickets = Tickets(ManualClock())
    bobs, _ = tickets.issue("bob", "bob's")
    alices = [tickets.issue("alice", "alice's")[0] for _ in range(OF_CALLER + 1)]
    assert tickets.take(alices[0], file=False) is None
    assert tickets.take(alices[1], file=False) is not None
    found = tickets.take(bobs, file=False)
    assert found is not None and found.token == "bob's"


def test_wrong_tickets_are_forgotten_after_a_while():
    clock = ManualClock()
    wrong = WrongTickets(clock)
    for _ in range(MOST_WRONG):
        wrong.note("192.0.2.1")
    assert wrong.wait_s("192.0.2.1") == timedelta(minutes=1).total_seconds() and wrong.wait_s("192.0.2.2") == 0
    clock.advance(60)
    assert wrong.wait_s("192.0.2.1") == 0
