"""Users' code by its routes: sent once, complete or refused, one project's own, fetched by the job's workers alone."""

from __future__ import annotations

import asyncio
import gzip
import json
import re

import pytest

from stoker.spec.code import BUNDLE_TYPE, MAX_BYTES, PACK_TYPE
from stoker_api.code.store import CodeStore
from stoker_api.middleware.limits import Bounds
from stoker_api.routes import code as routes

from .code_folder import Folder, pack, sha, unpack

CODE = "/v1/projects/alpha/code"
FOLDER = Folder({"train.py": b"print(1)\n", "pkg/a.py": b"A = 1\n", "pkg/b.py": b"A = 1\n", "empty": b""})
BIG = Folder({f"data/{n}": bytes([n]) * 300_000 for n in range(4)})


async def put(world, folder, *, project="alpha", who="alice", digest=None):
    path = f"/v1/projects/{project}/code/{digest or folder.digest}"
    headers = {"Content-Type": "application/json"}
    return await world.call("PUT", path, who=who, headers=headers, content=folder.manifest.canonical())


async def post(world, content, *, project="alpha", who="alice", **headers):
    headers = {"Content-Type": PACK_TYPE, **{name.replace("_", "-"): value for name, value in headers.items()}}
    return await world.call("POST", f"/v1/projects/{project}/code/files", who=who, headers=headers, content=content)


async def send_all(world, folder, *, project="alpha", who="alice"):
    assert (await post(world, folder.pack(), project=project, who=who)).status_code == 200
    assert (await put(world, folder, project=project, who=who)).status_code == 201


def problem(answer):
    found = answer.json()
    assert answer.headers["content-type"] == "application/problem+json" and found["status"] == answer.status_code
    return found


async def test_the_way_of_a_folder(world):
    there = f"{CODE}/{FOLDER.digest}"
    assert problem(await world.call("GET", there))["code"] == "NotFound"
    lacking = await put(world, FOLDER)
    assert lacking.status_code == 409 and problem(lacking)["code"] == "CodeIncomplete"
    missing = lacking.json()["missing"]
    assert missing == FOLDER.missing and len(missing) == 3, "sorted, each once"
    first = await post(world, FOLDER.pack(missing[:1]))
    assert first.status_code == 200 and first.json()["stored"] == 1
    assert (await put(world, FOLDER)).json()["missing"] == missing[1:]
    rest = await post(world, gzip.compress(FOLDER.pack(missing)), Content_Encoding="gzip")
    assert rest.json()["known"] == 1 and rest.json()["stored"] == 2
    created = await put(world, FOLDER)
    reported = {"digest": FOLDER.digest, "files": 4, "size": 21}
    assert created.status_code == 201 and created.json() == reported
    assert (await put(world, FOLDER)).status_code == 200
    answer = await world.call("GET", there)
    assert answer.status_code == 200 and answer.json() == reported
    changed = Folder({**FOLDER.files, "train.py": b"print(2)\n"})
    assert (await put(world, changed)).json()["missing"] == [sha(b"print(2)\n")], "what is here is not asked for again"


async def test_a_project_learns_nothing_of_another(world):
    await send_all(world, FOLDER)
    for who in ("bob", "admin"):
        assert (await world.call("GET", f"/v1/projects/beta/code/{FOLDER.digest}", who=who)).status_code == 404
        assert (await put(world, FOLDER, project="beta", who=who)).json()["missing"] == FOLDER.missing
    answer = await world.submit(**job(FOLDER.digest), project="beta", who="bob")
    assert answer.status_code == 422 and problem(answer)["code"] == "UnknownCode"


def job(digest, name="one"):
    trainer = {"command": ["python", "train.py"], "code": digest}
    return {"metadata": {"name": name}, "spec": {"trainer": trainer}}


async def test_a_job_names_only_code_that_is_here(world):
    answer = await world.submit(**job(FOLDER.digest))
    assert answer.status_code == 422
    found = problem(answer)
    assert found["code"] == "UnknownCode" and found["errors"][0]["pointer"] == "/spec/trainer/code"
    assert f"PUT {CODE}/{FOLDER.digest}" in found["detail"]
    assert await world.names() == []
    await post(world, FOLDER.pack())
    assert (await world.submit(**job(FOLDER.digest))).status_code == 422, "files alone are no bundle"
    await put(world, FOLDER)
    stored = await world.submit(**job(FOLDER.digest))
    assert stored.status_code == 201 and stored.json()["spec"]["trainer"]["code"] == FOLDER.digest


async def fetch(world, pod):
    headers = {"Authorization": "Bearer " + await world.worker_token(pod)}
    return await world.client.get("/v1/report/code", headers=headers)


@pytest.mark.parametrize("folder", [FOLDER, BIG, Folder({})], ids=["small", "large", "empty"])
async def test_a_worker_fetches_its_jobs_code(served, folder):
    await send_all(served, folder)
    stored = await served.job("one", trainer=job(folder.digest)["spec"]["trainer"])
    answer = await fetch(served, await served.pod(stored))
    assert answer.status_code == 200 and answer.headers["content-type"] == BUNDLE_TYPE
    assert int(answer.headers["content-length"]) == len(answer.content)
    assert unpack(answer.content) == (folder.digest, dict(folder.files))
    metrics = (await served.call("GET", "/metrics", who="admin")).text
    held = sum(len(data) for data in {sha(data): data for data in folder.files.values()}.values())
    counted = re.findall(r'^stoker_api_code_bytes_total{direction="(\w+)"} (\S+)$', metrics, re.MULTILINE)
    assert {name: float(value) for name, value in counted} == {"received": held, "sent": len(answer.content)}
    assert "stoker_api_code_bundles 1.0" in metrics


async def test_a_worker_gets_nothing_else(world):
    await send_all(world, FOLDER)
    plain = await fetch(world, await world.pod(await world.job("plain")))
    assert plain.status_code == 404 and "names no code" in problem(plain)["detail"]
    stored = await world.job("one", trainer=job(FOLDER.digest)["spec"]["trainer"])
    pod = await world.pod(stored)
    unknown = await world.strange_pod()
    assert (await fetch(world, unknown)).status_code in (404, 503), "no pod of a job's"
    files = world.deps.code._projects["alpha"].files
    (files / sha(b"A = 1\n")[:2] / sha(b"A = 1\n")).unlink()
    gone = await fetch(world, pod)
    assert gone.status_code == 404 and "submit the job again" in problem(gone)["detail"]
    assert (await world.call("GET", f"{CODE}/{FOLDER.digest}")).status_code == 404, "and the client sends it again"
    assert (await put(world, FOLDER)).json()["missing"] == [sha(b"A = 1\n")]


async def test_a_bundle_is_cut_off_where_a_file_is_gone(served):
    """The missing bytes warn the worker; nothing else is passed off as the file's."""
    await send_all(served, BIG)
    pod = await served.pod(await served.job("one", trainer=job(BIG.digest)["spec"]["trainer"]))
    bundle = await served.deps.code.find("alpha", BIG.digest)
    pieces = served.deps.code.pieces("alpha", bundle)
    await anext(pieces)
    for name in BIG.missing:
        (served.deps.code._projects["alpha"].files / name[:2] / name).write_bytes(b"short")
    with pytest.raises(EOFError, match="short"):
        [piece async for piece in pieces]
    assert (await fetch(served, pod)).status_code == 404


BAD_MANIFESTS = [
    (b"{", 400, "InvalidJson", ""),
    (b"[]", 422, "InvalidFields", ""),
    (b'{"files":[],"more":1}', 422, "InvalidFields", "/more"),
    (b'{"files":[{"path":"../a","sha256":"' + b"0" * 64 + b'"}]}', 422, "InvalidFields", "/files/0"),
    (b'{"files":[{"path":"a","sha256":"' + b"0" * 64 + b'","size":"1"}]}', 422, "InvalidFields", "/files/0/size"),
    (b'{"files":[{"path":"a","sha256":"xyz"}]}', 422, "InvalidFields", "/files/0/sha256"),
    (b'{"files":[{"path":"a","link":"/etc/passwd"}]}', 422, "InvalidFields", "/files/0"),
    (b'{"files":[{"path":"a/' + b"b" * 256 + b'","link":"c"}]}', 422, "InvalidFields", "/files/0"),
    (b'{"files":[{"path":"a\\u0085b","link":"c"}]}', 422, "InvalidFields", "/files/0"),
    (b'{"files":[{"path":"gpj.\\u202etrain.py","link":"c"}]}', 422, "InvalidFields", "/files/0"),
    (b'{"files":[{"path":"a","link":"tr\\u200bain.py"}]}', 422, "InvalidFields", "/files/0"),
    (b'{"files":[{"path":"' + b"a/" * 511 + b'a","link":"c"}]}', 422, "InvalidFields", "/files/0"),
]


async def test_bad_manifests(world):
    for body, status, code, pointer in BAD_MANIFESTS:
        headers = {"Content-Type": "application/json"}
        answer = await world.call("PUT", f"{CODE}/sha256:{'0' * 64}", headers=headers, content=body)
        found = problem(answer)
        assert (answer.status_code, found["code"]) == (status, code), (body, found)
        assert pointer in [error["pointer"] for error in found["errors"]], body


async def test_a_manifest_is_what_its_digest_says(world):
    wrong = await put(world, FOLDER, digest=f"sha256:{'0' * 64}")
    assert wrong.status_code == 422 and FOLDER.digest in problem(wrong)["detail"]
    for bad in ("sha256:xyz", "md5:" + "0" * 32, "..", FOLDER.digest + "0"):
        answer = await world.call("GET", f"{CODE}/{bad}")
        assert answer.status_code in (404, 422), bad
    await send_all(world, FOLDER)
    lied = json.loads(FOLDER.manifest.canonical())
    lied["files"][0] |= {"size": 7}
    manifest = type(FOLDER.manifest).model_validate(lied)
    headers = {"Content-Type": "application/json"}
    answer = await world.call("PUT", f"{CODE}/{manifest.digest()}", headers=headers, content=manifest.canonical())
    assert answer.status_code == 422 and problem(answer)["errors"][0]["pointer"] == "/files/0/size"
    twice = {"files": [{"path": "a", "sha256": "0" * 64, "size": 1}, {"path": "b", "sha256": "0" * 64, "size": 2}]}
    answer = await world.call("PUT", f"{CODE}/{FOLDER.digest}", json=twice)
    assert answer.status_code == 422 and "b has the SHA-256 of a file of another size" in problem(answer)["detail"]


BAD_PACKS = [
    ("no head", b"hello", "record 1"),
    ("head without end", b"0" * 200, "record 1"),
    ("upper case", pack([b"x"]).upper(), "record 1"),
    ("negative", b"0" * 64 + b" -1\n", "record 1"),
    ("wrong bytes", pack([b"good"]) + pack([b"bad"]).replace(b"\nbad", b"\nBAD"), "record 2"),
    ("cut off", pack([b"good", b"whole"])[:-1], "1 bytes short"),
    ("cut off in a head", pack([b"good"]) + b"00", "record 2"),
    ("too large", b"%s %d\n" % (b"0" * 64, MAX_BYTES + 1), "another"),
]


async def test_bad_packs(world):
    kept = 0
    for case, content, says in BAD_PACKS:
        for encoding, sent in (("identity", content), ("gzip", gzip.compress(content))):
            answer = await post(world, sent, Content_Encoding=encoding)
            assert answer.status_code == 400 and problem(answer)["code"] == "InvalidPack", (case, encoding)
            assert says in problem(answer)["detail"], (case, encoding, problem(answer))
            kept = 4 if content.startswith(pack([b"good"])) else kept
            assert world.deps.code.total_bytes == kept, f"{case}: what came whole stays, nothing else"
            assert list((world.deps.code._folder / "alpha" / "partial").iterdir()) == [], case


async def test_other_bodies_are_refused(world):
    for headers, status, code in (
        ({"Content_Type": "application/zip"}, 415, "UnsupportedMediaType"),
        ({"Content_Encoding": "br"}, 415, "UnsupportedMediaType"),
        ({"Content_Encoding": "gzip"}, 400, "InvalidPack"),
    ):
        answer = await post(world, FOLDER.pack(), **headers)
        assert (answer.status_code, problem(answer)["code"]) == (status, code)
    squeezed = gzip.compress(FOLDER.pack())
    for bad in (squeezed[:-4], squeezed + b"more", b""):
        answer = await post(world, bad, Content_Encoding="gzip")
        assert (answer.status_code, problem(answer)["code"]) == (400, "InvalidPack")
    assert (await post(world, b"")).json() == {"stored": 0, "known": 0, "bytesStored": 0}


async def test_a_bomb_is_refused_where_it_passes_the_limit(world, monkeypatch):
    monkeypatch.setattr("stoker_api.code.pack.MAX_BYTES", 1 << 20)
    honest = gzip.compress(b"%s %d\n" % (sha(b"").encode(), 8 << 20) + bytes(8 << 20))
    hidden = gzip.compress(pack([b"x"]) + bytes(8 << 20))
    for bomb in (honest, hidden):
        assert len(bomb) < 20_000
        answer = await post(world, bomb, Content_Encoding="gzip")
        assert answer.status_code == 400 and problem(answer)["code"] == "InvalidPack"
        assert world.deps.code.total_bytes <= 1


async def test_refusals_reach_a_client_that_still_sends(served):
    async def endless():
        yield b"this is no pack"
        for _ in range(200):
            yield bytes(65_536)

    answer = await post(served, endless())
    assert answer.status_code == 400 and problem(answer)["code"] == "InvalidPack"
    assert (await post(served, endless(), who="reader")).status_code == 403


def test_the_routes_have_bounds_of_their_own():
    assert routes.PACK_BOUNDS.max_body >= MAX_BYTES and routes.PACK_BOUNDS.answer_s > 60
    assert Bounds().max_body < routes.MANIFEST_BOUNDS.max_body < routes.PACK_BOUNDS.max_body


async def test_a_body_over_the_routes_own_bound(served):
    over = b"x" * (routes.MANIFEST_BOUNDS.max_body + 1)
    headers = {"Content-Type": "application/json"}
    answer = await served.call("PUT", f"{CODE}/{FOLDER.digest}", headers=headers, content=over)
    assert answer.status_code == 413 and ".gitignore" in problem(answer)["detail"]
    fits = Folder({"large": bytes(2 << 20)})
    await send_all(served, fits)


async def test_two_clients_send_the_same_at_once(served):
    """Each of them goes its own way to the end; the files are held once."""

    async def one():
        while (answer := await put(served, BIG)).status_code == 409:
            assert (await post(served, BIG.pack(answer.json()["missing"]))).status_code == 200
        return answer.status_code

    codes = await asyncio.gather(*(one() for _ in range(6)))
    assert sorted(codes) == [200] * 5 + [201]
    manifest = len(BIG.manifest.canonical())
    assert served.deps.code.total_bytes == 1_200_000 + manifest
    again = CodeStore(served.deps.code._folder, served.deps.clock)
    assert (again.total_bytes, again.bundles) == (1_200_000 + manifest, 1), "and counted the same after a restart"
