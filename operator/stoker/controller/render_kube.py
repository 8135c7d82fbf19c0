"""From a job's attempt and its TrainingRuntime to the pods of a real cluster, and what stands beside them. Pure.

Owns the layout of a worker's container (docs/kubernetes.md): `/stoker` with the supervisor, `/checkpoints`,
`/data/<name>`, `/dev/shm`, a token for reports. Meets the *restricted* Pod Security Standard unless the runtime
widens it. What the environment means stands in `docs/worker-contract.md`. Called by `renderers.ClusterRenderer`.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from itertools import chain

from stoker.spec.data import FETCH_ENV, FETCH_VARIABLE
from stoker.spec.job import TrainingJob
from stoker.spec.kube_pod import (
    Affinity,
    Capabilities,
    ContainerSecurity,
    KubeContainer,
    KubePod,
    KubePodSpec,
    KubeToleration,
    LocalRef,
    NodeAffinity,
    NodeRequirement,
    NodeTerm,
    NodeTerms,
    PodSecurity,
    SeccompProfile,
    Service,
    ServiceSpec,
)
from stoker.spec.meta import ObjectMeta
from stoker.spec.names import GPU_RESOURCE, LABEL_JOB, LABEL_JOB_UID
from stoker.spec.pod import DATA_CONTAINER, METRICS_PORT_NAME, ContainerPort, EnvSource, EnvVar, FieldRef, Resources
from stoker.spec.runtime import TrainingRuntimeSpec

from .node_taints import TAINT
from .render import (
    RECIPE_COMMAND,
    CannotRender,
    grace_s,
    node_of,
    owned_by,
    pod_metadata,
    pod_name,
    secret_env,
    worker_env,
)
from .render_volumes import (
    ENVIRONMENTS_DIR,
    SOURCE_DIR,
    STOKER_DIR,
    Source,
    checkpoint_root,
    fetch_mounts,
    fetch_order_of,
    fetches,
    mounts,
    supervisor_mounts,
    volumes,
)

START = ("/bin/sh", f"{STOKER_DIR}/start")
INSTALL = ("python", "-m", "stoker_worker.bundle", "install", STOKER_DIR)
"""Puts the supervisor (`worker.pyz`, `start`) where every worker finds it."""
FETCH = ("/opt/stoker/fetch/bin/python", "-m", "stoker.fetch")
"""The image has an environment of its own for it (Dockerfile)."""
MASTER_PORT = 29400
METRICS_PORT = 9464
"""Where the supervisor lets a trainer serve /metrics (`stoker_worker.pod`)."""
GRACE_MARGIN_S = 45
"""From the end of the job's grace until the kubelet kills: time to kill, write the exit record, ship the log (30 s)."""
LARGEST_TEXT = 5 << 18
"""Bytes of a pod's commands and variables: of a pod as large as etcd takes (1.5 MiB) no kubelet could report anything,
and it could not even be deleted. The api takes 1 MiB."""
_UNREACHABLE = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


@dataclass(frozen=True)
class ClusterSettings:
    """What the installation says, not the job and not the runtime."""

    control_image: str
    """Holds the supervisor."""
    trainer_image: str
    """For recipes, and commands without an image, where the runtime names none."""
    api_url: str = ""
    """Where workers report; empty: nowhere."""
    api_ca: str = ""
    """PEM certificates of the authorities that workers trust when they report; empty: their image's own."""
    pull_secrets: tuple[str, ...] = ()
    """For the control-plane image, beside the runtime's own: Secrets of these names in each project."""
    pull_policy: str = "IfNotPresent"
    """Of the control-plane image."""
    node_lost_s: float = 60.0
    token_expiry_s: int = 3600


def render_pod(
    job: TrainingJob,
    worker: int,
    runtime: TrainingRuntimeSpec,
    settings: ClusterSettings,
    source: Source | None = None,
) -> KubePod:
    """The pod of one worker of the job's current attempt, pinned to its place. `source`: what it begins with.

    Raises: CannotRender.
    """
    spec = job.spec
    metadata = pod_metadata(job, worker)
    gang = spec.most_workers > 1
    recipe = spec.trainer.recipe is not None
    security = _container_security(runtime)
    pod = KubePod(
        metadata=metadata,
        spec=KubePodSpec(
            affinity=_pinned(node_of(job, worker)),
            termination_grace_period_seconds=grace_s(job) + GRACE_MARGIN_S,
            init_containers=(
                KubeContainer(
                    name="stoker-supervisor",
                    image=settings.control_image,
                    image_pull_policy=settings.pull_policy,
                    command=INSTALL,
                    resources=Resources(
                        requests={"cpu": "10m", "memory": "64Mi"}, limits={"cpu": "1", "memory": "128Mi"}
                    ),
                    volume_mounts=supervisor_mounts(job, runtime),
                    security_context=_container_security(TrainingRuntimeSpec()),
                ),
                *([_fetch_container(job, runtime, settings)] if fetches(job) else []),
            ),
            containers=(
                KubeContainer(
                    image=(None if recipe else spec.trainer.image) or runtime.image or settings.trainer_image,
                    image_pull_policy=runtime.image_pull_policy,
                    command=(*START, *(spec.trainer.command or RECIPE_COMMAND)),
                    env=_env(job, worker, runtime, settings),
                    resources=_resources(job, runtime),
                    ports=_ports(job, worker, runtime),
                    volume_mounts=mounts(job, runtime, source),
                    security_context=security,
                ),
            ),
            volumes=volumes(job, runtime, settings.token_expiry_s, source),
            tolerations=tolerations(job, runtime, settings),
            node_selector=runtime.node_selector,
            runtime_class_name=runtime.runtime_class,
            priority_class_name=runtime.priority_class,
            service_account_name=runtime.service_account,
            image_pull_secrets=tuple(
                LocalRef(name=name) for name in dict.fromkeys((*settings.pull_secrets, *runtime.pull_secrets))
            ),
            security_context=_pod_security(runtime),
            hostname=metadata.name if gang else None,
            subdomain=job.metadata.name if gang else None,
            host_network=runtime.host_network or None,
            dns_policy="ClusterFirstWithHostNet" if runtime.host_network else None,
        ),
    )
    size = sum(map(_text_bytes, (*pod.spec.init_containers, *pod.spec.containers)))
    if size > LARGEST_TEXT:
        raise CannotRender(
            f"its command and variables take {size} bytes in a pod, which may hold {LARGEST_TEXT}; "
            "put large values into files of the job's code or data"
        )
    return pod


def _text_bytes(container: KubeContainer) -> int:
    texts = chain(container.command, *((one.name, one.value or "") for one in container.env))
    return sum(len(text.encode()) for text in texts)


def _fetch_container(job: TrainingJob, runtime: TrainingRuntimeSpec, settings: ClusterSettings) -> KubeContainer:
    """Fetches the job's data as the job, with its network and those of its variables that say who it is."""
    env = {name: value for name, value in job.spec.env.items() if name in FETCH_ENV}
    env |= {
        FETCH_VARIABLE: fetch_order_of(job, runtime),
        "STOKER_TERMINATION_LOG": "/dev/termination-log",
        "HOME": "/tmp",
    }
    return KubeContainer(
        name=DATA_CONTAINER,
        image=settings.control_image,
        image_pull_policy=settings.pull_policy,
        command=FETCH,
        env=(
            *(EnvVar(name=name, value=value) for name, value in env.items()),
            *(one for one in secret_env(job) if one.name in FETCH_ENV),
        ),
        resources=Resources(requests={"cpu": "10m", "memory": "64Mi"}, limits={"cpu": "2", "memory": "1Gi"}),
        volume_mounts=fetch_mounts(job, runtime),
        security_context=_container_security(TrainingRuntimeSpec()),
    )


def render_service(job: TrainingJob) -> Service | None:
    """The names by which the workers of a gang find each other, also before they are ready."""
    if job.spec.most_workers == 1:
        return None
    return Service(
        metadata=ObjectMeta(
            name=job.metadata.name,
            namespace=job.metadata.namespace,
            labels={LABEL_JOB: job.metadata.name, LABEL_JOB_UID: job.uid},
            owner_references=(owned_by(job),),
        ),
        spec=ServiceSpec(selector={LABEL_JOB_UID: job.uid}),
    )


def _env(job: TrainingJob, worker: int, runtime: TrainingRuntimeSpec, settings: ClusterSettings) -> tuple[EnvVar, ...]:
    spec = job.spec
    root = checkpoint_root(job)
    name, project = job.metadata.name, job.metadata.namespace
    own = {key: value for key, value in runtime.env.items() if key not in spec.secret_env}
    env = own | worker_env(job, worker, SOURCE_DIR)
    env |= {
        "STOKER_GPUS": str(spec.gpus_per_worker),
        "STOKER_CPU_MILLI": str(job.cpu_milli),
        "STOKER_TERMINATION_GRACE_SECONDS": str(grace_s(job) + GRACE_MARGIN_S),
        "STOKER_CHECKPOINT_DIR": f"{root}/checkpoints",
        "STOKER_OUTPUT_DIR": f"{root}/output",
        "MASTER_ADDR": f"{pod_name(job, 0)}.{name}.{project}.svc" if job.workers > 1 else "127.0.0.1",
        "MASTER_PORT": str(_master_port(job, runtime)),
    }
    env |= {one.variable: one.place for one in spec.data}
    if held := [one.place for one in spec.data if one.url is not None and runtime.cache is not None]:
        env["STOKER_DATA_HOLD"] = ":".join(held)
    if spec.trainer.requirements is not None and runtime.cache is not None:
        env["STOKER_ENVIRONMENTS_DIR"] = ENVIRONMENTS_DIR
        env["STOKER_ENVIRONMENTS_BYTES"] = str(runtime.cache.limit_bytes)
    if "HOME" not in spec.secret_env:
        env.setdefault("HOME", "/tmp")
    if spec.trainer.working_dir is not None:
        env["STOKER_WORKING_DIR"] = spec.trainer.working_dir
    if settings.api_url:
        env["STOKER_API_URL"] = settings.api_url
        if settings.api_ca:
            env["STOKER_API_CA_PEM"] = settings.api_ca
    if not spec.gpus_per_worker:
        # Images that say `all` of themselves would see every GPU of a node whose default runtime is NVIDIA's.
        env["NVIDIA_VISIBLE_DEVICES"] = "void"
    fields = {
        "STOKER_POD_UID": "metadata.uid",
        "STOKER_POD_NAME": "metadata.name",
        "STOKER_NODE_NAME": "spec.nodeName",
    }
    if not runtime.host_network:  # there the trainer's /metrics stay on loopback: other jobs share the addresses
        fields["STOKER_POD_IP"] = "status.podIP"
    return (
        *(EnvVar(name=key, value=value) for key, value in env.items()),
        *(EnvVar(name=key, value_from=EnvSource(field_ref=FieldRef(field_path=at))) for key, at in fields.items()),
        *secret_env(job),
    )


def _ports(job: TrainingJob, worker: int, runtime: TrainingRuntimeSpec) -> tuple[ContainerPort, ...] | None:
    """Where a trainer's rank 0 serves /metrics. A user's own command need not serve any, so none is scraped.

    On the node's network a port named here would be the node's own, and one worker a node all that has room.
    """
    if worker or job.spec.trainer.recipe is None or runtime.host_network:
        return None
    return (ContainerPort(name=METRICS_PORT_NAME, container_port=METRICS_PORT),)


def _master_port(job: TrainingJob, runtime: TrainingRuntimeSpec) -> int:
    """A port of its own where jobs share the node's network; each worker derives the same."""
    if not runtime.host_network:
        return MASTER_PORT
    return MASTER_PORT + zlib.crc32(f"{job.uid}/{job.status.attempt}".encode()) % 2000


def _resources(job: TrainingJob, runtime: TrainingRuntimeSpec) -> Resources:
    """GPUs and other devices as limits (requests follow); memory as both: what is asked for is what there is."""
    spec = job.spec
    devices = {name: str(count) for name, count in runtime.other_devices.items()}
    if spec.gpus_per_worker:
        devices[spec.gpu.resource] = str(spec.gpus_per_worker)
    return Resources(
        requests={"cpu": job.cpu, "memory": job.memory, **devices}, limits={"memory": job.memory, **devices}
    )


def tolerations(
    job: TrainingJob, runtime: TrainingRuntimeSpec, settings: ClusterSettings
) -> tuple[KubeToleration, ...]:
    """What the runtime says, GPU nodes' own taint (a burn-in: ours, too), and lost nodes for as long as they may be."""
    given = tuple(
        KubeToleration(
            key=one.key or None,
            operator=one.operator,
            value=one.value or None,
            effect=one.effect or None,
            toleration_seconds=one.toleration_seconds,
        )
        for one in runtime.tolerations
    )
    taints = [GPU_RESOURCE] if job.spec.gpus_per_worker else []
    if job.status.burn_in is not None:
        taints.append(TAINT.key)
    gpus = tuple(KubeToleration(key=key) for key in taints)
    known = {one.key for one in given}
    lost = tuple(
        KubeToleration(key=key, effect="NoExecute", toleration_seconds=int(settings.node_lost_s))
        for key in _UNREACHABLE
        if key not in known
    )
    return given + gpus + lost


def _pinned(node: str) -> Affinity:
    """As the DaemonSet controller does it: one node, but the cluster's scheduler has the last word."""
    term = NodeTerm(match_fields=(NodeRequirement(key="metadata.name", values=(node,)),))
    return Affinity(
        node_affinity=NodeAffinity(
            required_during_scheduling_ignored_during_execution=NodeTerms(node_selector_terms=(term,))
        )
    )


def _pod_security(runtime: TrainingRuntimeSpec) -> PodSecurity:
    security = runtime.security
    return PodSecurity(
        run_as_user=None if security.image_user else security.run_as_user,
        run_as_group=None if security.image_user else security.run_as_group,
        fs_group=security.fs_group or None,
        fs_group_change_policy="OnRootMismatch" if security.fs_group else None,
        seccomp_profile=SeccompProfile(type=security.seccomp),
    )


def _container_security(runtime: TrainingRuntimeSpec) -> ContainerSecurity:
    security = runtime.security
    return ContainerSecurity(
        read_only_root_filesystem=security.read_only_root,
        capabilities=Capabilities(add=security.add_capabilities or None),
    )
