"""Names that cross a boundary: API group, labels, annotations, finalizers, environment variables, limits."""

from __future__ import annotations

import re

from .markers import Form

GROUP = "stoker.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"

DEFAULT_PROJECT = "default"
SYSTEM_PROJECT = "stoker-system"
"""On one machine: of jobs that the operator submits itself. On a cluster they are in its own namespace."""
DEFAULT_QUEUE = "default"
BURN_IN = "burn-in"
"""Who clears a GPU, or closes it, where a test did; and the queue of such tests, which there need not be."""

LABEL_JOB = f"{GROUP}/job"
LABEL_JOB_UID = f"{GROUP}/job-uid"
LABEL_ATTEMPT = f"{GROUP}/attempt"
LABEL_WORKER = f"{GROUP}/worker"
LABEL_QUEUE = f"{GROUP}/queue"
LABEL_FILES_OF = f"{GROUP}/files-of"
"""On the pod that reads a job's files after its end; the job's name."""

ANNOTATION_SUBMITTER = f"{GROUP}/submitter"
ANNOTATION_IDEMPOTENCY_KEY = f"{GROUP}/idempotency-key"
ANNOTATION_REQUEST_DIGEST = f"{GROUP}/request-digest"
ANNOTATION_IDLE_REPORTED = f"{GROUP}/idle-reported"
"""When the owner was last warned that the job's GPUs are idle."""
ANNOTATION_IDLE_SUSPENDED = f"{GROUP}/idle-suspended"
"""When Stoker suspended the job for that; removed by a resume."""

ANNOTATION_FILES_WANTED = f"{GROUP}/files-wanted"
"""When a job's files were last asked for while none of its workers ran."""

# Held on every worker pod until the operator has taken its exit record into the job's status (as batch/v1 Job
# does with batch.kubernetes.io/job-tracking), so that a deleted pod can't take its outcome with it.
FINALIZER_OUTCOME = f"{GROUP}/outcome"
# Held on a Queue from its first job on, until it is deleted and no job that has not ended uses it (as Kueue does).
FINALIZER_IN_USE = f"{GROUP}/resource-in-use"

# A project's secret `wandb` is the Secret `stoker-secret.wandb`, of this type: by that no job reaches another Secret.
SECRET_PREFIX = "stoker-secret."
SECRET_TYPE = f"{GROUP}/project-secret"
SECRET_VALUE = "value"
"""The key of a secret that has one value only."""
SECRET_ENV = "STOKER_SECRET_ENV"
"""In a worker: the names of the variables that hold secrets."""

# `<job>-<attempt>-<worker>` must fit a 63-character DNS label.
JOB_NAME_MAX = 50

# Variables that Stoker sets in a worker; a job's own `env` may not name them.
RESERVED_ENV_PREFIXES = ("STOKER_", "PET_")
# Ours too, but a job's own to set: knobs of the trainer (docs/trainer.md).
SETTABLE_ENV = frozenset({"STOKER_TENSORBOARD_DIR", "STOKER_TRACE_FILE", "STOKER_STALL_SECONDS"})
RESERVED_ENV = frozenset(
    {
        "CUDA_VISIBLE_DEVICES",
        "NVIDIA_VISIBLE_DEVICES",
        "MASTER_ADDR",
        "MASTER_PORT",
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "GROUP_RANK",
        "GROUP_WORLD_SIZE",
    }
)

_DNS_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_DNS_1123 = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
# Source: distribution/reference grammar, without its limits on each part.
_IMAGE = re.compile(r"[A-Za-z0-9][-A-Za-z0-9._:/]*(@[A-Za-z0-9+._-]+:[0-9a-fA-F]{32,})?")

JOB_NAME = Form(
    _DNS_1035,
    f"must be 1 to {JOB_NAME_MAX} characters: lower-case letters, digits and '-', starting with a letter "
    "and ending with a letter or digit (for example 'mnist-resnet-1')",
)
DNS_LABEL = Form(
    _DNS_1035,
    "must be 1 to 63 characters: lower-case letters, digits and '-', starting with a letter "
    "and ending with a letter or digit",
)
OBJECT_NAME = Form(
    _DNS_1123, "must be the name of a Kubernetes object: lower-case letters, digits, '-' and '.', at most 253"
)
IMAGE_NAME = Form(_IMAGE, "must be an image reference, for example 'registry.example/team/train:1.2' or '…@sha256:…'")
REQUIREMENTS = Form(
    re.compile(r"([A-Za-z0-9_-][A-Za-z0-9._-]*/)*(uv\.lock|[A-Za-z0-9_-][A-Za-z0-9._-]*\.txt)"),
    "must be the path of uv.lock or a .txt file in the code: letters, digits, '-', '_', '.', no part starting with '.'",
)
SECRET_KEY = Form(
    re.compile(r"[A-Za-z0-9_][-A-Za-z0-9_.]*"),
    "must be a key of a secret: letters, digits, '-', '_' and '.', not starting with '-' or '.'",
)
SECRET_KEY_MAX = 128
COMPUTE_CAPABILITY = Form(re.compile(r"[1-9][0-9]?(\.[0-9])?"), "is no compute capability; write for example '8.0'")
LABEL_KEY = Form(
    re.compile(r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"),
    "must be the key of a node label, like topology.kubernetes.io/zone",
)
GPU_RESOURCE = "nvidia.com/gpu"
"""What a device plug-in calls whole GPUs (and, unless it renames them, those that pods share in time)."""
MIG_PREFIX = "nvidia.com/mig-"
SHARED_RESOURCE = "nvidia.com/gpu.shared"
"""What one that renames them calls GPUs that pods share."""
GPU_RESOURCES = Form(
    re.compile(r"nvidia\.com/(gpu|gpu\.shared|mig-[0-9a-z]([-0-9a-z.]{0,30}[0-9a-z])?)"),
    "must be what a device plug-in calls GPUs: nvidia.com/gpu, nvidia.com/gpu.shared or a MIG profile like "
    "nvidia.com/mig-1g.10gb",
)
GPU_TYPE = Form(
    re.compile(r"[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?"),
    "must be a type of GPU, like h100: lower-case letters, digits, '-' and '.', at most 63",
)
RESERVED_TYPES = frozenset({"cpu", "gpus", "memory", "unknown"})
"""What else queues count, and a GPU of no type: no type is named so."""
TYPE_RESERVED = f"is no type of GPU: {', '.join(sorted(RESERVED_TYPES))} mean something else"
ENV_NAME = Form(
    re.compile(r"[A-Za-z_][A-Za-z0-9_]*"),
    "an environment variable's name is letters, digits and '_', not starting with a digit",
)
