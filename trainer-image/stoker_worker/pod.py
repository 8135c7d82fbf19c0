"""The worker's order in a pod: composed from the container's environment, which the operator rendered.

Owns the names of `docs/worker-contract.md` ("In a pod"), the run's folder and the job's folders on its volume. Called
once by the supervisor's `--pod` mode, before any process of the user's. Never opens a connection.
"""

from __future__ import annotations

import os

from .folder import CODE_FOLDER, LAUNCH_FILE, PROGRESS_FILE, Launch, replace_file
from .light_stdlib import render_json
from .memory_group import own_group

MYPY = False
if MYPY:
    from typing import Any, Mapping

RUN_DIR = "/stoker/run"
TOKEN_FILE = "/var/run/secrets/stoker.dev/token"
TERMINATION_LOG = "/dev/termination-log"
METRICS_PORT = "9464"
MASTER_PORT = "29400"
SPOOL_BYTES = 1 << 30

CA_FILE = "api-ca.pem"

_NO_DEVICES = ("", "all", "none", "void")
_CACHES = (
    "XDG_CACHE_HOME",
    "TORCHINDUCTOR_CACHE_DIR",
    "TRITON_CACHE_DIR",
    "NUMBA_CACHE_DIR",
    "CUDA_CACHE_PATH",
    "MPLCONFIGDIR",
)
"""What an image made for root points at root's own folders. Without them each tool's place is below HOME or /tmp."""
_STORES = ("HF_HOME", "TORCH_HOME")
"""The same, but one that can be read is of use: an image may bring its models along."""


class NotAPod(Exception):
    """The environment is not that of a worker's pod; the text names what is missing."""


class PodOrder:
    """What the supervisor needs to know in a pod beside its `Launch`."""

    def __init__(self, folder: str, launch: Launch, refusal: str, environ: Mapping[str, str]) -> None:
        self.folder = folder
        self.launch = launch
        self.refusal = refusal
        """Why nothing can be started here; '': it can."""
        self.termination_log = environ.get("STOKER_TERMINATION_LOG", TERMINATION_LOG)
        self.spool_bytes = _number(environ, "STOKER_LOG_SPOOL_BYTES", SPOOL_BYTES)
        self.termination_grace_s = _number(environ, "STOKER_TERMINATION_GRACE_SECONDS", 0)
        """What the kubelet waits between SIGTERM and SIGKILL; 0: not known."""


def compose(environ: Mapping[str, str], argv: list[str]) -> PodOrder:
    """The order, and its folders made. Raises: NotAPod, OSError (no run folder, so no record can be written)."""
    folder = environ.get("STOKER_RUN_DIR") or RUN_DIR
    os.makedirs(folder, mode=0o700, exist_ok=True)
    try:
        data = _launch(environ, argv, folder)
        launch = Launch(data)
    except KeyError as error:
        raise NotAPod("the environment lacks %s: a worker's pod is made by Stoker's operator" % error.args[0]) from None
    except ValueError as error:
        raise NotAPod(str(error)) from None
    # Without the environment, which may hold secrets: they need not lie on the node's disk.
    replace_file(folder, LAUNCH_FILE, render_json(dict(data, env={})).encode())
    return PodOrder(folder, launch, _make_job_folders(launch.env), environ)


def _launch(environ: Mapping[str, str], argv: list[str], folder: str) -> dict[str, Any]:
    ranks = int(environ.get("STOKER_RANKS") or 1)
    gpu_uuids = _gpu_uuids(environ)
    gpus = int(environ.get("STOKER_GPUS") or len(gpu_uuids) or (ranks if _per_gpu(environ) and ranks > 1 else 0))
    env = dict(environ)
    env.pop("STOKER_API_CA_PEM", None)
    env.setdefault("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
    env.setdefault("PYTHONUNBUFFERED", "1")
    env.setdefault("OMP_NUM_THREADS", str(max(1, _cpu_milli(environ) // (1000 * ranks))))
    env["HOME"] = _home(environ)
    for name in (*_CACHES, *_STORES):
        if name in env and not _usable(env[name], read=name in _STORES):
            del env[name]
    for name in ("USER", "LOGNAME"):  # the image need not know our number, and getpass.getuser() must not fail
        env.setdefault(name, "stoker")
    env.setdefault("STOKER_METRICS_PORT", METRICS_PORT)
    env.setdefault("STOKER_METRICS_HOST", _metrics_host(environ))
    env.setdefault("STOKER_CHECKPOINT_DIR", folder + "/checkpoints")
    env.setdefault("STOKER_OUTPUT_DIR", folder + "/output")
    env["STOKER_PROGRESS_FILE"] = folder + "/" + PROGRESS_FILE
    if env.get("STOKER_PYTHON_PATH"):
        within = [_in_code(folder, path) for path in env["STOKER_PYTHON_PATH"].split(":")]
        env["PYTHONPATH"] = ":".join(within + [path for path in (env.get("PYTHONPATH"),) if path])
    env["STOKER_GPU_UUIDS"] = ",".join(gpu_uuids)
    env["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    if not gpus or environ.get("STOKER_SIMULATED_GPUS") == "1":
        env["CUDA_VISIBLE_DEVICES"] = ""
    elif gpu_uuids and all(uuid.startswith(("GPU-", "MIG-")) for uuid in gpu_uuids):
        env["CUDA_VISIBLE_DEVICES"] = env["STOKER_GPU_UUIDS"]
    return {
        "version": 1,
        "podUid": environ["STOKER_POD_UID"],
        "podName": environ.get("STOKER_POD_NAME", ""),
        "project": environ["STOKER_PROJECT"],
        "jobName": environ["STOKER_JOB"],
        "jobUid": environ["STOKER_JOB_UID"],
        "attempt": int(environ["STOKER_ATTEMPT"]),
        "worker": int(environ["STOKER_WORKER"]),
        "workers": int(environ["STOKER_WORKERS"]),
        "mode": environ.get("STOKER_LAUNCH_MODE") or "once",
        "ranks": ranks,
        "argv": argv,
        "workingDir": _working_dir(environ, folder, env["STOKER_OUTPUT_DIR"]),
        "env": env,
        "graceS": float(environ.get("STOKER_GRACE_SECONDS") or 30),
        "gpuUuids": gpu_uuids,
        "gpus": gpus,
        "masterAddr": environ.get("MASTER_ADDR") or "127.0.0.1",
        "masterPort": int(environ.get("MASTER_PORT") or MASTER_PORT),
        "memoryGroup": own_group(),
        "report": report_target(environ, folder),
    }


def report_target(environ: Mapping[str, str], folder: str) -> dict[str, str] | None:
    """Where the api is and what it is asked with; None: the environment names none. Raises: OSError."""
    url = environ.get("STOKER_API_URL")
    if not url:
        return None
    ca_file = environ.get("STOKER_API_CA") or ""
    if environ.get("STOKER_API_CA_PEM"):
        replace_file(folder, CA_FILE, environ["STOKER_API_CA_PEM"].encode())
        ca_file = folder + "/" + CA_FILE
    return {"url": url, "tokenFile": environ.get("STOKER_TOKEN_FILE") or TOKEN_FILE, "caFile": ca_file}


def _metrics_host(environ: Mapping[str, str]) -> str:
    """Every address of a pod that has some of its own, so that Prometheus comes in and `port-forward` too."""
    address = environ.get("STOKER_POD_IP") or ""
    if not address:
        return "127.0.0.1"
    return "::" if ":" in address else "0.0.0.0"


def _per_gpu(environ: Mapping[str, str]) -> bool:
    return environ.get("STOKER_LAUNCH_MODE") == "perGpu"


def _gpu_uuids(environ: Mapping[str, str]) -> list[str]:
    """The GPUs that the device plugin names. An image's own `all` does not name ours."""
    value = environ.get("NVIDIA_VISIBLE_DEVICES", "").strip()
    return [] if value in _NO_DEVICES else [part.strip() for part in value.split(",") if part.strip()]


def _working_dir(environ: Mapping[str, str], folder: str, output: str) -> str:
    """With code: within it. Else what the job names; the image's own WORKDIR; the job's output folder."""
    if environ.get("STOKER_CODE"):
        return _in_code(folder, environ.get("STOKER_WORKING_DIR", ""))
    here = os.getcwd()
    return environ.get("STOKER_WORKING_DIR") or (here if here != "/" else output)


def _in_code(folder: str, path: str) -> str:
    return os.path.normpath(folder + "/" + CODE_FOLDER + "/" + path)


def _home(environ: Mapping[str, str]) -> str:
    """A home that can be written: caches of compilers and downloads go there."""
    for home in (environ.get("HOME", ""), "/tmp"):
        if home not in ("", "/") and os.path.isdir(home) and os.access(home, os.W_OK | os.X_OK):
            return home
    return environ.get("STOKER_RUN_DIR") or RUN_DIR


def _usable(path: str, read: bool) -> bool:
    """Whether files can be written there, the folder made if need be; or at least be read, where that will do."""
    if read and os.path.isdir(path) and os.access(path, os.R_OK | os.X_OK):
        return True
    while path not in ("", "/") and not os.path.lexists(path):
        path = os.path.dirname(path)
    return os.path.isdir(path) and os.access(path, os.W_OK | os.X_OK)


def _cpu_milli(environ: Mapping[str, str]) -> int:
    """The worker's share of the processors: what was asked for, else the container's limit, else all there are."""
    asked = _number(environ, "STOKER_CPU_MILLI", 0)
    return asked or _cgroup_cpu_milli() or 1000 * len(os.sched_getaffinity(0))


def _cgroup_cpu_milli() -> int:
    """0: no limit. Source: the kernel's cgroup-v2.rst (cpu.max) and sched-bwc.rst (v1)."""
    for paths in (("/sys/fs/cgroup/cpu.max",), _V1_QUOTA):
        fields = []
        for path in paths:
            try:
                with open(path, encoding="ascii") as file:
                    fields += file.read().split()
            except OSError:
                break
        if len(fields) == 2 and fields[0].isdigit() and fields[1].isdigit() and int(fields[1]):
            return 1000 * int(fields[0]) // int(fields[1])
    return 0


_V1_QUOTA = ("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "/sys/fs/cgroup/cpu/cpu.cfs_period_us")


def _make_job_folders(env: Mapping[str, str]) -> str:
    """Make the folders that outlive the worker; what is wrong with them, or ''."""
    for name in ("STOKER_CHECKPOINT_DIR", "STOKER_OUTPUT_DIR"):
        path = env[name]
        why = ""
        try:
            os.makedirs(path, exist_ok=True)
            if not os.access(path, os.W_OK | os.X_OK):
                why = "it may not be written"
        except OSError as error:
            why = error.strerror or str(error)
        if why:
            return "can't use %s (%s): %s. %s" % (path, name, why, _whose(path))
    return ""


def _whose(path: str) -> str:
    """Who owns what is there of `path`, who we are, and what an administrator can set."""
    while path not in ("", "/") and not os.path.lexists(path):
        path = os.path.dirname(path)
    us = "this worker runs as user %d, group %d" % (os.getuid(), os.getgid())
    try:
        stat = os.stat(path)
    except OSError:
        return us.capitalize()
    owner, group = stat.st_uid, stat.st_gid
    fixes = []
    if owner:
        fixes.append("runAsUser: %d" % owner)
    if group and stat.st_mode & 0o030 == 0o030:
        fixes.append("fsGroup: %d" % group)
    if not fixes:
        fixes.append("fsGroup (volumes that heed it are given to that group), or change the folder's owner")
    return "%s belongs to user %d, group %d, mode %04o; %s. In the security of the job's TrainingRuntime set %s%s" % (
        path,
        owner,
        group,
        stat.st_mode & 0o7777,
        us,
        " or ".join(fixes),
        "" if any(fix.startswith("fsGroup") for fix in fixes) else "; or fsGroup, for volumes that heed it",
    )


def _number(environ: Mapping[str, str], name: str, default: int) -> int:
    try:
        return int(environ.get(name) or default)
    except ValueError:
        return default
