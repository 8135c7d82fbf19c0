"""From a job's attempt to its pods. Pure; what the environment means stands in `docs/worker-contract.md`."""

from __future__ import annotations

import json
import math
from pathlib import PurePosixPath

from stoker.spec.data import FETCH_VARIABLE, fetch_order
from stoker.spec.job import JOBS, TrainingJob
from stoker.spec.job_parts import Weights
from stoker.spec.meta import ObjectMeta, OwnerReference
from stoker.spec.names import (
    FINALIZER_OUTCOME,
    LABEL_ATTEMPT,
    LABEL_JOB,
    LABEL_JOB_UID,
    LABEL_QUEUE,
    LABEL_WORKER,
    SECRET_ENV,
)
from stoker.spec.pod import Container, EnvSource, EnvVar, Pod, PodSpec, Resources, SecretKeyRef
from stoker.spec.project_secrets import object_name
from stoker.spec.quantity import memory_bytes, parse_duration
from stoker.spec.recipes import resolve
from stoker.spec.stall import stall_s, trainer_stall_s
from stoker.spec.worker import LaunchMode

SOURCE_GONE = "gone"
"""In place of the uid of a source job that is not there any more; a job with a checkpoint of its own needs none."""
RECIPE_COMMAND = ("python", "-m", "stoker_trainer")


class CannotRender(Exception):
    """The attempt can't be made into pods now; the text says why, for people."""


def pod_name(job: TrainingJob, worker: int) -> str:
    """Deterministic, so that creating it twice is one pod (docs/architecture.md, Write order)."""
    return f"{job.metadata.name}-{job.status.attempt}-{worker}"


def render_pod(job: TrainingJob, worker: int, source: TrainingJob | None = None) -> Pod:
    """The pod of one worker of the job's current attempt, pinned to its place. `source`: the job it begins with."""
    spec = job.spec
    env = worker_env(job, worker, f"../{source.uid if source is not None else SOURCE_GONE}")
    env |= {one.variable: str(PurePosixPath(one.path, one.sub_path)) for one in spec.data if one.path is not None}
    if fetch := fetch_order(spec.data, "", job.metadata.namespace):
        env[FETCH_VARIABLE] = fetch  # the node agent's: the cache, and what it is called there
    return Pod(
        metadata=pod_metadata(job, worker),
        spec=PodSpec(
            node_name=node_of(job, worker),
            termination_grace_period_seconds=grace_s(job),
            containers=(
                Container(
                    command=spec.trainer.command or RECIPE_COMMAND,
                    working_dir=spec.trainer.working_dir,
                    env=(*(EnvVar(name=name, value=value) for name, value in env.items()), *secret_env(job)),
                    resources=_resources(job),
                ),
            ),
        ),
    )


def pod_metadata(job: TrainingJob, worker: int) -> ObjectMeta:
    """The pod's identity: labels, our finalizer, the owner."""
    return ObjectMeta(
        name=pod_name(job, worker),
        namespace=job.metadata.namespace,
        labels={
            LABEL_JOB: job.metadata.name,
            LABEL_JOB_UID: job.uid,
            LABEL_ATTEMPT: str(job.status.attempt),
            LABEL_WORKER: str(worker),
            LABEL_QUEUE: job.spec.queue,
        },
        finalizers=(FINALIZER_OUTCOME,),
        owner_references=(owned_by(job),),
    )


def owned_by(job: TrainingJob) -> OwnerReference:
    return OwnerReference(
        api_version=JOBS.api_version, kind=JOBS.kind, name=job.metadata.name, uid=job.uid, controller=True
    )


def node_of(job: TrainingJob, worker: int) -> str:
    """Where a worker of the current attempt goes."""
    return next(placed.node for placed in job.status.placement if placed.worker == worker)


def grace_s(job: TrainingJob) -> int:
    """Units: whole seconds, as pods count them."""
    return math.ceil(job.spec.checkpoint.grace_s)


def worker_env(job: TrainingJob, worker: int, source: str) -> dict[str, str]:
    """What every worker's environment says, wherever it runs; the job's own variables among it.

    `source`: the folder of the job that this one begins with, if it names one; on one machine relative to the job's.
    """
    spec = job.spec
    recipe = spec.trainer.recipe is not None
    env = dict(spec.env) | {
        "STOKER_JOB": job.metadata.name,
        "STOKER_JOB_UID": job.uid,
        "STOKER_PROJECT": job.metadata.namespace,
        "STOKER_ATTEMPT": str(job.status.attempt),
        "STOKER_WORKER": str(worker),
        "STOKER_WORKERS": str(job.workers),
        "STOKER_LAUNCH_MODE": (LaunchMode.PER_GPU if recipe else LaunchMode.ONCE).value,
        "STOKER_RANKS": str(max(1, spec.gpus_per_worker) if recipe else 1),
        "STOKER_GRACE_SECONDS": str(grace_s(job)),
    }
    if spec.secret_env:
        env[SECRET_ENV] = ",".join(spec.secret_env)
    if spec.trainer.code is not None:
        env["STOKER_CODE"] = spec.trainer.code
    if spec.trainer.python_path:
        env["STOKER_PYTHON_PATH"] = ":".join(spec.trainer.python_path)
    if spec.trainer.requirements is not None:
        env["STOKER_REQUIREMENTS"] = spec.trainer.requirements
    if spec.on_failure.hold is not None:
        env["STOKER_HOLD_SECONDS"] = str(math.ceil(parse_duration(spec.on_failure.hold)))
    limit_s = stall_s(spec)
    if limit_s is not None:
        env["STOKER_STALL_AFTER_SECONDS"] = f"{limit_s:g}"
    if spec.stop.target is not None and not recipe:
        target = spec.stop.target
        env["STOKER_STOP_TARGET"] = json.dumps(
            {"metric": target.metric, "value": target.value, "mode": target.best.value}
        )
    own_s = trainer_stall_s(spec) if recipe else None
    if own_s is not None:
        env["STOKER_STALL_SECONDS"] = f"{own_s:g}"
    if spec.gpu.models:
        env["STOKER_GPU_MODELS"] = ",".join(spec.gpu.models)
    if spec.gpu.min_memory is not None:
        env["STOKER_GPU_MIN_MEMORY"] = str(memory_bytes(spec.gpu.min_memory))
    if spec.gpu.min_compute_capability is not None:
        env["STOKER_GPU_MIN_CAPABILITY"] = spec.gpu.min_compute_capability
    if spec.gpu.max_power is not None:
        env["STOKER_GPU_MAX_POWER"] = str(spec.gpu.max_power)
    if job.status.burn_in is not None:
        env["STOKER_GPU_TESTED"] = job.status.burn_in.gpu
    env |= _source_env(job, source)
    if spec.trainer.recipe is not None:
        env["STOKER_TRAINER_CONFIG"] = _trainer_config(job, spec.trainer.recipe)
    return env


def secret_env(job: TrainingJob) -> tuple[EnvVar, ...]:
    """Where the values of the job's secrets come from; Stoker never knows the values themselves."""
    return tuple(
        EnvVar(
            name=name,
            value_from=EnvSource(secret_key_ref=SecretKeyRef(name=object_name(ref.secret), key=ref.key)),
        )
        for name, ref in job.spec.secret_env.items()
    )


def _source_env(job: TrainingJob, folder: str) -> dict[str, str]:
    env, begin, saved = {}, job.spec.trainer.init_from, job.spec.checkpoint.source
    if begin is not None:
        name = "best.pt" if begin.weights is Weights.BEST else "weights.pt"
        env["STOKER_INIT_FROM"] = begin.path or f"{folder}/output/{name}"
        if begin.partly:
            env["STOKER_INIT_PARTLY"] = "1"
    if saved is not None:
        env["STOKER_CHECKPOINT_FROM"] = f"{folder}/checkpoints"
        if saved.step is not None:
            env["STOKER_CHECKPOINT_FROM_STEP"] = str(saved.step)
    return env


def _trainer_config(job: TrainingJob, recipe: str) -> str:
    spec = job.spec
    target, patience = spec.stop.target, spec.stop.patience
    return json.dumps(
        {
            "recipe": recipe,
            "config": resolve(recipe, spec.trainer.config),
            "precision": spec.precision.value,
            "stop": {
                "maxSteps": spec.stop.max_steps,
                "target": target.model_dump(mode="json") if target else None,
                "patience": patience.model_dump(mode="json") if patience else None,
            },
            "checkpoint": {
                "everySeconds": parse_duration(spec.checkpoint.every),
                "keep": spec.checkpoint.keep,
            },
        }
    )


def _resources(job: TrainingJob) -> Resources:
    spec = job.spec
    gpus = {spec.gpu.resource: str(spec.gpus_per_worker)} if spec.gpus_per_worker else {}
    return Resources(requests={"cpu": job.cpu, "memory": job.memory, **gpus}, limits=gpus)
