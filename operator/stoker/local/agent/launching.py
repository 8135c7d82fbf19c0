"""From a pod and its lease to the worker's order (`Launch`). Pure. The names: `docs/worker-contract.md`."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from stoker.spec.data import FETCH_BYTES, FETCH_VARIABLE, variable_of
from stoker.spec.job_parts import SecretRef
from stoker.spec.names import GPU_RESOURCE, LABEL_JOB_UID
from stoker.spec.node import capability_number
from stoker.spec.pod import Container, Pod
from stoker.spec.project_secrets import project_name
from stoker.spec.quantity import cpu_milli, memory_bytes
from stoker.spec.worker import CODE_FOLDER, PROGRESS_FILE, Launch, LaunchMode, ReportTarget

from .leases import Gang, Wish, WorkerLease

# What workers always inherit of `stoker up`'s environment. Beyond what it is asked to pass on, all else, tokens above
# all, stays there.
INHERITED = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "TMPDIR", "LD_LIBRARY_PATH")


class BadPod(Exception):
    """The pod lacks what the controller writes into every worker pod."""


@dataclass(frozen=True, slots=True)
class Order:
    """What the pod says, parsed once."""

    pod_uid: str
    pod_name: str
    project: str
    job_name: str
    job_uid: str
    attempt: int
    worker: int
    workers: int
    mode: LaunchMode
    ranks: int
    argv: tuple[str, ...]
    working_dir: str | None
    env: Mapping[str, str]
    secrets: Mapping[str, SecretRef]
    """Variable → whence its value comes."""
    grace_s: float
    cpu_milli: int
    memory_bytes: int
    """0: it says none."""
    wish: Wish

    @property
    def gang(self) -> Gang:
        return (self.job_uid, self.attempt)


def parse_pod(pod: Pod) -> Order:
    """Raises: BadPod."""
    if not pod.spec.containers:
        raise BadPod("the pod has no container")
    container = pod.spec.containers[0]
    env = {variable.name: variable.value for variable in container.env if variable.value_from is None}
    try:
        order = Order(
            pod_uid=pod.uid,
            pod_name=pod.metadata.name,
            project=env.get("STOKER_PROJECT", pod.metadata.namespace),
            job_name=env["STOKER_JOB"],
            job_uid=env.get("STOKER_JOB_UID") or pod.metadata.labels[LABEL_JOB_UID],
            attempt=int(env["STOKER_ATTEMPT"]),
            worker=int(env["STOKER_WORKER"]),
            workers=int(env["STOKER_WORKERS"]),
            mode=LaunchMode(env["STOKER_LAUNCH_MODE"]),
            ranks=int(env["STOKER_RANKS"]),
            argv=container.command,
            working_dir=container.working_dir,
            env=env,
            secrets=_secrets(container),
            grace_s=float(env.get("STOKER_GRACE_SECONDS", pod.spec.termination_grace_period_seconds)),
            cpu_milli=cpu_milli(container.resources.requests.get("cpu", "1")),
            memory_bytes=memory_bytes(container.resources.requests.get("memory", "0")),
            wish=Wish(
                gpus=int(container.resources.limits.get(GPU_RESOURCE, "0")),
                models=tuple(model for model in env.get("STOKER_GPU_MODELS", "").split(",") if model),
                min_memory_bytes=int(env.get("STOKER_GPU_MIN_MEMORY", "0")),
                min_capability=capability_number(env.get("STOKER_GPU_MIN_CAPABILITY")),
                max_power_watts=int(env.get("STOKER_GPU_MAX_POWER", "0")),
                uuid=env.get("STOKER_GPU_TESTED", ""),
            ),
        )
    except (KeyError, ValueError) as error:
        raise BadPod(f"the pod is none of Stoker's: {error!r}") from None
    if not order.argv or order.ranks < 1:
        raise BadPod("the pod names no command or no process")
    if "/" in order.job_uid or "/" in order.pod_uid or not order.job_uid or not order.pod_uid:
        raise BadPod("the pod's uids are no names of folders")
    return order


def _secrets(container: Container) -> dict[str, SecretRef]:
    """Raises: ValueError."""
    found = {}
    for variable in container.env:
        source = variable.value_from.secret_key_ref if variable.value_from is not None else None
        if source is not None:
            name = project_name(source.name)
            if name is None:
                raise ValueError(f"{source.name} is no secret of a project")
            found[variable.name] = SecretRef(secret=name, key=source.key)
    return found


def compose_launch(
    order: Order,
    lease: WorkerLease,
    *,
    folder: Path,
    job_folder: Path,
    report: ReportTarget | None,
    log_bytes: int,
    host_env: Mapping[str, str],
    pass_env: Collection[str] = (),
    places: Mapping[str, str] = {},
    memory_group: str = "",
    environments: Path | None = None,
) -> Launch:
    """The order for the supervisor: complete: it needs no answer. `pass_env`: what of `host_env` goes with it, too.
    `environments`: where those of all projects are installed."""
    output = job_folder / "output"
    real = lease.gpu_uuids and not lease.simulated
    base = {name: host_env[name] for name in (*INHERITED, *pass_env) if name in host_env}
    # Not resolved: a virtual environment's python is a link, and its folder is what has the packages.
    own_bin = str(Path(sys.executable).parent)
    base["PATH"] = own_bin + os.pathsep + base.get("PATH", os.defpath)
    for name in ("CONDA_PREFIX", "VIRTUAL_ENV"):  # as if it were activated
        if order.env.get(name):
            base["PATH"] = f"{order.env[name]}/bin{os.pathsep}{base['PATH']}"
    base["PYTHONUNBUFFERED"] = "1"
    base["OMP_NUM_THREADS"] = str(max(1, order.cpu_milli // (1000 * order.ranks)))
    ours = {
        "STOKER_POD_UID": order.pod_uid,
        "STOKER_POD_NAME": order.pod_name,
        "STOKER_GPU_UUIDS": ",".join(lease.gpu_uuids),
        "STOKER_METRICS_PORT": str(lease.metrics_port),
        "STOKER_METRICS_HOST": "127.0.0.1",
        "STOKER_CHECKPOINT_DIR": str(job_folder / "checkpoints"),
        "STOKER_OUTPUT_DIR": str(output),
        "STOKER_PROGRESS_FILE": str(folder / PROGRESS_FILE),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(lease.master_port),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(lease.gpu_uuids) if real else "",
    }
    for name in ("STOKER_INIT_FROM", "STOKER_CHECKPOINT_FROM"):  # another job's, beside this one's
        if name in order.env:
            ours[name] = os.path.normpath(job_folder / order.env[name])
    if "STOKER_PYTHON_PATH" in order.env:
        within = [str(folder / CODE_FOLDER / path) for path in order.env["STOKER_PYTHON_PATH"].split(os.pathsep)]
        ours["PYTHONPATH"] = os.pathsep.join([*within, *filter(None, [order.env.get("PYTHONPATH")])])
    if "STOKER_REQUIREMENTS" in order.env and environments is not None:
        ours["STOKER_ENVIRONMENTS_DIR"] = str(environments / order.project)
        ours["STOKER_ENVIRONMENTS_BYTES"] = str(FETCH_BYTES)
    own = {name: value for name, value in order.env.items() if name != FETCH_VARIABLE}
    ours |= {variable_of(name): place for name, place in places.items()}
    if places:
        ours["STOKER_DATA_HOLD"] = os.pathsep.join(places.values())
    if not real:
        ours["NVIDIA_VISIBLE_DEVICES"] = "void"
    if lease.simulated:
        ours["STOKER_SIMULATED_GPUS"] = "1"
    return Launch(
        pod_uid=order.pod_uid,
        pod_name=order.pod_name,
        project=order.project,
        job_name=order.job_name,
        job_uid=order.job_uid,
        attempt=order.attempt,
        worker=order.worker,
        workers=order.workers,
        mode=order.mode,
        ranks=order.ranks,
        argv=order.argv,
        working_dir=_working_dir(order, folder, output),
        env={**base, **own, **ours},
        grace_s=order.grace_s,
        gpu_uuids=lease.gpu_uuids,
        simulated_gpus=lease.simulated,
        master_port=lease.master_port,
        metrics_port=lease.metrics_port,
        peer_ports=lease.peer_ports,
        log_bytes=log_bytes,
        memory_group=memory_group,
        report=report,
    )


def _working_dir(order: Order, folder: Path, output: Path) -> str:
    """With code: within the copy that the supervisor makes in the worker's folder."""
    if "STOKER_CODE" in order.env:
        return str(folder / CODE_FOLDER / (order.working_dir or ""))
    return order.working_dir or str(output)


def lease_of(launch: Launch) -> WorkerLease:
    """What a worker that was found again holds."""
    return WorkerLease(
        launch.gpu_uuids, launch.simulated_gpus, launch.master_port, launch.metrics_port or 0, launch.peer_ports
    )
