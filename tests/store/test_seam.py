"""The fault seam: counting, tracing, failing, killing."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from stoker.store.seam import InjectedFault, Seam


def cross(seam, *names):
    """Cross by these names. Returns: (calls made, the index of the crossing that failed or None)."""
    made = []
    for index, name in enumerate(names):
        try:
            with seam.crossing(name):
                made.append(name)
        except InjectedFault:
            return made, index
    return made, None


CALLS = ("store.create TrainingJob", "agent.spawn", "store.create Pod", "agent.spawn", "store.delete Pod")


@pytest.mark.parametrize(
    ("rules", "made", "failed_at"),
    [
        ("", 5, None),
        ("fail 2", 1, 1),
        ("fail before 2", 1, 1),
        ("fail after 2", 2, 1),
        ("fail agent.spawn", 1, 1),
        ("fail after agent.spawn:2", 4, 3),
        ("fail store.create:2", 2, 2),
        ("fail store.create Pod", 2, 2),
        ("fail store.* Pod:2", 4, 4),
        ("fail nothing.like.it", 5, None),
        ("fail 9; fail 3", 2, 2),
        ("fail 9\nfail agent.*:2", 3, 3),
    ],
)
def test_rules_pick_their_call(rules, made, failed_at):
    assert cross(Seam.parse(rules), *CALLS) == (list(CALLS[:made]), failed_at)


def test_a_rule_for_each_call_fails_every_time():
    seam = Seam.parse("fail agent.spawn:*")
    assert cross(seam, "agent.spawn") == ([], 0)
    assert cross(seam, "agent.spawn") == ([], 0)


def test_a_rule_for_one_call_fails_once():
    seam = Seam.parse("fail agent.spawn")
    assert cross(seam, "agent.spawn") == ([], 0)
    assert cross(seam, "agent.spawn") == (["agent.spawn"], None)


@pytest.mark.parametrize("text", ["explode 3", "kill", "fail during 3", "17", "fail before", "fail create"])
def test_what_is_no_rule_is_refused(text):
    with pytest.raises(ValueError, match="is no rule"):
        Seam.parse(text)


def test_calls_are_counted_by_name_and_in_all():
    seam = Seam()
    cross(seam, *CALLS)
    assert seam.total == 5 and seam.counts["agent.spawn"] == 2 and seam.counts["store.create Pod"] == 1


def test_the_calls_own_error_passes():
    seam = Seam()
    with pytest.raises(KeyError), seam.crossing("x"):
        raise KeyError
    assert seam.total == 1


KILLED = """
import sys
from pathlib import Path
from stoker.store.seam import Seam
seam = Seam.parse(sys.argv[1], trace=Path(sys.argv[2]))
for number in range(1, 4):
    with seam.crossing("call.one", number):
        print(number, flush=True)
"""


@pytest.mark.parametrize(
    ("rule", "made", "traced"),
    [("kill before 2", "1\n", 2), ("kill after call.one:2", "1\n2\n", 2), ("", "1\n2\n3\n", 3)],
)
def test_killing_is_sudden_and_the_trace_survives(tmp_path, rule, made, traced):
    trace = tmp_path / "trace"
    done = subprocess.run([sys.executable, "-c", KILLED, rule, trace], capture_output=True, text=True, timeout=60)
    assert done.returncode == (-signal.SIGKILL if rule else 0), done.stderr
    assert done.stdout == made
    assert trace.read_text() == "".join(f"{n} call.one {n}\n" for n in range(1, traced + 1))
