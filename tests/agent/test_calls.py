"""How a worker of this machine learns of a session."""

from __future__ import annotations

import os

import pytest

from stoker.local.agent.sessions import WorkerCalls
from stoker.local.datadir import DataDir


async def test_a_call_is_an_empty_file_of_the_users_own(tmp_path):
    datadir = DataDir(tmp_path / "data")
    calls = WorkerCalls(datadir)
    datadir.worker("uid-1").mkdir()
    before = os.umask(0)
    try:
        await calls.call("uid-1", "ab12")
    finally:
        os.umask(before)
    file = datadir.worker("uid-1") / "sessions" / "ab12"
    assert file.stat().st_size == 0 and file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700
    await calls.withdraw("uid-1", "ab12")
    assert not file.exists()
    await calls.withdraw("uid-1", "ab12")


async def test_a_worker_that_is_gone_is_not_called_back(tmp_path):
    calls = WorkerCalls(DataDir(tmp_path / "data"))
    with pytest.raises(FileNotFoundError):
        await calls.call("uid-1", "ab12")
    await calls.withdraw("uid-1", "ab12")


@pytest.mark.parametrize(("pod", "session"), [("../x", "a"), ("uid", "../a"), ("", "a"), ("uid", ""), ("uid", ".a")])
async def test_what_is_no_name_makes_no_file(tmp_path, pod, session):
    with pytest.raises(ValueError, match="is no"):
        await WorkerCalls(DataDir(tmp_path / "data")).call(pod, session)
