"""The log: complete, in order, prefixed where there are several ranks; a full disk never ends the training."""

import hashlib
import os
import re
import resource

import pytest

PRINTS_100_MB = """
import hashlib, os
digest = hashlib.sha256()
seed = os.urandom(1 << 16)
for i in range(1600):
    block = b'%08d ' % i + seed[: 65536 - 10] + b'\\n'
    digest.update(block)
    view = memoryview(block)
    while view: view = view[os.write(1, view):]
open('digest', 'w').write(digest.hexdigest())
"""


def test_a_hundred_megabytes_are_complete_in_little_memory(worker, wait_until):
    worker.python(PRINTS_100_MB + "\nwhile not os.path.exists('go'):\n    import time; time.sleep(0.01)")
    wait_until((worker.folder / "digest").exists, timeout_s=60)
    with open(f"/proc/{worker.process.pid}/status") as status:
        peak_kb = int(re.search(r"VmHWM:\s+(\d+)", status.read())[1])
    (worker.folder / "go").touch()
    record = worker.finish()
    assert record.exit_code == 0 and record.log_bytes > 100_000_000
    with open(worker.folder / "log", "rb") as log:
        digest = hashlib.file_digest(log, "sha256").hexdigest()
    assert digest == (worker.folder / "digest").read_text()
    assert peak_kb < 24_000


@pytest.mark.parametrize(
    "data",
    [
        b"no newline at the end",
        b"\n\n\n",
        b"\xff\xfe invalid \xc3\x28 utf-8\n",
        b"x" * 3_000_000 + b"\n",
        b"a\rb\rc",
        b"",
    ],
    ids=["no newline", "newlines only", "invalid utf-8", "a huge line", "carriage returns", "nothing"],
)
def test_one_ranks_output_is_passed_through_byte_by_byte(worker, data):
    (worker.folder / "data").write_bytes(data)
    worker.run(["cat", "data"])
    assert worker.log == data


def test_stdout_and_stderr_keep_their_order(worker):
    worker.run(["sh", "-c", "for i in 1 2 3 4 5; do echo out $i; echo err $i >&2; done"])
    assert worker.log.decode().split("\n")[:-1] == [f"{s} {i}" for i in range(1, 6) for s in ("out", "err")]


def test_several_ranks_lines_are_whole_and_complete(worker):
    script = """
import os, random, sys
rank = int(os.environ['RANK'])
random.seed(rank)
out = b''.join(b'%d:%d:%s\\n' % (rank, i, b'y' * random.randrange(400)) for i in range(5000))
while out:
    n = random.choice([1, 7, 100, 5000, 70000])
    os.write(1, out[:n])
    out = out[n:]
"""
    worker.python(script, ranks=3, mode="perGpu")
    assert worker.finish().exit_code == 0
    seen = {0: 0, 1: 0, 2: 0}
    for line in worker.log.split(b"\n")[:-1]:
        match = re.fullmatch(rb"\[rank (\d)\] (\d):(\d+):y*", line)
        assert match and match[1] == match[2], line[:100]
        rank = int(match[1])
        assert int(match[3]) == seen[rank]
        seen[rank] += 1
    assert set(seen.values()) == {5000}


def test_a_huge_line_of_one_of_several_ranks_is_not_lost(worker):
    script = """
import os, sys
if os.environ['RANK'] == '0': sys.stdout.write('z' * 1_000_000)
else: print('short')
"""
    worker.python(script, ranks=2, mode="perGpu")
    worker.finish()
    assert worker.log.count(b"z") == 1_000_000
    assert b"[rank 1] short\n" in worker.log
    assert not re.search(rb"z\[rank", worker.log)


def test_a_prompt_without_a_newline_is_shown_while_the_rank_lives(worker):
    script = """
import os, sys, time
if os.environ['RANK'] == '0':
    sys.stdout.write('waiting...'); sys.stdout.flush()
    while not os.path.exists('go'): time.sleep(0.01)
    print(' done')
"""
    worker.python(script, ranks=2, mode="perGpu")
    worker.says("[rank 0] waiting...")
    (worker.folder / "go").touch()
    worker.finish()
    assert worker.log == b"[rank 0] waiting... done\n"


def test_a_full_disk_loses_output_says_so_and_lets_the_training_go_on(worker, wait_until):
    script = """
import os, time
def wait(name):
    while not os.path.exists(name): time.sleep(0.005)
print('before', flush=True); open('began', 'w').close(); wait('full')
for i in range(2000): print('lost', i, flush=True)
open('printed', 'w').close(); wait('room')
print('after', flush=True)
"""
    worker.python(script)
    worker.says("before")
    unlimited = resource.RLIM_INFINITY
    limit = 10_000  # over the exit record's reserve, under what is printed
    resource.prlimit(worker.process.pid, resource.RLIMIT_FSIZE, (limit, unlimited))
    (worker.folder / "full").touch()
    wait_until((worker.folder / "printed").exists)
    wait_until(lambda: os.path.getsize(worker.folder / "log") == limit)
    resource.prlimit(worker.process.pid, resource.RLIMIT_FSIZE, (unlimited, unlimited))
    (worker.folder / "room").touch()
    assert worker.finish().exit_code == 0
    lines = worker.log.decode().splitlines()
    assert lines[0] == "before" and lines[-1] == "after"
    said = next(line for line in lines if line.startswith("[stoker]"))
    missing = int(re.match(r"\[stoker\] (\d+) bytes of output are missing here: File too large", said)[1])
    printed = b"before\n" + b"".join(b"lost %d\n" % i for i in range(2000)) + b"after\n"
    assert len(worker.log) - len(said) - 2 + missing in (len(printed), len(printed) - 1)


def test_a_log_over_its_limit_keeps_its_beginning_and_its_end_and_says_what_is_missing(worker):
    worker.python("for n in range(1_000_000): print('line', n)", logBytes=100_000)
    assert worker.finish().exit_code == 0
    whole = b"".join(b"line %d\n" % n for n in range(1_000_000))
    limit = rb"\[stoker\] this log has reached its limit of 100000 bytes[^\n]*\n"
    pattern = rb"(.*?)\n?" + limit + rb"\[stoker\] (\d+) bytes of[^\n]*\n(.*)"
    begins, missing, ends = re.fullmatch(pattern, worker.log, re.DOTALL).groups()
    assert whole.startswith(begins) and whole.endswith(ends)
    assert 0 < len(begins) <= 100_000 and 1_000_000 < len(ends) < 2_200_000
    assert len(whole) - len(begins) - len(ends) - int(missing) in (0, 1), "at most the end of a line that was cut"


def test_the_log_goes_on_where_an_earlier_one_ended(worker):
    (worker.folder / "log").write_bytes(b"earlier\n")
    worker.run(["echo", "later"])
    assert worker.log == b"earlier\nlater\n"
