"""What a worker's pod looks like on a cluster, rule by rule; its volumes: test_render_volumes.py."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from stoker.controller.render import CannotRender
from stoker.controller.render_kube import render_service
from stoker.controller.render_reader import render_reader
from stoker.spec.job import GpuTest, TrainingJobStatus
from stoker.spec.runtime import TrainingRuntimeSpec

from .rendering import SETTINGS, env, job, pod, volume


def test_it_is_pinned_to_its_node_and_the_clusters_scheduler_has_the_last_word() -> None:
    spec = pod(job(2), 1)["spec"]
    assert not spec["nodeName"]
    assert spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] == {
        "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["gpu-1"]}]}]
    }


def test_a_gang_finds_its_first_worker_by_name_before_anyone_is_ready() -> None:
    spec = pod(job(2), 1)["spec"]
    assert (spec["hostname"], spec["subdomain"]) == ("net-3-1", "net")
    reported = env(pod(job(2), 1))
    assert (reported["MASTER_ADDR"], reported["MASTER_PORT"]) == ("net-3-0.net.team-a.svc", "29400")
    service = render_service(job(2))
    assert service is not None
    assert service.dump()["spec"] == {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": {"stoker.dev/job-uid": "u-1"},
    }
    assert service.metadata.owner_references[0].uid == "u-1"
    assert render_service(job(1)) is None
    elastic = job(2, elastic={"min": 1, "max": 4})
    alone = elastic.model_copy(
        update={"status": elastic.status.model_copy(update={"placement": elastic.status.placement[:1]})}
    )
    for subject, workers, master in ((elastic, "2", "net-3-0.net.team-a.svc"), (alone, "1", "127.0.0.1")):
        reported = env(pod(subject))
        assert (reported["STOKER_WORKERS"], reported["MASTER_ADDR"]) == (workers, master), "of this attempt"
        assert render_service(subject) == render_service(elastic) is not None, "it may have more in the next"
    assert env(pod(job(1)))["MASTER_ADDR"] == "127.0.0.1"
    assert "hostname" not in pod(job(1))["spec"]


def test_no_pod_is_made_so_large_that_it_could_not_be_deleted() -> None:
    """Its variables count, those of what fetches its data too, and its command; an é is two bytes."""
    some = {f"E{number}": "é" * 15_000 for number in range(43)}
    assert pod(job(env=some))
    for more in ({"env": some | {"HTTPS_PROXY": "x" * 20_000}}, {"trainer": {"command": ["x" * 30_000]}}):
        fetched = {"data": [{"name": "d", "url": "https://x.example/d"}]} if "env" in more else {}
        with pytest.raises(CannotRender, match=r"take 13\d\d\d\d\d bytes in a pod, which may hold 1310720; put large"):
            pod(job(**({"env": some} | more | fetched)))


def test_a_burn_in_may_go_where_the_taint_for_its_gpu_keeps_others_off() -> None:
    test = GpuTest(gpu="GPU-0", at=datetime(2026, 11, 24, tzinfo=UTC))
    plain = job(gpusPerWorker=1)
    tests = plain.model_copy(update={"status": plain.status.model_copy(update={"burn_in": test})})
    added = [one for one in pod(tests)["spec"]["tolerations"] if one not in pod(plain)["spec"]["tolerations"]]
    assert [one["key"] for one in added] == ["stoker.dev/sick-gpu"]
    assert env(pod(tests))["STOKER_GPU_TESTED"] == "GPU-0" and "STOKER_GPU_TESTED" not in env(pod(plain))


def test_the_supervisor_is_put_beside_any_image() -> None:
    spec = pod(job(trainer={"command": ["python", "train.py"], "image": "team/own:2"}))["spec"]
    (init,), (worker,) = spec["initContainers"], spec["containers"]
    assert init["image"] == "registry.example/stoker:1"
    assert init["volumeMounts"] == [{"name": "stoker-supervisor", "mountPath": "/stoker"}]
    assert worker["image"] == "team/own:2"
    assert worker["command"] == ["/bin/sh", "/stoker/start", "python", "train.py"]
    assert spec["restartPolicy"] == "Never"


@pytest.mark.parametrize(
    ("trainer", "runtime", "image"),
    [
        ({"command": ["x"]}, {}, "registry.example/stoker-trainer:1"),
        ({"command": ["x"]}, {"image": "base:1"}, "base:1"),
        ({"command": ["x"], "image": "own:1"}, {"image": "base:1"}, "own:1"),
        ({"recipe": "image-classification"}, {"image": "base:1"}, "base:1"),
    ],
)
def test_the_image_is_the_jobs_then_the_runtimes_then_the_installations(
    trainer: dict[str, Any], runtime: dict[str, Any], image: str
) -> None:
    assert pod(job(trainer=trainer), **runtime)["spec"]["containers"][0]["image"] == image


def test_a_secrets_value_comes_from_the_projects_own_secret() -> None:
    """By a prefix that no other Secret has; whatever the runtime says of the variable."""
    secrets = {"HF_TOKEN": {"secret": "hf"}, "WANDB_API_KEY": {"secret": "wandb", "key": "api.key"}}
    rendered = pod(job(secretEnv=secrets), env={"HF_TOKEN": "the runtime's", "OTHER": "x"})
    given = rendered["spec"]["containers"][0]["env"]
    assert [one for one in given if one["name"] in secrets] == [
        {"name": "HF_TOKEN", "value": "", "valueFrom": {"secretKeyRef": {"name": "stoker-secret.hf", "key": "value"}}},
        {
            "name": "WANDB_API_KEY",
            "value": "",
            "valueFrom": {"secretKeyRef": {"name": "stoker-secret.wandb", "key": "api.key"}},
        },
    ]
    plain = {one["name"]: one["value"] for one in given}
    assert (plain["STOKER_SECRET_ENV"], plain["OTHER"]) == ("HF_TOKEN,WANDB_API_KEY", "x")
    assert "secretKeyRef" not in str(rendered["spec"]["initContainers"])
    assert "STOKER_SECRET_ENV" not in env(pod(job()))


def test_a_worker_knows_who_it_is_and_where_to_report() -> None:
    reported = env(pod(job(gpusPerWorker=2, cpu="3", checkpoint={"grace": "30s"}, env={"LR": "1"})))
    for name, value in {
        "STOKER_JOB": "net",
        "STOKER_ATTEMPT": "3",
        "STOKER_GPUS": "2",
        "STOKER_CPU_MILLI": "3000",
        "STOKER_GRACE_SECONDS": "30",
        "STOKER_TERMINATION_GRACE_SECONDS": "75",
        "STOKER_POD_UID": "metadata.uid",
        "STOKER_POD_NAME": "metadata.name",
        "STOKER_NODE_NAME": "spec.nodeName",
        "STOKER_POD_IP": "status.podIP",
        "STOKER_API_URL": "http://stoker-api.stoker.svc",
        "STOKER_CHECKPOINT_DIR": "/checkpoints/u-1/checkpoints",
        "STOKER_OUTPUT_DIR": "/checkpoints/u-1/output",
        "HOME": "/tmp",
        "LR": "1",
    }.items():
        assert reported[name] == value, name
    assert "NVIDIA_VISIBLE_DEVICES" not in reported, "the device plugin sets it"
    assert env(pod(job()))["NVIDIA_VISIBLE_DEVICES"] == "void", "an image's own `all` must not show it any GPU"
    assert pod(job(checkpoint={"grace": "30s"}))["spec"]["terminationGracePeriodSeconds"] == 75


RECIPE = {"recipe": "image-classification"}


@pytest.mark.parametrize(
    ("trainer", "worker", "host_network", "port"),
    [
        (RECIPE, 0, False, True),
        (RECIPE, 1, False, False),
        (RECIPE, 0, True, False),
        ({"command": ["python", "train.py"]}, 0, False, False),
    ],
    ids=["rank 0 is there", "rank 0 is elsewhere", "the port would be the node's", "what it serves is unknown"],
)
def test_a_port_for_metrics_is_reported_where_a_trainer_serves_them(
    trainer: dict[str, Any], worker: int, host_network: bool, port: bool
) -> None:
    rendered = pod(job(2, trainer=trainer), worker, hostNetwork=host_network)
    expected = [{"name": "metrics", "containerPort": 9464}] if port else None
    assert rendered["spec"]["containers"][0].get("ports") == expected
    assert ("STOKER_POD_IP" in env(rendered)) is not host_network


def test_a_jobs_own_variables_come_over_the_runtimes() -> None:
    reported = env(pod(job(env={"NCCL_DEBUG": "WARN"}), env={"NCCL_DEBUG": "INFO", "HTTP_PROXY": "p"}))
    assert (reported["NCCL_DEBUG"], reported["HTTP_PROXY"]) == ("WARN", "p")


def test_devices_stand_in_the_limits_and_memory_in_both() -> None:
    resources = pod(job(gpusPerWorker=2, cpu="3", memory="8Gi"), extendedResources={"rdma/hca": 1})["spec"][
        "containers"
    ][0]["resources"]
    assert resources["limits"] == {"memory": "8Gi", "nvidia.com/gpu": "2", "rdma/hca": "1"}
    assert resources["requests"] == {"cpu": "3", **resources["limits"]}


def test_a_slice_is_asked_for_by_its_name_and_the_runtime_adds_no_gpus() -> None:
    slice_ = {"resource": "nvidia.com/mig-1g.10gb"}
    runtime = {"nvidia.com/gpu": 1, "rdma/hca": 1}
    spec = pod(job(gpusPerWorker=1, gpu=slice_, memory="8Gi"), extendedResources=runtime)["spec"]
    limits = spec["containers"][0]["resources"]["limits"]
    assert limits == {"memory": "8Gi", "nvidia.com/mig-1g.10gb": "1", "rdma/hca": "1"}


def test_it_meets_the_restricted_standard_unless_the_runtime_widens_it() -> None:
    spec = pod(job())["spec"]
    assert spec["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "fsGroup": 65532,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    for container in (*spec["initContainers"], *spec["containers"]):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "privileged": False,
            "runAsNonRoot": True,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
    assert (spec["automountServiceAccountToken"], spec["enableServiceLinks"]) == (False, False)
    security = {"addCapabilities": ["IPC_LOCK"], "readOnlyRoot": False, "imageUser": True, "fsGroup": 0}
    wide = pod(job(), security=security)["spec"]
    assert wide["containers"][0]["securityContext"]["capabilities"] == {"add": ["IPC_LOCK"], "drop": ["ALL"]}
    assert wide["containers"][0]["securityContext"]["readOnlyRootFilesystem"] is False
    assert "runAsUser" not in wide["securityContext"] and "fsGroup" not in wide["securityContext"]
    assert wide["initContainers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"]}, "ours needs nothing"


def test_what_an_administrator_gives_by_name() -> None:
    spec = pod(
        job(gpusPerWorker=1),
        nodeSelector={"pool": "h100"},
        tolerations=[{"key": "team", "value": "a", "effect": "NoSchedule"}],
        runtimeClass="nvidia",
        priorityClass="training",
        serviceAccount="trainer",
        pullSecrets=["registry"],
        hostNetwork=True,
        volumes=[{"name": "sets", "source": {"hostPath": {"path": "/sets"}}, "mountPath": "/sets"}],
    )["spec"]
    assert spec["nodeSelector"] == {"pool": "h100"}
    assert spec["tolerations"] == [
        {"key": "team", "operator": "Equal", "value": "a", "effect": "NoSchedule"},
        {"key": "nvidia.com/gpu", "operator": "Exists"},
        {
            "key": "node.kubernetes.io/not-ready",
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": 45,
        },
        {
            "key": "node.kubernetes.io/unreachable",
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": 45,
        },
    ]
    assert (spec["runtimeClassName"], spec["priorityClassName"], spec["serviceAccountName"]) == (
        "nvidia",
        "training",
        "trainer",
    )
    assert spec["imagePullSecrets"] == [{"name": "registry"}]
    assert (spec["hostNetwork"], spec["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
    rendered = pod(job(), volumes=[{"name": "sets", "source": {"hostPath": {"path": "/sets"}}, "mountPath": "/sets"}])
    assert volume(rendered, "/sets") == {"hostPath": {"path": "/sets"}}
    assert "nvidia.com/gpu" not in [toleration.get("key") for toleration in rendered["spec"]["tolerations"]]


def test_jobs_that_share_a_nodes_network_have_ports_of_their_own() -> None:
    other = job(2).model_copy(update={"metadata": job(2).metadata.model_copy(update={"uid": "u-2"})})
    ports = [env(pod(one, worker, hostNetwork=True))["MASTER_PORT"] for one in (job(2), other) for worker in (0, 1)]
    assert ports[0] == ports[1] != ports[2] == ports[3]


def test_its_only_token_is_for_reports() -> None:
    token = {"audience": "stoker", "expirationSeconds": 3600, "path": "token"}
    assert volume(pod(job()), "/var/run/secrets/stoker.dev") == {
        "projected": {"sources": [{"serviceAccountToken": token}]}
    }


def test_the_pod_that_reads_files_is_restricted_and_has_the_claim_read_only() -> None:
    wide = {"security": {"readOnlyRoot": False, "addCapabilities": ["IPC_LOCK"], "seccomp": "Unconfined"}}
    subject = job(checkpoint={"claim": "mine"}).model_copy(
        update={
            "status": TrainingJobStatus.model_validate(
                {
                    "attempt": 2,
                    "attempts": [
                        {"number": number, "endedAt": "2026-01-01T00:00:00Z", "workers": [{"worker": 0, "node": node}]}
                        for number, node in ((1, "old"), (2, "last"))
                    ],
                }
            )
        }
    )
    runtime = TrainingRuntimeSpec.model_validate({"nodeSelector": {"pool": "gpu"}, "hostNetwork": True, **wide})
    rendered = render_reader(subject, "mine", runtime, SETTINGS).dump()
    spec = rendered["spec"]
    (container,) = spec["containers"]
    assert rendered["metadata"]["name"] == "net-files" and rendered["metadata"]["ownerReferences"][0]["controller"]
    assert rendered["metadata"]["labels"] == {"stoker.dev/files-of": "net"}, "no gang's Service finds it"
    assert container["image"] == SETTINGS.control_image and "nvidia.com/gpu" not in str(container["resources"])
    claim = next(one for one in spec["volumes"] if "persistentVolumeClaim" in one)
    assert claim["persistentVolumeClaim"] == {"claimName": "mine", "readOnly": True}
    mount = next(one for one in container["volumeMounts"] if one["name"] == claim["name"])
    assert (mount["mountPath"], mount["readOnly"]) == ("/checkpoints", True)
    security = container["securityContext"]
    assert security["readOnlyRootFilesystem"] and security["runAsNonRoot"] and not security["allowPrivilegeEscalation"]
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert "hostNetwork" not in spec and not spec["automountServiceAccountToken"] and spec["restartPolicy"] == "Never"
    (preferred,) = spec["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert preferred["preference"]["matchFields"][0]["values"] == ["last"]
    assert env(rendered)["STOKER_OUTPUT_DIR"] == "/checkpoints/u-1/output"
