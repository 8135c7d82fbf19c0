"""The process of the pod that reads a job's files after its end: asks the api for sessions and serves them.

Owns how often to ask and when to stop: with no session for `IDLE_S` it ends. Each session is a process of its own, as
in a worker (`session`, `files_session`); the claim is mounted read-only. Called by `entry` as `--reader`.
"""

from __future__ import annotations

import http.client
import os
import sys
import time

from .folder import LAUNCH_FILE, Launch, replace_file
from .light_stdlib import parse_json, render_json
from .link import bearer, open_connection, place
from .pod import RUN_DIR, report_target
from .sessions import WorkerSessions

MYPY = False
if MYPY:
    from typing import Mapping

READER_PATH = "/v1/report/reader"
ASK_EVERY_S = 0.5
ASK_AFTER_FAILURE_S = 2.0
IDLE_S = 300.0
TIMEOUT_S = 5.0
_ANSWER_BYTES = 65_536


def main(environ: Mapping[str, str], stop_requests: list[int]) -> int:
    """Serve until no session has come for `IDLE_S`. Returns: the process's exit code."""
    folder = environ.get("STOKER_RUN_DIR") or RUN_DIR
    os.makedirs(folder, mode=0o700, exist_ok=True)
    target = report_target(environ, folder)
    if target is None:
        sys.stderr.write("stoker_worker: the environment lacks STOKER_API_URL\n")
        return 1
    launch = _launch(environ, target)
    replace_file(folder, LAUNCH_FILE, render_json(launch).encode())
    sessions = WorkerSessions(folder, Launch(dict(launch, env=dict(environ))))
    used_at = time.monotonic()
    while not stop_requests:
        pause_s = ASK_EVERY_S
        try:
            wanted = _waiting_sessions(target)
        except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
            sys.stderr.write("[stoker] the api can't be asked: %s\n" % (str(error) or type(error).__name__))
            wanted, pause_s = [], ASK_AFTER_FAILURE_S
        for session_id in wanted:
            why = sessions.start(session_id)
            if why:
                sys.stderr.write("[stoker] %s\n" % why)
        _reap(sessions.pids)
        now = time.monotonic()
        if sessions.pids:
            used_at = now
        elif now - used_at >= IDLE_S:
            break
        time.sleep(pause_s)
    return 0


def _waiting_sessions(target: dict[str, str]) -> list[str]:
    """The ids of the sessions that wait for us. Raises: OSError, HTTPException, ValueError, KeyError."""
    connection = open_connection(target, TIMEOUT_S)
    try:
        connection.request("GET", place(target, READER_PATH), headers={"Authorization": bearer(target)})
        response = connection.getresponse()
        data = response.read(_ANSWER_BYTES)
    finally:
        connection.close()
    if response.status != 200:
        raise ValueError("it answered %d" % response.status)
    answer = parse_json(data.decode("utf-8", "replace"))
    ids = answer.get("sessions") if isinstance(answer, dict) else None
    return [one for one in ids if isinstance(one, str)] if isinstance(ids, list) else []


def _launch(environ: Mapping[str, str], target: dict[str, str]) -> dict[str, object]:
    """What sessions read of an order; there is no attempt and no worker. Raises: KeyError."""
    return {
        "version": 1,
        "podUid": environ["STOKER_POD_UID"],
        "project": environ["STOKER_PROJECT"],
        "jobName": environ["STOKER_JOB"],
        "jobUid": environ["STOKER_JOB_UID"],
        "attempt": 0,
        "worker": 0,
        "workers": 1,
        "ranks": 1,
        "argv": ["files"],
        "workingDir": "/",
        "graceS": 0.0,
        "masterPort": 0,
        "env": {},
        "report": target,
    }


def _reap(pids: set[int]) -> None:
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            pids.clear()
            return
        if pid == 0:
            return
        pids.discard(pid)
