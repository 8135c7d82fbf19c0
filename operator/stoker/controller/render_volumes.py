"""A worker's volumes and where they are mounted. Pure; called by `render_kube` only."""

from __future__ import annotations

from dataclasses import dataclass

from stoker.spec.data import FETCH_BYTES, DataVolume, fetch_order
from stoker.spec.job import TrainingJob
from stoker.spec.kube_pod import (
    ClaimResources,
    ClaimSource,
    ClaimSpec,
    EmptyDir,
    HostFolder,
    PersistentVolumeClaim,
    Projected,
    Projection,
    TokenProjection,
    Volume,
    VolumeMount,
)
from stoker.spec.meta import ObjectMeta
from stoker.spec.names import LABEL_JOB, LABEL_JOB_UID
from stoker.spec.runtime import OfferedData, TrainingRuntimeSpec, own_claim
from stoker.spec.runtime import checkpoint_claim as checkpoint_claim_name

from .render import CannotRender, owned_by

STOKER_DIR = "/stoker"
CHECKPOINTS_DIR = "/checkpoints"
SOURCE_DIR = f"{STOKER_DIR}/source"
"""The folder of the job that this one begins with."""
ENVIRONMENTS_DIR = f"{STOKER_DIR}/environments"
"""What was installed for jobs of the project, of the runtime's cache."""
FETCH_DIR = "/fetched"
_FETCHED = "data"
"""The folder of a project's part of the volume in which its data is."""
_INSTALLED = "environments"
_NODES_FREE_SHARE = 0.2
"""Of a node's disk, that fetched data leaves free: below 15 % its kubelet begins to evict pods."""
TOKEN_DIR = "/var/run/secrets/stoker.dev"
AUDIENCE = "stoker"

# Ours are prefixed, so that a runtime's or a job's own names can't meet them.
_SUPERVISOR, _SHM, _TMP, _TOKEN, _CHECKPOINTS, _SOURCE, _DATA, _CACHE = (
    "stoker-supervisor",
    "stoker-shm",
    "stoker-tmp",
    "stoker-token",
    "stoker-checkpoints",
    "stoker-source",
    "stoker-data",
    "stoker-cache",
)


@dataclass(frozen=True)
class Source:
    """Where another job's checkpoints and output are."""

    claim: str
    uid: str


def volumes(
    job: TrainingJob, runtime: TrainingRuntimeSpec, token_expiry_s: int, source: Source | None
) -> tuple[Volume, ...]:
    token = TokenProjection(audience=AUDIENCE, expiration_seconds=token_expiry_s, path="token")
    return (
        Volume(name=_SUPERVISOR, empty_dir=EmptyDir()),
        Volume(name=_SHM, empty_dir=EmptyDir(medium="Memory", size_limit=shared_memory(job, runtime))),
        Volume(name=_TMP, empty_dir=EmptyDir()),
        Volume(name=_TOKEN, projected=Projected(sources=(Projection(service_account_token=token),))),
        _checkpoints(job, runtime),
        *(
            (Volume(name=_SOURCE, persistent_volume_claim=ClaimSource(claim_name=source.claim)),)
            if source is not None and source.claim != claim_of(job, runtime)
            else ()
        ),
        *(
            _data_volume(f"data-{number}", volume, runtime)
            for number, volume in enumerate(job.spec.data)
            if volume.url is None
        ),
        *(_fetched_volumes(job, runtime) if fetches(job) else ()),
        *(_environments_volume(job, runtime)),
        *(
            Volume.model_validate({**extra.source, "name": f"runtime-{number}"})
            for number, extra in enumerate(runtime.volumes)
        ),
    )


def mounts(job: TrainingJob, runtime: TrainingRuntimeSpec, source: Source | None) -> tuple[VolumeMount, ...]:
    """Where the worker sees them."""
    shared = source is not None and source.claim == claim_of(job, runtime)  # a pod has a claim once
    return (
        VolumeMount(name=_SUPERVISOR, mount_path=STOKER_DIR),
        VolumeMount(name=_SHM, mount_path="/dev/shm"),
        VolumeMount(name=_TMP, mount_path="/tmp"),
        VolumeMount(name=_TOKEN, mount_path=TOKEN_DIR, read_only=True),
        VolumeMount(name=_CHECKPOINTS, mount_path=CHECKPOINTS_DIR),
        *(
            (
                VolumeMount(
                    name=_CHECKPOINTS if shared else _SOURCE,
                    mount_path=SOURCE_DIR,
                    sub_path=source.uid,
                    read_only=True,
                ),
            )
            if source is not None
            else ()
        ),
        *(_data_mount(f"data-{number}", volume, runtime, job) for number, volume in enumerate(job.spec.data)),
        *(_environments_mount(job, runtime)),
        *(
            VolumeMount(
                name=f"runtime-{number}",
                mount_path=extra.mount_path,
                sub_path=extra.sub_path or None,
                read_only=extra.read_only or None,
            )
            for number, extra in enumerate(runtime.volumes)
        ),
    )


def _data_volume(name: str, volume: DataVolume, runtime: TrainingRuntimeSpec) -> Volume:
    if volume.claim is not None:
        source = ClaimSource(claim_name=volume.claim, read_only=volume.read_only or None)
        return Volume(name=name, persistent_volume_claim=source)
    return Volume.model_validate({**_offered(volume, runtime).source, "name": name})


def fetches(job: TrainingJob) -> bool:
    """Some of its data has to be fetched before a worker starts."""
    return any(volume.url is not None for volume in job.spec.data)


def fetch_order_of(job: TrainingJob, runtime: TrainingRuntimeSpec) -> str:
    """What is to be fetched, as the container that does it is given it."""
    if runtime.cache is None:
        return fetch_order(job.spec.data, FETCH_DIR, _FETCHED)
    free_share = 0.0 if runtime.cache.host_path is None else _NODES_FREE_SHARE
    return fetch_order(job.spec.data, FETCH_DIR, _FETCHED, runtime.cache.limit_bytes, free_share)


def fetch_mounts(job: TrainingJob, runtime: TrainingRuntimeSpec) -> tuple[VolumeMount, ...]:
    """Of the container that fetches: of a cache only what is the project's."""
    name = _CACHE if _on_node(runtime) else _DATA
    return (
        VolumeMount(name=name, mount_path=FETCH_DIR, sub_path=job.metadata.namespace),
        VolumeMount(name=_TMP, mount_path="/tmp"),
    )


def supervisor_mounts(job: TrainingJob, runtime: TrainingRuntimeSpec) -> tuple[VolumeMount, ...]:
    """Of the container that brings the supervisor. In a node's cache the project's folder may not be there yet: it is
    mounted here to be made, for the kubelet makes what a subPath names, but no volume."""
    own = VolumeMount(name=_SUPERVISOR, mount_path=STOKER_DIR)
    made = VolumeMount(name=_CACHE, mount_path=FETCH_DIR, sub_path=job.metadata.namespace, read_only=True)
    return (own, made) if _installs(job, runtime) and _on_node(runtime) else (own,)


def _fetched_volumes(job: TrainingJob, runtime: TrainingRuntimeSpec) -> tuple[Volume, ...]:
    """Where data is fetched to, and in a cache what a job lists is installed.

    A folder of the node's is there twice. What fetches has the project's folder in it by a subPath, which the kubelet
    makes in the mode of the whole. Workers see below a volume that is the project's folder, so that no link in it, by
    whichever hand, leads them to another project's: the kubelet follows none out of a volume.
    """
    cache = runtime.cache
    if cache is None:
        return (Volume(name=_DATA, empty_dir=EmptyDir(size_limit=str(FETCH_BYTES))),)
    if cache.host_path is None:
        return (Volume(name=_DATA, persistent_volume_claim=ClaimSource(claim_name=cache.claim or "")),)
    return (
        Volume(name=_CACHE, host_path=HostFolder(path=cache.host_path, type="Directory")),
        Volume(name=_DATA, host_path=HostFolder(path=f"{cache.host_path}/{job.metadata.namespace}")),
    )


def _environments_volume(job: TrainingJob, runtime: TrainingRuntimeSpec) -> tuple[Volume, ...]:
    """Where what the job lists is installed, unless it fetches data too: then it is there already."""
    return _fetched_volumes(job, runtime) if _installs(job, runtime) and not fetches(job) else ()


def _environments_mount(job: TrainingJob, runtime: TrainingRuntimeSpec) -> tuple[VolumeMount, ...]:
    """Writable; below the same volume as data that was fetched."""
    below = _INSTALLED if _on_node(runtime) else f"{job.metadata.namespace}/{_INSTALLED}"
    mount = VolumeMount(name=_DATA, mount_path=ENVIRONMENTS_DIR, sub_path=below)
    return (mount,) if _installs(job, runtime) else ()


def _installs(job: TrainingJob, runtime: TrainingRuntimeSpec) -> bool:
    """Into the runtime's cache."""
    return job.spec.trainer.requirements is not None and runtime.cache is not None


def _on_node(runtime: TrainingRuntimeSpec) -> bool:
    return runtime.cache is not None and runtime.cache.host_path is not None


def _data_mount(name: str, volume: DataVolume, runtime: TrainingRuntimeSpec, job: TrainingJob) -> VolumeMount:
    if volume.url is not None:
        below = f"{_FETCHED}/{volume.cache_name}"
        if not _on_node(runtime):
            below = f"{job.metadata.namespace}/{below}"
        return VolumeMount(name=_DATA, mount_path=volume.place, sub_path=below, read_only=True)
    below, read_only = volume.sub_path, volume.read_only
    if volume.claim is None:
        offered = _offered(volume, runtime)
        below = "/".join(part for part in (offered.sub_path, below) if part)
        read_only = read_only or offered.read_only
    return VolumeMount(name=name, mount_path=volume.place, sub_path=below or None, read_only=read_only or None)


def _offered(volume: DataVolume, runtime: TrainingRuntimeSpec) -> OfferedData:
    """Raises: CannotRender. (A job that names what is not there is admitted nowhere; it may be taken away later.)"""
    for offered in runtime.data:
        if offered.name == volume.path:
            return offered
    raise CannotRender(f"data {volume.name}: the job's runtime offers no data '{volume.path}'")


def shared_memory(job: TrainingJob, runtime: TrainingRuntimeSpec) -> str:
    """The size of /dev/shm; what is in it counts as the worker's memory."""
    if job.status.resources is not None:
        return job.status.resources.shared_memory
    return job.spec.shared_memory or runtime.shared_memory or str(job.memory_bytes // 2)


def checkpoint_root(job: TrainingJob) -> str:
    """The job's own folder: several jobs may share one claim, and a new job of the same name is another."""
    return f"{CHECKPOINTS_DIR}/{job.uid}"


def is_ephemeral(job: TrainingJob, runtime: TrainingRuntimeSpec) -> bool:
    """No place for checkpoints is set, so they are deleted with the pod."""
    return claim_of(job, runtime) is None


def checkpoint_claim(job: TrainingJob, runtime: TrainingRuntimeSpec) -> PersistentVolumeClaim | None:
    """The job's own claim, deleted with it, where the runtime has a template and the job names no claim."""
    if job.spec.checkpoint.claim is not None or runtime.checkpoints is None or runtime.checkpoints.template is None:
        return None
    template = runtime.checkpoints.template
    return PersistentVolumeClaim(
        metadata=ObjectMeta(
            name=own_claim(job.metadata.name),
            namespace=job.metadata.namespace,
            labels={LABEL_JOB: job.metadata.name, LABEL_JOB_UID: job.uid},
            owner_references=(owned_by(job),),
        ),
        spec=ClaimSpec(
            access_modes=(template.access_mode.value,),
            resources=ClaimResources(requests={"storage": template.size}),
            storage_class_name=template.storage_class,
        ),
    )


def claim_of(job: TrainingJob, runtime: TrainingRuntimeSpec) -> str | None:
    """The claim that keeps the job's checkpoints and output; None: they die with its pods."""
    return checkpoint_claim_name(job.metadata.name, job.spec.checkpoint.claim, runtime)


def _checkpoints(job: TrainingJob, runtime: TrainingRuntimeSpec) -> Volume:
    claim = claim_of(job, runtime)
    if claim is None:
        return Volume(name=_CHECKPOINTS, empty_dir=EmptyDir())
    return Volume(name=_CHECKPOINTS, persistent_volume_claim=ClaimSource(claim_name=claim))
