"""A user's code on its way to the worker: all of it, verified, in its place; or a clear end."""

import hashlib
import json
import os
import signal
import sys
import threading
import time
from io import BytesIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from stoker.spec.code import BUNDLE_TYPE, CodeFile, CodeManifest
from stoker_worker.unpack import CantKeep, Damaged, Malformed, Torn, check_manifest, read_manifest, write_files
from tests.support.examples import examples

from .pod_worker import PROGRAM

SHOWS = """
import hashlib, json, os
found = {}
for folder, folders, files in os.walk('.'):
    for name in folders + files:
        path = os.path.normpath(os.path.join(folder, name))
        stat = os.lstat(path)
        what = os.readlink(path) if os.path.islink(path) else None
        if what is None and not os.path.isdir(path): what = hashlib.sha256(open(path, 'rb').read()).hexdigest()
        found[path] = [what, oct(stat.st_mode), stat.st_nlink]
print(json.dumps([os.getcwd(), found]))
"""


def sha(data):
    return hashlib.sha256(data).hexdigest()


def manifest_of(files):
    """`files`: path -> bytes, (bytes, "x"), or a link's text."""
    entries = []
    for path, what in sorted(files.items()):
        if isinstance(what, str):
            entries.append(CodeFile(path=path, link=what))
        else:
            data, executable = (what[0], True) if isinstance(what, tuple) else (what, False)
            entries.append(CodeFile(path=path, sha256=sha(data), size=len(data), executable=executable))
    return CodeManifest(files=tuple(entries))


def bundle_of(files):
    """(digest, the bytes a worker gets)."""
    manifest = manifest_of(files)
    contents = {}
    for _, what in sorted(files.items()):
        if not isinstance(what, str):
            data = what[0] if isinstance(what, tuple) else what
            contents.setdefault(sha(data), data)
    return manifest.digest(), pack(manifest.canonical(), *contents.values())


def pack(manifest, *contents):
    return b"%d\n%s%s" % (len(manifest), manifest, b"".join(contents))


def sends(body, *, cut=None, chunked=False):
    def answer(handler, _n):
        handler.send_response(200)
        handler.send_header("Content-Type", BUNDLE_TYPE)
        if chunked:
            handler.send_header("Transfer-Encoding", "chunked")
            handler.end_headers()
            for start in range(0, len(body), 70_000):
                piece = body[start : start + 70_000]
                handler.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            handler.wfile.write(b"0\r\n\r\n")
            return
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body if cut is None else body[:cut])
        handler.close_connection = True

    return answer


def in_turn(*answers):
    """One for each request; the last for ever."""
    return lambda handler, n: answers[min(n, len(answers) - 1)](handler, n)


def problem(status, **members):
    return lambda handler, _n: handler.answer(status, members)


TREE = {
    "train.py": b"print('training')\n",
    "model/__init__.py": b"",
    "model/deep/weights.bin": bytes(range(256)) * 3000,
    "model/deep/again.bin": bytes(range(256)) * 3000,
    "run.sh": (b"#!/bin/sh\necho ran in $PWD\n", "x"),
    "empty": b"",
    "über/n\u0303.txt": b"x",
    "model/latest": "deep/weights.bin",
    "model/deep/up": "../../train.py",
}


def code_of(pod_worker):
    return pod_worker.run_dir / "code"


@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
def test_the_command_starts_in_its_code(pod_worker, log_api, chunked):
    digest, body = bundle_of(TREE)
    log_api.code = sends(body, chunked=chunked)
    pod_worker.python(SHOWS, api=log_api, env={"STOKER_CODE": digest})
    assert pod_worker.finish().exit_code == 0
    cwd, found = json.loads(log_api.log)
    assert cwd == str(code_of(pod_worker))
    expected = {"model": [None, "0o40755"], "model/deep": [None, "0o40755"], "über": [None, "0o40755"]}
    for path, what in TREE.items():
        if isinstance(what, str):
            expected[path] = [what, "0o120777"]
        else:
            expected[path] = [sha(what[0]), "0o100755"] if isinstance(what, tuple) else [sha(what), "0o100644"]
    assert {path: facts[:2] for path, facts in found.items()} == expected
    assert all(facts[2] == 1 for path, facts in found.items() if facts[1].startswith("0o100")), (
        "copies, no second names"
    )
    assert log_api.tokens[0] == "token-1" and log_api.fetches == 1


def test_a_folder_within_and_a_program_of_its_own(pod_worker, log_api):
    digest, body = bundle_of({"sub/dir/run.sh": (b"#!/bin/sh\necho ran in $PWD\n", "x")})
    log_api.code = sends(body)
    pod_worker.start(["./run.sh"], api=log_api, env={"STOKER_CODE": digest, "STOKER_WORKING_DIR": "sub/dir"})
    assert pod_worker.finish().exit_code == 0
    assert log_api.log.decode() == f"ran in {code_of(pod_worker)}/sub/dir\n"


def test_on_one_machine_it_is_in_the_workers_folder(worker, log_api):
    digest, body = bundle_of(TREE)
    log_api.code = sends(body)
    (worker.folder / "code").mkdir()  # of a supervisor that was killed before it had begun
    (worker.folder / "code" / "old").touch()
    record = worker.run(
        ["sh", "-c", "ls; ./run.sh"],
        env={"STOKER_CODE": digest},
        workingDir=str(worker.folder / "code"),
        report={"url": log_api.url, "token": "wkr.x"},
    )
    assert record.exit_code == 0 and log_api.tokens == ["wkr.x"]
    assert worker.log.decode().split("\n")[-2] == f"ran in {worker.folder}/code" and b"old" not in worker.log
    assert not (worker.folder / ".code").exists()


def test_it_is_tried_until_it_comes_and_logged_once(pod_worker, log_api):
    digest, body = bundle_of(TREE)
    unknown = problem(503, detail="There is no such pod (yet, or any more)")
    log_api.code = in_turn(unknown, problem(401), sends(body, cut=len(body) // 2), sends(body))
    pod_worker.python("print(open('train.py').read(), end='')", api=log_api, env={"STOKER_CODE": digest})
    assert pod_worker.finish().exit_code == 0
    said, *rest = log_api.log.decode().splitlines()
    assert said == "[stoker] the job's code can't be fetched yet, trying on: the api answered 401"
    assert rest == ["print('training')"] and log_api.fetches == 4


@pytest.mark.parametrize(
    "first",
    [
        problem(404),
        problem(500, code="InternalError"),
        sends(TREE["train.py"]),
        sends(bundle_of(TREE)[1], cut=1),
        sends(bundle_of(TREE)[1].replace(b"training", b"treening")),
        lambda handler, n: setattr(handler, "close_connection", True),
    ],
    ids=["a proxy's 404", "500", "no bundle", "torn", "damaged", "no answer"],
)
def test_once_is_nothing_to_speak_of(pod_worker, log_api, first):
    digest, body = bundle_of(TREE)
    log_api.code = in_turn(first, sends(body))
    pod_worker.python("print('ran')", api=log_api, env={"STOKER_CODE": digest})
    assert pod_worker.finish().exit_code == 0
    assert log_api.log == b"ran\n" and log_api.fetches == 2


def refused(pod_worker, log_api, digest, **env):
    """The message of a worker that refuses to start."""
    pod_worker.start(["touch", pod_worker.folder / "ran"], api=log_api, env={"STOKER_CODE": digest, **env})
    record = pod_worker.finish()
    assert (record.exit_code, record.held_s) == (126, 0)
    assert record.message.encode() in pod_worker.stdout and digest in record.message
    assert not (pod_worker.folder / "ran").exists()
    assert not code_of(pod_worker).exists() and not (pod_worker.run_dir / ".code").exists()
    return record.message


def test_a_bundle_that_is_gone_ends_it_at_once(pod_worker, log_api):
    digest, _ = bundle_of(TREE)
    detail = f"The code of job 'job', bundle {digest}, is not on this server any more; submit the job again."
    log_api.code = problem(404, code="NotFound", detail=detail)
    assert refused(pod_worker, log_api, digest, STOKER_HOLD_SECONDS=60).endswith(detail)
    assert log_api.fetches == 1


def test_an_api_that_never_has_it_is_given_up(pod_worker, log_api):
    digest, _ = bundle_of(TREE)
    log_api.code = problem(503)
    said = refused(pod_worker, log_api, digest, STOKER_CODE_TIMEOUT_SECONDS=1)
    assert "503" in said and "in 1 s" in said


def test_an_api_that_is_not_there_is_given_up(pod_worker):
    said = refused(pod_worker, "http://127.0.0.1:9", bundle_of(TREE)[0], STOKER_CODE_TIMEOUT_SECONDS=1)
    assert "Connection refused" in said


def test_without_an_api_it_can_not_come(pod_worker):
    assert "does not know where Stoker's api is" in refused(pod_worker, None, bundle_of(TREE)[0])


def test_another_bundle_is_not_taken(pod_worker, log_api):
    log_api.code = sends(bundle_of({"train.py": b"evil"})[1])
    assert "is another one than" in refused(pod_worker, log_api, bundle_of(TREE)[0])
    assert log_api.fetches == 3, "it might have been the way"


def test_other_bytes_are_not_taken(pod_worker, log_api):
    digest, body = bundle_of(TREE)
    log_api.code = sends(body.replace(b"training", b"treening"))
    assert "'train.py' came with other bytes" in refused(pod_worker, log_api, digest)


def test_a_disk_that_is_full_is_said(pod_worker, log_api):
    digest, body = bundle_of({"large": bytes(1 << 20)})
    log_api.code = sends(body)
    entry = ["prlimit", "--fsize=300000", sys.executable, "-I", "-S", str(PROGRAM), "--pod", "--"]
    pod_worker.start(["true"], api=log_api, env={"STOKER_CODE": digest}, entry=entry)
    record = pod_worker.finish()
    assert record.exit_code == 126 and "large can't be written: File too large" in record.message
    assert not (pod_worker.run_dir / ".code").exists() and log_api.fetches == 1


def test_a_stop_meanwhile_ends_it_at_once(pod_worker, log_api, wait_until):
    digest, body = bundle_of(TREE)
    released = threading.Event()

    def half(handler, n):
        sends(body, cut=len(body) // 2)(handler, n)
        handler.wfile.flush()
        released.wait(30)

    log_api.code = half
    pod_worker.start(["touch", pod_worker.folder / "ran"], api=log_api, env={"STOKER_CODE": digest})
    wait_until(lambda: log_api.fetches, what="the fetch")
    began = time.monotonic()
    os.kill(pod_worker.process.pid, signal.SIGTERM)
    record = pod_worker.finish()
    released.set()
    assert time.monotonic() - began < 20, "the fetch would go on for 30 s"
    assert (record.exit_code, record.stop_requested, record.message) == (75, True, "stopped before it was started")
    assert not (pod_worker.folder / "ran").exists()


# Hostile bundles.

FILE = {"sha256": sha(b"x"), "size": 1}
HOSTILE = {
    "absolute": [{"path": "/etc/passwd", **FILE}],
    "above": [{"path": "../outside", **FILE}],
    "above, within": [{"path": "a/../../outside", **FILE}],
    "itself": [{"path": ".", **FILE}],
    "empty part": [{"path": "a//b", **FILE}],
    "ends in a slash": [{"path": "a/", **FILE}],
    "control character": [{"path": "a\nb", **FILE}],
    "half a character": [{"path": "a\ud800", **FILE}],
    "no text": [{"path": 7, **FILE}],
    "link to above": [{"path": "a", "link": "../outside"}],
    "absolute link": [{"path": "a", "link": "/etc"}],
    "link through above": [{"path": "d/a", "link": "b/../../../etc"}],
    "through a link": [{"path": "a", "link": "b"}, {"path": "a/f", **FILE}],
    "through a file": [{"path": "a", **FILE}, {"path": "a/f", **FILE}],
    "twice": [{"path": "a", **FILE}, {"path": "a", "link": "b"}],
    "not sorted": [{"path": "b", **FILE}, {"path": "a", **FILE}],
    "a file and a link": [{"path": "a", "link": "b", **FILE}],
    "neither": [{"path": "a"}],
    "no digest": [{"path": "a", "sha256": "x" * 64, "size": 1}],
    "negative": [{"path": "a", "sha256": sha(b"x"), "size": -1}],
    "no number": [{"path": "a", "sha256": sha(b"x"), "size": "1"}],
    "true is no size": [{"path": "a", "sha256": sha(b"x"), "size": True}],
    "too large": [{"path": "a", "sha256": sha(b"x"), "size": 1 << 40}],
    "too large together": [{"path": f"a{i}", "sha256": sha(b"%d" % i), "size": 1 << 23} for i in range(9)],
    "two sizes": [{"path": "a", **FILE}, {"path": "b", "sha256": sha(b"x"), "size": 2}],
    "unknown member": [{"path": "a", **FILE, "mode": "4755"}],
    "no entry": [7],
}


@pytest.mark.parametrize("listed", HOSTILE.values(), ids=HOSTILE)
def test_a_manifest_that_breaks_a_rule_is_refused(listed):
    manifest = json.dumps({"files": listed}).encode()
    with pytest.raises(Malformed):
        check_manifest(manifest)


def test_what_a_hostile_manifest_names_is_never_written(pod_worker, log_api):
    outside = pod_worker.folder / "outside"
    manifest = json.dumps({"files": [{"path": "../../outside", **FILE}]}).encode()
    log_api.code = sends(pack(manifest, b"x"))
    assert "it is refused: '../../outside' is no path" in refused(pod_worker, log_api, "sha256:" + sha(manifest))
    assert not outside.exists() and log_api.fetches == 1


paths = st.lists(st.sampled_from(["a", "b", "..", ".", "", "ü"]), min_size=1, max_size=4).map("/".join)
entries = st.fixed_dictionaries(
    {"path": paths},
    optional={
        "sha256": st.sampled_from([sha(b"x"), sha(b"y"), "z"]),
        "size": st.integers(-1, 3),
        "executable": st.booleans(),
        "link": paths,
    },
)


@given(st.lists(entries, max_size=4).map(lambda listed: sorted(listed, key=lambda entry: entry["path"])))
@examples(200)
def test_the_worker_takes_what_the_spec_takes_and_nothing_else(listed):
    sizes = {}
    try:
        CodeManifest.model_validate({"files": listed})
        for entry in listed:
            if "sha256" in entry and sizes.setdefault(entry["sha256"], entry.get("size", 0)) != entry.get("size", 0):
                raise ValueError("one content can't have two sizes")
        allowed = True
    except (ValidationError, ValueError):
        allowed = False
    try:
        check_manifest(json.dumps({"files": listed}).encode())
        taken = True
    except Malformed:
        taken = False
    assert taken == allowed


trees = st.dictionaries(
    st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=3).map("/".join),
    st.binary(max_size=300) | st.binary(max_size=20).map(lambda data: (data, "x")),
    max_size=6,
).filter(lambda tree: not any(other.startswith(path + "/") for path in tree for other in tree))


@given(trees, st.data())
@examples(60)
def test_what_is_unpacked_is_what_was_packed_or_nothing(tmp_path_factory, tree, data):
    """Whatever pieces it comes in; cut anywhere it is torn, changed anywhere it is damaged."""
    digest, body = bundle_of(tree)
    folder = tmp_path_factory.mktemp("code")
    whole = body
    fate = data.draw(st.sampled_from(["whole", "cut", "changed"]))
    at = data.draw(st.integers(0, len(body) - 1))
    if fate == "cut":
        body = body[:at]
    elif fate == "changed":
        body = body[:at] + bytes([body[at] ^ data.draw(st.integers(1, 255))]) + body[at + 1 :]
    position = 0

    def read(size):
        nonlocal position
        piece = body[position : position + min(size, 7)]
        position += len(piece)
        return piece

    try:
        write_files(read_manifest(read, digest), read, str(folder))
    except (Torn, Damaged):
        assert fate != "whole"
        return
    assert body == whole
    found = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    assert found.keys() == tree.keys()
    for name, path in found.items():
        executable = isinstance(tree[name], tuple)
        assert path.read_bytes() == (tree[name][0] if executable else tree[name])
        assert path.stat().st_mode & 0o777 == (0o755 if executable else 0o644)


def test_a_name_the_disk_does_not_take_is_said(tmp_path):
    """The api accepts no such name; some disks take less than it does."""
    manifest = manifest_of({"short": b"x"}).canonical().replace(b"short", b"n" * 300)
    digest, read = f"sha256:{sha(manifest)}", BytesIO(pack(manifest, b"x")).read
    with pytest.raises(CantKeep, match="File name too long"):
        write_files(read_manifest(read, digest), read, str(tmp_path))
