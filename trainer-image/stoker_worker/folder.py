"""A worker's folder: its files, each written under a temporary name and renamed into place.

Owns the reading of launch.json and the writing of started.json and exit.json. The names and fields are those of
`stoker.spec.worker`, whose models the tests read every record and report with.
"""

from __future__ import annotations

import os
import time

from .light_stdlib import parse_json, render_json

MYPY = False
if MYPY:
    from typing import Any

LAUNCH_FILE = "launch.json"
STARTED_FILE = "started.json"
EXIT_FILE = "exit.json"
PROGRESS_FILE = "progress.json"
LOCK_FILE = "lock"
LOG_FILE = "log"
STACKS_FILE = "stacks.txt"
CODE_FOLDER = "code"
CODE_MARK = "code-complete"
_MOST = 1e300
"""Beyond is no number that a metric should have, and none that is finite everywhere."""
"""Empty, beside the code: what has a newer ctime there is the command's own."""
SESSIONS_FOLDER = "sessions"
ENVIRONMENT_FILE = "environment.json"
"""Where the job's own packages were installed."""

EXIT_RESERVE_BYTES = 8192
"""Kept free on the disk from the start, so that a worker on a full disk can still report how it ended."""

PROGRESS_MAX_BYTES = 65_536

TERMINATION_BYTES = 4096
_PROGRESS_NUMBERS = ("at", "step", "totalSteps", "epoch", "samples")


class Launch:
    """The worker's order. Raises: ValueError, KeyError where the file is not one of ours."""

    def __init__(self, data: dict[str, Any]) -> None:
        if data.get("version", 1) != 1:
            raise ValueError("launch.json is of version %r; this supervisor reads version 1" % data["version"])
        self.pod_uid: str = data["podUid"]
        self.project: str = data["project"]
        self.job_name: str = data["jobName"]
        self.job_uid: str = data["jobUid"]
        self.attempt: int = data["attempt"]
        self.worker: int = data["worker"]
        self.workers: int = data["workers"]
        self.own_trainer: bool = data.get("mode") == "perGpu"
        """One process per GPU is how our trainer runs; a user's command is run once."""
        self.ranks: int = data["ranks"]
        self.argv: list[str] = data["argv"]
        self.working_dir: str = data["workingDir"]
        self.env: dict[str, str] = data.get("env") or {}
        self.secret_names = [name for name in (self.env.get("STOKER_SECRET_ENV") or "").split(",") if name]
        """Which of the environment's variables hold secrets."""
        self.grace_s: float = data["graceS"]
        self.gpu_uuids: list[str] = data.get("gpuUuids") or []
        self.gpus: int = data.get("gpus") or len(self.gpu_uuids)
        self.master_addr: str = data.get("masterAddr") or "127.0.0.1"
        self.master_port: int = data["masterPort"]
        self.peer_ports: list[int] = data.get("peerPorts") or []
        """One for each worker of the gang, where they share an address."""
        self.log_bytes: int = data.get("logBytes") or 0
        """What the log may hold; 0: as much as the disk takes."""
        self.memory_group: str = data.get("memoryGroup") or ""
        """The worker's own control group, which limits its memory; '': it has none."""
        self.report: dict[str, str] | None = data.get("report")
        self.code = self.env.get("STOKER_CODE") or ""
        """The digest of the user's code; '': there is none to fetch."""
        self.requirements = self.env.get("STOKER_REQUIREMENTS") or ""
        """The list of packages within the code; '': none are installed."""
        self.code_timeout_s = _number(self.env.get("STOKER_CODE_TIMEOUT_SECONDS"), 300.0)
        self.hold_s = _number(self.env.get("STOKER_HOLD_SECONDS"), 0.0)
        self.stall_s = _number(self.env.get("STOKER_STALL_AFTER_SECONDS"), 0.0)
        """Ranks whose step does not change for so long are ended; 0: never."""
        self.target = _target(self.env.get("STOKER_STOP_TARGET"))
        """The metric with which a user's command is done, its value, and whether it is to be at most that; or None."""
        if not self.argv or self.ranks < 1:
            raise ValueError("launch.json names no command or no rank")


def read_launch(path: str) -> Launch:
    """Raises: OSError, ValueError, KeyError."""
    return Launch(parse_json(_read(path, 1 << 24)))


def read_secrets(fd: int) -> dict[str, str]:
    """Variables that stand in no file; the descriptor is closed. Raises: OSError, ValueError."""
    found: dict[str, str] = parse_json(_read_all(fd, 1 << 24))
    return found


def read_environment(folder: str) -> str:
    """'': there is none."""
    try:
        return str(parse_json(_read(folder + "/" + ENVIRONMENT_FILE, 65_536))["path"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def write_started(folder: str, at: float) -> None:
    """Say who runs here: the pid and what sets it apart from a later process of the same number. Raises: OSError."""
    stat = _read("/proc/self/stat", 4096)
    started = {
        "version": 1,
        "pid": os.getpid(),
        "startTicks": int(stat[stat.rindex(")") + 2 :].split(" ")[19]),
        "bootId": _read("/proc/sys/kernel/random/boot_id", 64).strip(),
        "at": at,
    }
    replace_file(folder, STARTED_FILE, render_json(started).encode())


def reserve_exit(folder: str) -> None:
    """Take the room of the exit record now. Raises: OSError."""
    fd = os.open(folder + "/" + EXIT_FILE + ".tmp", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(fd, 0, EXIT_RESERVE_BYTES)
    finally:
        os.close(fd)


def write_exit(folder: str, record: dict[str, Any]) -> bool:
    """Write the exit record, without its progress's summary where the disk has no room; whether it stands."""
    progress = record["progress"]
    small = dict(record, progress=dict(progress, summary={}) if progress else None)
    bare = dict(record, progress=None, message=record["message"][:500])
    for pause_s in (0.0, 0.2, 1.0, 5.0):
        time.sleep(pause_s)
        for variant in (record, small, bare):
            try:
                replace_file(folder, EXIT_FILE, render_json(variant).encode(), sync=True)
            except OSError:
                continue
            return True
    return False


def write_termination(path: str, record: dict[str, Any]) -> bool:
    """Write the exit record as the container's termination message; whether that worked."""
    data = termination_message(record)
    try:
        # The kubelet's own file, mounted by itself: it can't be replaced, only written.
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            return os.write(fd, data) == len(data)
        finally:
            os.close(fd)
    except OSError:
        return False


def termination_message(record: dict[str, Any]) -> bytes:
    """The exit record in at most 4,096 bytes: what matters least goes first, until the rest fits.

    Source: Kubernetes, "Customizing the termination message" (longer ones are cut, which would break the JSON).
    """
    progress = record["progress"] or {}
    message = record["message"]
    saved = {"checkpoint": {"step": progress["checkpoint"]["step"]}} if progress.get("checkpoint") else {}
    numbers = {name: value for name, value in progress.items() if name in _PROGRESS_NUMBERS}
    smaller: tuple[dict[str, Any], ...] = (
        {},
        {"progress": {name: value for name, value in progress.items() if name != "summary"}},
        {"ranks": []},
        {"message": message[:300]},
        {"progress": dict(numbers, checkpoint=progress["checkpoint"]) if saved else numbers},
        {"message": ""},
        {"progress": dict(numbers, **saved)},
        {"progress": None},
    )
    small = dict(record)
    for step in smaller:
        small.update(step if record["progress"] or "progress" not in step else {})
        data = render_json(small).encode()
        if len(data) <= TERMINATION_BYTES:
            break
    return data


def read_progress(folder: str) -> dict[str, Any] | None:
    """The newest progress, with only what the contract knows, or None if there is none that can be read."""
    path = folder + "/" + PROGRESS_FILE
    try:
        data = parse_json(_read(path, PROGRESS_MAX_BYTES))
        written_at = os.stat(path).st_mtime
    except (OSError, ValueError):
        return None
    if not isinstance(data, dict):
        return None
    progress: dict[str, Any] = {"at": data["at"] if _is_number(data.get("at")) else written_at}
    for name in ("step", "totalSteps", "epoch", "samples"):
        if _is_int(data.get(name)):
            progress[name] = data[name]
    metrics = data.get("metrics")
    if isinstance(metrics, dict):
        progress["metrics"] = {k: v for k, v in metrics.items() if _is_number(v)}
    saved = data.get("checkpoint")
    if isinstance(saved, dict) and _is_int(saved.get("step")):
        progress["checkpoint"] = {"step": saved["step"], "path": str(saved.get("path") or "")}
    if isinstance(data.get("summary"), dict):
        progress["summary"] = data["summary"]
    return progress


def _read(path: str, limit: int) -> str:
    return _read_all(os.open(path, os.O_RDONLY | os.O_CLOEXEC), limit)


def _read_all(fd: int, limit: int) -> str:
    """Closes the descriptor."""
    try:
        parts = []
        while limit > 0:
            part = os.read(fd, min(limit, 65_536))
            if not part:
                break
            parts.append(part)
            limit -= len(part)
        return b"".join(parts).decode("utf-8", "replace")
    finally:
        os.close(fd)


def replace_file(folder: str, name: str, data: bytes, sync: bool = False) -> None:
    """Write a file of the folder as a whole or not at all. Raises: OSError."""
    path = folder + "/" + name
    fd = os.open(path + ".tmp", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        written = 0
        while written < len(data):
            written += os.write(fd, data[written:])
        # Truncated after the write, not before: the room that was reserved is used, not given back.
        os.ftruncate(fd, len(data))
        if sync:
            os.fsync(fd)
    finally:
        os.close(fd)
    os.rename(path + ".tmp", path)
    if sync:
        directory = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def _target(text: str | None) -> tuple[str, float, bool] | None:
    try:
        found = parse_json(text) if text else None
        return None if found is None else (str(found["metric"]), float(found["value"]), found["mode"] == "min")
    except (ValueError, KeyError, TypeError):
        return None


def _number(text: str | None, default: float) -> float:
    try:
        value = float(text or default)
    except ValueError:
        return default
    return value if 0 <= value < 1e9 else default


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and -_MOST <= value <= _MOST
