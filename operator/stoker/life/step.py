"""What goes into a lifecycle step (settings, facts) and what comes out (`Step`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from stoker.spec.data import FETCH_S
from stoker.spec.gpu_health import Move
from stoker.spec.job import Placed, TrainingJobStatus
from stoker.spec.pod import Pod
from stoker.spec.reasons import Code, Reason
from stoker.spec.worker_size import WorkerResources

from .gpu_moves import MOVES


@dataclass(frozen=True)
class Settings:
    """The operator's times. Units: seconds."""

    start_timeout_s: float = 300.0
    """A gang that is not fully running by then is withdrawn as a whole."""
    blame_s: float = 300.0
    """How long a job avoids a node that lost, refused or did not start one of its workers; 0: never."""
    notice_after_s: float = 2.0
    """A gang that starts sooner gets no status write about what it waits for."""
    unschedulable_s: float = 10.0
    """A gang is withdrawn when the cluster's scheduler has refused one of its pods for so long."""
    image_timeout_s: float = 120.0
    """A gang is withdrawn when an image could not be pulled for so long (the kubelet retries meanwhile)."""
    image_final_s: float = 20.0
    """The same when the registry says that the image does not exist or may not be pulled: the kubelet's second try, ten
    seconds after the first, confirms it."""
    pull_timeout_s: float = 1800.0
    """While images are being pulled, this stands for `start_timeout_s`."""
    fetch_timeout_s: float = FETCH_S + 120
    """The same while data is being fetched; what fetches gives up before."""
    node_lost_s: float = 60.0
    """A node whose kubelet has not reported for so long is given up, and its workers with it."""
    lost_margin_s: float = 10.0
    """A deleted pod on a lost node counts as ended this long after its grace."""
    ttl_s: float | None = None
    """How long ended jobs are kept where neither they nor their queues say it; None: until they are deleted."""
    usage_half_life_s: float | None = 86400.0
    """Of what queues held, which counts in the order between them; None: it does not count."""
    moves: Mapping[str, Move] = field(default_factory=lambda: MOVES)
    """Cause of a sick GPU → what becomes of the attempt that has it."""


@dataclass(frozen=True)
class Facts:
    """What a step depends on besides the job and its pods."""

    lost: Mapping[str, datetime] = field(default_factory=dict)
    """Node → since when its kubelet has not reported. A node that is gone: since the beginning of time."""
    ephemeral: bool = False
    """It has no volume for checkpoints: they are deleted with its pods."""
    keeps_data: bool = True
    """What it names by url is fetched into a cache, not by each of its workers for itself."""
    refused: str = ""
    """The store's reason for refusing a pod of the current attempt."""
    name_taken: str = ""
    """Which object outside Stoker has a name that the attempt needs, and what to do about it."""
    failed_mounts: Mapping[str, str] = field(default_factory=dict)
    """Pod (uid) → what its kubelet says of a volume that it can't mount."""
    queue_ttl_s: float | None = None
    """How long its queue keeps ended jobs; None: unset, or no such queue. Units: seconds."""
    preempted_for: str = ""
    """Why the current attempt is to make room, for people: a claim names it."""
    preempted_as: Code = Code.PREEMPTED
    """The same as a code."""
    moved_for: str = ""
    """Why the current attempt is to go on elsewhere, for people: a GPU that it has is sick, or holds it back."""
    avoids: str = ""
    """The node that it then keeps away from for a while: one that others may use."""
    keeps: tuple[Placed, ...] = ()
    """Where it goes on with fewer workers, if it is elastic and that makes enough room."""
    resources: WorkerResources | None = None
    """What its workers would get now, if it waits and that is not in its status; None: it can't be known yet."""
    barred_by: Reason | None = None
    """Why it may not run as it stands: the first of `admission.admission_blockers`."""


NO_FACTS = Facts()


@dataclass(frozen=True)
class Note:
    """An Event to record."""

    reason: str
    message: str
    warning: bool = False


@dataclass(frozen=True)
class Step:
    """What to do next.

    Invariant: with `status` set, the pod fields are empty.
    """

    status: TrainingJobStatus | None = None
    note: Note | None = None
    before: Note | None = None
    """Recorded before `note`."""
    create: tuple[int, ...] = ()
    """Workers whose pods of the current attempt are missing."""
    stop: tuple[Pod, ...] = ()
    """Pods to delete with the job's grace; their processes save and end."""
    release: tuple[Pod, ...] = ()
    """Ended pods whose outcome is in the status: take our finalizer off."""
    discard: tuple[Pod, ...] = ()
    """Ended, released pods of former attempts: delete."""
    expire: bool = False
    """Its time to live is over: delete the job."""
    wake_at: datetime | None = None
    """Ask again then, even if nothing changes."""
