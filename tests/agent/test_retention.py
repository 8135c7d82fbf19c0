"""What jobs saved goes some time after the job's deletion: never before, and nothing else."""

import os

import pytest

from stoker.local.agent.retention import GONE_MARK, remove_old_results

DAY = 86_400.0


@pytest.fixture
def jobs(tmp_path):
    folder = tmp_path / "jobs"
    for uid in ("there", "gone", "older"):
        (folder / uid / "output").mkdir(parents=True)
        (folder / uid / "output" / "model.pt").write_text(uid)
    return folder


def left(jobs):
    return sorted(path.name for path in jobs.iterdir())


def test_what_a_job_saved_stays_for_a_while_after_its_deletion(jobs):
    there = {"there", "gone"}
    sweep = lambda now_s: remove_old_results(jobs, 30 * DAY, now_s, there.__contains__)  # noqa: E731
    assert sweep(0.0) == [] and left(jobs) == ["gone", "older", "there"]
    there.remove("gone")
    assert sweep(10 * DAY) == sweep(29.9 * DAY) == []
    assert sweep(30 * DAY) == ["older"]
    assert (jobs / "gone" / "output" / "model.pt").read_text() == "gone"
    assert sweep(40 * DAY) == ["gone"] and left(jobs) == ["there"]
    assert not (jobs / "there" / GONE_MARK).exists()


def test_a_job_that_is_seen_again_is_not_gone(jobs):
    """As after a restart whose store was an older copy."""
    remove_old_results(jobs, DAY, 0.0, lambda uid: False)
    remove_old_results(jobs, DAY, 2.0, lambda uid: uid == "there")
    assert remove_old_results(jobs, DAY, DAY + 1, lambda uid: False) == ["gone", "older"]
    assert left(jobs) == ["there"]


def test_links_are_not_followed_and_one_folder_is_no_others_trouble(jobs, tmp_path):
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").touch()
    (jobs / "link").symlink_to(precious)
    (jobs / "gone" / "output" / "link").symlink_to(precious)
    (jobs / "older" / GONE_MARK).symlink_to(precious / "file")
    for now_s in (0.0, 2 * DAY):
        remove_old_results(jobs, DAY, now_s, lambda uid: uid == "there")
    assert left(jobs) == ["link", "older", "there"] and (precious / "file").exists()
    os.unlink(jobs / "older" / GONE_MARK)
    (jobs / "older" / GONE_MARK).write_text("when?")
    for now_s, removed in ((2 * DAY, []), (3 * DAY, ["older"])):  # a mark that says nothing is made anew
        assert remove_old_results(jobs, DAY, now_s, lambda uid: uid == "there") == removed


def test_a_removal_that_was_interrupted_is_finished(jobs):
    (jobs / "older").rename(jobs / ".removing-older")
    assert remove_old_results(jobs, DAY, 0.0, lambda uid: True) == []
    assert left(jobs) == ["gone", "there"]


async def test_the_agent_spares_jobs_that_are_there_and_workers_that_run(node, wait_until):
    node.keep_results_s = 0.0
    await node.stop()
    await node.start()
    node.jobs.add("uid-of-kept")
    await node.create("kept", ["sh", "-c", 'echo 1 > "$STOKER_OUTPUT_DIR/1"'])
    await node.create("dropped", ["sh", "-c", 'echo 1 > "$STOKER_OUTPUT_DIR/1"'])
    await node.create("running", ["sh", "-c", 'echo 1 > "$STOKER_OUTPUT_DIR/1"; exec sleep 600'])
    for name in ("kept", "dropped"):
        await node.ended(name)
    await wait_until(lambda: (node.datadir.jobs / "uid-of-running" / "output" / "1").exists())
    for name in ("kept", "dropped"):
        await node.delete(name)
        await node.gone(name)
    await wait_until(lambda: len(node.agent._lives.ended) == 2)
    for _ in range(2):  # marked, then removed
        await node.agent.remove_old_results()
    assert sorted(path.name for path in node.datadir.jobs.iterdir()) == ["uid-of-kept", "uid-of-running"]
