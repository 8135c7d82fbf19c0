"""The pod that reads a job's files where no worker runs any more: our image, nothing to write to, no GPU. Pure.

Meets the *restricted* Pod Security Standard whatever the runtime widens. Its claim is mounted read-only; its process is
`stoker_worker.reader`. Called by `renderers.ClusterRenderer`.
"""

from __future__ import annotations

from stoker.spec.job import TrainingJob
from stoker.spec.kube_pod import (
    Affinity,
    ClaimSource,
    ContainerSecurity,
    EmptyDir,
    KubeContainer,
    KubePod,
    KubePodSpec,
    LocalRef,
    NodeAffinity,
    NodePreference,
    NodeRequirement,
    NodeTerm,
    PodSecurity,
    Projected,
    Projection,
    TokenProjection,
    Volume,
    VolumeMount,
)
from stoker.spec.meta import ObjectMeta
from stoker.spec.names import LABEL_FILES_OF
from stoker.spec.pod import EnvSource, EnvVar, FieldRef, Resources
from stoker.spec.runtime import TrainingRuntimeSpec
from stoker.spec.worker_pod import reader_name

from .render import owned_by
from .render_kube import ClusterSettings, tolerations
from .render_volumes import AUDIENCE, CHECKPOINTS_DIR, STOKER_DIR, TOKEN_DIR, checkpoint_root

COMMAND = ("python", "-I", "-m", "stoker_worker", "--reader")
_CLAIM, _RUN, _TOKEN = "stoker-checkpoints", "stoker-run", "stoker-token"


def render_reader(job: TrainingJob, claim: str, runtime: TrainingRuntimeSpec, settings: ClusterSettings) -> KubePod:
    """The pod; `claim` keeps the job's output."""
    token = TokenProjection(audience=AUDIENCE, expiration_seconds=settings.token_expiry_s, path="token")
    security = runtime.security
    # As the same user as the workers, so that it may read what they made; where files are open root is not needed.
    user = None if security.image_user or not security.run_as_user else security.run_as_user
    group = None if security.image_user else security.run_as_group or None
    return KubePod(
        metadata=ObjectMeta(
            name=reader_name(job.metadata.name),
            namespace=job.metadata.namespace,
            labels={LABEL_FILES_OF: job.metadata.name},
            owner_references=(owned_by(job),),
        ),
        spec=KubePodSpec(
            affinity=_near(job),
            termination_grace_period_seconds=5,
            containers=(
                KubeContainer(
                    name="files",
                    image=settings.control_image,
                    image_pull_policy=settings.pull_policy,
                    command=COMMAND,
                    env=_env(job, settings),
                    resources=Resources(
                        requests={"cpu": "10m", "memory": "64Mi"}, limits={"cpu": "1", "memory": "256Mi"}
                    ),
                    volume_mounts=(
                        VolumeMount(name=_RUN, mount_path=STOKER_DIR),
                        VolumeMount(name=_TOKEN, mount_path=TOKEN_DIR, read_only=True),
                        VolumeMount(name=_CLAIM, mount_path=CHECKPOINTS_DIR, read_only=True),
                    ),
                    security_context=ContainerSecurity(),
                ),
            ),
            volumes=(
                Volume(name=_RUN, empty_dir=EmptyDir(size_limit="16Mi")),
                Volume(name=_TOKEN, projected=Projected(sources=(Projection(service_account_token=token),))),
                Volume(name=_CLAIM, persistent_volume_claim=ClaimSource(claim_name=claim, read_only=True)),
            ),
            tolerations=tolerations(job, runtime, settings),
            node_selector=runtime.node_selector,
            service_account_name=runtime.service_account,
            image_pull_secrets=tuple(
                LocalRef(name=name) for name in dict.fromkeys((*settings.pull_secrets, *runtime.pull_secrets))
            ),
            security_context=PodSecurity(
                run_as_user=user,
                run_as_group=group,
                fs_group=security.fs_group or None,
                fs_group_change_policy="OnRootMismatch" if security.fs_group else None,
            ),
        ),
    )


def _near(job: TrainingJob) -> Affinity | None:
    """The node of worker 0's last attempt, where its claim may still be attached; a local volume has its own rule."""
    ends = [end for end in job.status.attempts if end.workers]
    if not ends:
        return None
    node = max(ends, key=lambda end: end.number).workers[0].node
    term = NodeTerm(match_fields=(NodeRequirement(key="metadata.name", values=(node,)),))
    return Affinity(
        node_affinity=NodeAffinity(
            preferred_during_scheduling_ignored_during_execution=(NodePreference(weight=100, preference=term),)
        )
    )


def _env(job: TrainingJob, settings: ClusterSettings) -> tuple[EnvVar, ...]:
    env = {
        "STOKER_PROJECT": job.metadata.namespace,
        "STOKER_JOB": job.metadata.name,
        "STOKER_JOB_UID": job.uid,
        "STOKER_OUTPUT_DIR": f"{checkpoint_root(job)}/output",
        "STOKER_API_URL": settings.api_url,
    }
    if settings.api_ca:
        env["STOKER_API_CA_PEM"] = settings.api_ca
    return (
        *(EnvVar(name=key, value=value) for key, value in env.items()),
        EnvVar(name="STOKER_POD_UID", value_from=EnvSource(field_ref=FieldRef(field_path="metadata.uid"))),
    )
