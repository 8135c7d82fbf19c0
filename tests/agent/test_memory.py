"""Workers that the node agent holds to their memory: their groups outlive it, and go with them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stoker.local.agent.memory_groups import find_memory_groups
from stoker.spec.worker import ExitRecord
from stoker_worker.memory_group import own_group

TAKE = "kept = bytearray(400 << 20); print('had it')"


@pytest.fixture
async def held(node, datadir):
    """The node, started again with groups."""
    groups = find_memory_groups(datadir.path)
    if groups.why_not:
        pytest.skip(groups.why_not)
    await node.stop()
    node.memory_groups = groups
    yield await node.start()
    groups.remove_unused()


def group_of(node, pod):
    return Path(node.agent._lives.folder(pod.uid).read_launch().memory_group)


async def test_a_worker_that_takes_too_much_ends_with_what_it_had(held):
    await held.create("greedy", [sys.executable, "-c", TAKE], memory="64Mi")
    pod = await held.ended("greedy")
    record = ExitRecord.model_validate_json(pod.terminated.message)
    assert (pod.terminated.exit_code, record.memory_killed) == (137, True)
    assert 60 << 20 < record.memory_peak_bytes <= 64 << 20
    assert not group_of(held, pod).exists()


async def test_a_group_lives_as_long_as_its_worker(held, wait_until):
    await held.create("long", ["sh", "-c", "cat /proc/self/cgroup; sleep 100"], memory="64Mi")
    pod = await held.running("long")
    group = group_of(held, pod)
    await wait_until(lambda: group.name in (held.folder(pod) / "log").read_text())
    await held.stop()
    held.memory_groups = find_memory_groups(held.datadir.path)
    assert group.exists() and group.parent in (Path(own_group()), Path(own_group()).parent)
    await held.start()
    await held.delete("long", grace_s=1)
    await held.gone("long")
    await wait_until(lambda: not group.exists())


async def test_what_asks_for_no_memory_has_no_group(held):
    await held.create("free", ["true"])
    assert group_of(held, await held.ended("free")) == Path()


@pytest.mark.skipif(os.getuid() != 0, reason="becomes another user")
def test_who_may_make_no_group_has_the_reason_and_goes_on(tmp_path):
    script = (
        "import os, sys; from pathlib import Path; from stoker.local.agent.memory_groups import find_memory_groups\n"
        "os.setgid(65534); os.setuid(65534); found = find_memory_groups(Path(sys.argv[1]))\n"
        "print(repr(found.make('one', 1 << 20)), found.why_not)"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(("'' no control group may be made in /", "'' no memory control group")), done.stdout
