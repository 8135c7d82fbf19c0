"""A worker's log on its way to the api: complete, in order, whatever the api does, never in the training's way."""

import hashlib
import os
import re
import threading
import time
from pathlib import Path

import pytest

from stoker_worker.bundle import build_zipapp

from .pod_worker import PYTHONS

PRINTS = """
import hashlib, os, sys
total, digest, line, seed = int(sys.argv[1]), hashlib.sha256(), 0, os.urandom(700).hex().encode()
while total > 0:
    block = b''
    for _ in range(400):
        block += b'%09d ' % line + seed[: 20 + line * 7919 % 1300] + b'\\n'
        line += 1
    digest.update(block)
    total -= len(block)
    view = memoryview(block)
    while view: view = view[os.write(1, view):]
open('digest', 'w').write('%d %s' % (line, digest.hexdigest()))
"""


def assert_every_line_once(api, pod_worker):
    lines, digest = (pod_worker.folder / "volume" / "output" / "digest").read_text().split()
    log = api.log
    numbers = [int(line[:9]) for line in log.splitlines()]
    assert numbers == list(range(int(lines)))
    assert hashlib.sha256(log).hexdigest() == digest


def test_sixty_megabytes_arrive_once_through_cuts_errors_and_restarts(pod_worker, log_api, wait_until):
    """Posts cut at any byte, answers that get lost, 500s for a while, the api gone and back: every line once."""
    fates = ["cut", None, "deaf", None, None, 500, 507, None, 409, "cut"]
    log_api.plan = lambda n: fates[n % len(fates)] if n < 60 else None
    pod_worker.python(PRINTS, 60_000_000, api=log_api)
    for _restart in range(2):
        before = log_api.posts
        wait_until(lambda before=before: log_api.posts > before + 5, what="posts")
        log_api.close()
        log_api.open(log_api.port)
    record = pod_worker.finish(90)
    assert record.exit_code == 0 and record.log_bytes > 60_000_000
    assert_every_line_once(log_api, pod_worker)
    assert log_api.stored.held() == record.log_bytes
    assert pod_worker.stdout == log_api.log


def test_acknowledged_output_is_given_back_to_the_disk(pod_worker, log_api, wait_until):
    script = PRINTS + "\nimport time\nwhile not os.path.exists('go'): time.sleep(0.02)"
    pod_worker.python(script, 60_000_000, api=log_api)
    output = pod_worker.folder / "volume" / "output"
    wait_until((output / "digest").exists, timeout_s=40)
    with open(f"/proc/{pod_worker.process.pid}/status") as status:
        peak_kb = int(re.search(r"VmHWM:\s+(\d+)", status.read())[1])
    (output / "go").touch()
    assert pod_worker.finish().exit_code == 0
    assert peak_kb < 48_000, "8 MiB of it may wait for stdout"
    spool = os.stat(pod_worker.run_dir / "log")
    assert spool.st_size > 60_000_000
    assert spool.st_blocks * 512 < 20_000_000
    assert_every_line_once(log_api, pod_worker)


@pytest.mark.parametrize("python", PYTHONS, ids=lambda path: Path(path).parts[-3])
def test_the_zipapp_ships_on_every_python(pod_worker, log_api, tmp_path, python):
    build_zipapp(str(tmp_path / "worker.pyz"))
    entry = [python, "-I", "-S", tmp_path / "worker.pyz", "--pod", "--"]
    pod_worker.python(PRINTS, 3_000_000, api=log_api, entry=entry)
    assert pod_worker.finish().exit_code == 0
    assert_every_line_once(log_api, pod_worker)


def test_a_small_log_comes_soon_and_in_few_posts(pod_worker, log_api, wait_until):
    script = "import time\nfor i in range(30): print(i, flush=True); time.sleep(0.03)\nwhile True: time.sleep(9)"
    pod_worker.python(script, api=log_api)
    wait_until(lambda: log_api.log.endswith(b"29\n"), timeout_s=5, what="the last line")
    assert log_api.posts <= 5
    pod_worker.process.terminate()
    assert pod_worker.finish().stop_requested


def test_the_token_is_read_again_when_it_was_changed(pod_worker, log_api, wait_until):
    log_api.accepts = lambda token: token == "token-2"
    pod_worker.python("print('hello', flush=True)\nimport time; time.sleep(3)", api=log_api)
    wait_until(lambda: "token-1" in log_api.tokens, what="the old token")
    pod_worker.token_file.write_text("token-2\n")
    wait_until(lambda: log_api.log == b"hello\n", what="the log")
    pod_worker.finish()


def test_over_tls_only_the_named_authority_is_trusted(pod_worker, log_api, tmp_path):
    url = log_api.over_tls(tmp_path)
    pod_worker.python("print('hello')", api=url)
    assert pod_worker.finish().exit_code == 0
    assert log_api.log == b"" and log_api.tokens == [], "not even the token was shown"
    pod_worker.python("print('hello')", api=url, env={"STOKER_API_CA": tmp_path / "cert.pem"})
    assert pod_worker.finish().exit_code == 0
    assert log_api.log.endswith(b"hello\n")


def test_progress_goes_the_same_way(pod_worker, log_api):
    script = """
import json, os
open('p', 'w').write(json.dumps({'at': 1.0, 'step': 7}))
os.rename('p', os.environ['STOKER_PROGRESS_FILE'])
print('done')
"""
    pod_worker.python(script, api=log_api)
    record = pod_worker.finish()
    assert record.progress.step == 7
    (report,) = log_api.progress
    assert report["progress"]["step"] == 7 and report["podUid"] == pod_worker.uid
    assert log_api.log == b"done\n"


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "http://no-such-host.invalid:1"])
def test_an_unreachable_api_delays_the_end_by_five_seconds_at_most(pod_worker, url):
    began = time.monotonic()
    pod_worker.python("print('hello')", api=url)
    record = pod_worker.finish()
    assert record.exit_code == 0 and record.log_bytes == 6
    assert record.finished_at - record.started_at < 3, "the training itself waits for nothing"
    assert time.monotonic() - began < 9
    assert pod_worker.stdout == b"hello\n"


def test_an_api_that_never_answers_delays_the_end_by_five_seconds_at_most(pod_worker, log_api):
    released = threading.Event()
    log_api.plan = lambda n: released.wait(20) and None
    began = time.monotonic()
    pod_worker.python("print('hello')", api=log_api)
    record = pod_worker.finish()
    released.set()
    assert record.exit_code == 0 and time.monotonic() - began < 9


def test_an_api_that_comes_back_in_the_last_moment_gets_all(pod_worker, log_api, wait_until):
    log_api.close()
    pod_worker.python(PRINTS, 5_000_000, api=log_api.url)
    wait_until(pod_worker.termination_log.exists, what="the end of the training")
    log_api.open(log_api.port)
    assert pod_worker.finish().exit_code == 0
    assert_every_line_once(log_api, pod_worker)


def test_a_slow_api_is_asked_less_often(pod_worker, log_api):
    log_api.plan = lambda n: time.sleep(0.2)
    script = "import time\nfor i in range(100): print(i, flush=True); time.sleep(0.05)"
    pod_worker.python(script, api=log_api)
    assert pod_worker.finish().exit_code == 0
    assert log_api.log == b"".join(b"%d\n" % i for i in range(100))
    assert log_api.posts <= 4, "one a moment after the first line, then one every four seconds, then the last"


def test_a_stopped_worker_ships_within_the_kubelets_grace(pod_worker, log_api, wait_until):
    """An api that takes little by little could be given 30 s; the kubelet gives 6 in all."""
    log_api.plan = lambda n: time.sleep(0.4) or "cut"
    grace = {"STOKER_TERMINATION_GRACE_SECONDS": 6, "STOKER_GRACE_SECONDS": 1}
    script = "import sys, time\nfor i in range(300_000): print(i, 'x' * 100)\nsys.stdout.flush()\ntime.sleep(60)"
    pod_worker.python(script, api=log_api, env=grace)
    wait_until(lambda: log_api.posts, what="a post")
    began = time.monotonic()
    pod_worker.process.terminate()
    record = pod_worker.finish()
    assert record.stop_requested and time.monotonic() - began < 6


def test_output_beyond_the_spools_limit_keeps_beginning_and_end(pod_worker, log_api):
    log_api.plan = lambda n: 503
    env = {"STOKER_LOG_SPOOL_BYTES": 3_000_000}
    script = (
        PRINTS
        + "\nprint('THE LAST LINE', flush=True)\nwhile not os.path.exists('go'):\n    import time; time.sleep(.05)"
    )
    pod_worker.python(script, 12_000_000, api=log_api, env=env)
    output = pod_worker.folder / "volume" / "output"
    deadline = time.monotonic() + 30
    while not (output / "digest").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    log_api.plan = lambda n: None
    (output / "go").touch()
    record = pod_worker.finish()
    log = log_api.log
    assert record.log_bytes == len(log) < 6_000_000
    (notice,) = [line for line in log.splitlines() if line.startswith(b"[stoker]")]
    missing = int(notice.split()[1])
    rest = log.replace(notice + b"\n", b"")
    numbers = [int(line[:9]) for line in rest.splitlines()[:-1] if line]
    assert rest.endswith(b"THE LAST LINE\n") and numbers[0] == 0
    assert numbers == sorted(set(numbers)), "nothing twice, nothing out of order"
    total = len(pod_worker.stdout)
    assert missing + len(rest) in (total, total + 1), "the notice may end a line"


def test_an_api_that_lost_its_disk_learns_what_is_missing(pod_worker, log_api, wait_until):
    script = PRINTS + "\nwhile not os.path.exists('go'):\n    import time; time.sleep(0.05)\nprint('THE END')"
    pod_worker.python(script, 30_000_000, api=log_api)
    output = pod_worker.folder / "volume" / "output"
    wait_until((output / "digest").exists, timeout_s=40)
    wait_until(lambda: log_api.stored.held() == os.stat(pod_worker.run_dir / "log").st_size, what="all of it")
    log_api.close()
    log_api.stored.remove()
    log_api.open(log_api.port)
    (output / "go").touch()
    record = pod_worker.finish()
    log = log_api.log
    first, _, rest = log.partition(b"\n")
    assert first.startswith(b"[stoker] ") and first.endswith(b"bytes of output are missing here: they were lost")
    assert int(first.split()[1]) + len(rest) == record.log_bytes
    assert len(rest) >= 8 << 20 and pod_worker.stdout.endswith(rest) and rest.endswith(b"THE END\n")
