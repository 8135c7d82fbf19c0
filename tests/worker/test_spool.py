"""The log in a pod as a file: what is in it, what is said to be missing, and what stdout got of it."""

import os
import re
import sys

from hypothesis import given
from hypothesis import strategies as st

from stoker_worker import bounded_log, spool
from stoker_worker.mirror import Mirror
from tests.support.examples import examples

from .pod_worker import PROGRAM

LINE = "line %06d\n"
steps = st.lists(st.tuples(st.integers(1, 400), st.booleans(), st.integers(0, 100)), max_size=60)


@given(steps)
@examples(100)
def test_every_byte_is_in_the_file_or_counted(tmp_path_factory, steps):
    """Writes of any size, an api that acknowledges now and then: beginning and end stay, in order, nothing twice."""
    folder = tmp_path_factory.mktemp("spool")
    newest, bounded_log.NEWEST_BYTES = bounded_log.NEWEST_BYTES, 300
    out = os.open(folder / "out", os.O_WRONLY | os.O_CREAT)
    try:
        log = spool.Spool(str(folder / "log"), Mirror(out), 2000, shipping=True)
        whole = "".join(LINE % number for number in range(2500)).encode()
        at = 0
        for length, acknowledges, percent in steps:
            piece = memoryview(whole)[at : at + length]
            log.write(piece)
            at += len(piece)
            if acknowledges:
                log.acknowledged += (log.size() - log.acknowledged) * percent // 100
                log.report_loss()
            # Besides what is newest: as much as may wait, and that was held back for it.
            assert log.size() - log.acknowledged <= 2000 + 2 * 300 + 100
        log.finish()
    finally:
        bounded_log.NEWEST_BYTES = newest
        os.close(out)
    assert (folder / "out").read_bytes() == whole[:at]
    pieces = re.split(r"\[stoker\] (\d+) bytes of output are missing here[^\n]*\n", (folder / "log").read_text())
    kept, missing = pieces[::2], [int(number) for number in pieces[1::2]]
    place = 0
    for piece in kept:  # a newline may have been put behind an unfinished line, before the notice
        place = whole[:at].decode().index(piece.removesuffix("\n"), place) + len(piece.removesuffix("\n"))
    assert at <= sum(map(len, kept)) + sum(missing) <= at + len(missing)


def test_a_full_disk_is_counted_and_stdout_has_it_all(pod_worker, log_api):
    script = "for i in range(20_000): print('%06d' % i, 'x' * 90)"
    entry = ["sh", "-c", 'ulimit -f 1000; exec "$@"', "sh", sys.executable, "-I", "-S", str(PROGRAM), "--pod", "--"]
    read, write = os.pipe()
    pod_worker.start([sys.executable, "-c", script], api=log_api, entry=entry, stdout=write)
    os.close(write)
    with open(read, "rb") as stdout:
        printed = stdout.read()
    record = pod_worker.finish()
    assert record.exit_code == 0
    assert printed.splitlines() == [b"%06d " % i + b"x" * 90 for i in range(20_000)]
    assert printed.startswith(log_api.log) and len(log_api.log) == record.log_bytes > 500_000
