"""The table of rules: a spec that breaks each, one that keeps it, and what is said of the first."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from stoker.spec.job import JOBS
from stoker.spec.meta import Kind
from stoker.spec.queue import QUEUES
from stoker.spec.runtime import RUNTIMES

RUN: dict[str, Any] = {"command": ["true"]}
IC: dict[str, Any] = {"recipe": "image-classification"}
COMMAND: dict[str, Any] = {"trainer": RUN}
RECIPE: dict[str, Any] = {"trainer": IC}
LABEL = "lower-case letters, digits and '-'"
OBJECT = "must be the name of a Kubernetes object"
IMAGE = "must be an image reference"
NO_QUANTITY = "is no quantity; write for example '2', '500m', '16Gi' or '40G'"
NO_DURATION = "is no duration; write for example '90s', '10m', '1h30m' or '2d'"
MOUNT = "must be an absolute path without '.', '..', ':' or a '/' too many"
DATA = {"name": "d", "claim": "c"}
ONE_SOURCE = "give exactly one of claim, path and url"
URL = {"name": "d", "url": "https://a.example/b.tar.gz"}
DIGEST = {"digest": f"sha256:{'0' * 64}"}
CODE = {"code": f"sha256:{'0' * 64}"}
VOLUME = {"name": "v", "source": {"emptyDir": {}}, "mountPath": "/cache"}


@dataclass(frozen=True)
class Case:
    """`bad` is refused with `says` by models and API server, `good` taken by both. Both are specs."""

    kind: Kind[Any]
    bad: dict[str, Any]
    good: dict[str, Any]
    says: str
    name: str = "a"
    model_says: str = field(default="", kw_only=True)
    """Where Pydantic has its own words for a bound that the API server words otherwise."""

    def __str__(self) -> str:
        return f"{self.kind}: {self.says[:60]} {self.bad if self.name == 'a' else self.name}"[:110]


def job(bad: dict[str, Any], good: dict[str, Any], says: str, base: dict[str, Any] = COMMAND, **more: str) -> Case:
    return Case(JOBS, base | bad, base | good, says, **more)


def runtime(bad: dict[str, Any], good: dict[str, Any], says: str, **more: str) -> Case:
    return Case(RUNTIMES, bad, good, says, **more)


def queue(bad: dict[str, Any], good: dict[str, Any], says: str, **more: str) -> Case:
    return Case(QUEUES, bad, good, says, **more)


def trainer(bad: dict[str, Any], good: dict[str, Any], says: str, **more: str) -> Case:
    return Case(JOBS, {"trainer": bad}, {"trainer": good}, says, **more)


CASES = [
    # names
    Case(JOBS, COMMAND, COMMAND, "must be 1 to 50 characters", name="x" * 51, model_says="at most 50 characters"),
    Case(JOBS, COMMAND, COMMAND, "must be 1 to 50 characters", name="1-job"),
    Case(QUEUES, {}, {}, "must be 1 to 63 characters", name="1-queue"),
    Case(RUNTIMES, {}, {}, "must be 1 to 63 characters", name="a.b"),
    job({"queue": "Team-A"}, {"queue": "team-a"}, LABEL),
    job({"queue": "q" * 64}, {"queue": "q" * 63}, "63", model_says="at most 63 characters"),
    job({"runtime": "-x"}, {"runtime": "x"}, LABEL),
    queue({"projects": ["a_b"]}, {"projects": ["a-b"]}, LABEL),
    queue({"projects": ["a", "a"]}, {"projects": ["a", "b"]}, "Duplicate value", model_says="a stands here twice"),
    # shape
    job({"gpusPerWorkr": 1}, {"gpusPerWorker": 1}, "gpusPerWorkr", model_says="not permitted"),
    Case(JOBS, {}, COMMAND, "Required value", model_says="Field required"),
    job({"workers": "many"}, {"workers": 2}, "must be of type integer", model_says="valid integer"),
    # numbers
    job({"workers": 0}, {"workers": 1}, "greater than or equal to 1"),
    job({"workers": 4097}, {"workers": 4096}, "less than or equal to 4096"),
    job({"gpusPerWorker": -1}, {"gpusPerWorker": 0}, "greater than or equal to 0"),
    job({"gpusPerWorker": 65}, {"gpusPerWorker": 64}, "less than or equal to 64"),
    job({"priority": 1_000_001}, {"priority": 1_000_000}, "less than or equal to 1000000"),
    job({"priority": -1_000_001}, {"priority": -1_000_000}, "greater than or equal to -1000000"),
    job({"checkpoint": {"keep": 0}}, {"checkpoint": {"keep": 1}}, "greater than or equal to 1"),
    job({"retryGeneration": -1}, {"retryGeneration": 1}, "greater than or equal to 0"),
    job({"stop": {"maxSteps": 0}}, {"stop": {"maxSteps": 1}}, "greater than or equal to 1", RECIPE),
    job(
        {"stop": {"target": {"value": 0}}},
        {"stop": {"target": {"value": 0.5}}},
        "of accuracy and loss the value must be greater than 0",
        RECIPE,
    ),
    job(
        {"stop": {"target": {"value": 97}}},
        {"stop": {"target": {"metric": "loss", "value": 97, "mode": "min"}}},
        "accuracy is a share: at most 1",
        RECIPE,
    ),
    job(
        {"stop": {"patience": {"evaluations": 0}}},
        {"stop": {"patience": {"evaluations": 3, "metric": "accuracy"}}},
        "greater than or equal to 1",
        RECIPE,
    ),
    queue({"limit": {"gpus": -1}}, {"limit": {"gpus": 0}}, "greater than or equal to 0"),
    queue({"limit": {"gpuTypes": {"H100": 1}}}, {"limit": {"gpuTypes": {"h100": 1}}}, "must be a type of GPU"),
    queue(
        {"limit": {"gpuTypes": {"gpus": 1}}},
        {"limit": {"gpuTypes": {"h100": 1}}},
        "is no type of GPU: cpu, gpus, memory, unknown mean something else",
    ),
    queue({"guarantee": {"gpuTypes": {64 * "a": 1}}}, {"guarantee": {"gpuTypes": {63 * "a": 1}}}, "63 characters"),
    queue({"reservationBudget": -0.5}, {"reservationBudget": 0.5}, "greater than or equal to 0"),
    queue({"highestPriority": 2_000_000}, {"highestPriority": 2}, "less than or equal to 1000000"),
    queue({"parent": "default"}, {"parent": "top"}, "'default' can't be a parent"),
    queue({"weight": 0}, {"weight": 2}, "greater than or equal to 1"),
    runtime(
        {"extendedResources": {"rdma/hca": 0}}, {"extendedResources": {"rdma/hca": 1}}, "greater than or equal to 1"
    ),
    runtime({"security": {"runAsUser": 0}}, {"security": {"runAsUser": 1}}, "greater than or equal to 1"),
    # quantities and durations
    job({"memory": "16 gigs"}, {"memory": "16Gi"}, NO_QUANTITY),
    job({"cpu": ""}, {"cpu": "500m"}, NO_QUANTITY),
    job({"cpu": -1}, {"cpu": 1}, "greater than or equal to 0", model_says="is no quantity"),
    job({"sharedMemory": "much"}, {"sharedMemory": "4Gi"}, NO_QUANTITY),
    queue({"defaults": {"perGpu": {"cpu": "x"}}}, {"defaults": {"perGpu": {"cpu": 8}}}, NO_QUANTITY),
    runtime({"defaults": {"withoutGpus": {"memory": "x"}}}, {"defaults": {"perGpu": {"memory": "64Gi"}}}, NO_QUANTITY),
    job({"memory": "9223372036854775807"}, {"memory": "9223372036854775806"}, "is larger than any machine"),
    job({"memory": "16Ei"}, {"memory": "7Ei"}, "is larger than any machine"),
    queue({"limit": {"memory": "1K"}}, {"limit": {"memory": "1k"}}, NO_QUANTITY),
    job({"checkpoint": {"every": "soon"}}, {"checkpoint": {"every": "1h30m"}}, NO_DURATION),
    job({"checkpoint": {"grace": "0s"}}, {"checkpoint": {"grace": "0.5s"}}, "a duration must be longer than zero"),
    job({"ttlAfterFinished": "1w"}, {"ttlAfterFinished": "7d"}, NO_DURATION),
    job({"stop": {"maxDuration": "5"}}, {"stop": {"maxDuration": "250ms"}}, NO_DURATION),
    job({"stall": {"after": "0s"}}, {"stall": {"after": "90s"}}, "a duration must be longer than zero"),
    job({"ttlAfterFinished": "3651d"}, {"ttlAfterFinished": "87600h"}, "a duration can't be longer than 10 years"),
    job({"idle": {"after": "9999d"}}, {"idle": {"after": "3650d"}}, "a duration can't be longer than 10 years"),
    job({"stall": {"for": "1h"}}, {"stall": {}}, "unknown field", model_says="Extra inputs are not permitted"),
    *(
        job({"idle": {"after": short}}, {"idle": {"after": long}}, "must be a minute at least")
        for short, long in {"59s": "60s", "0m": "1m", "30": "1h30m", "0.5h": "2d", "1m1h": "90.5s"}.items()
    ),
    job({"idle": {"action": "Kill"}}, {"idle": {"action": "Suspend"}}, "Unsupported value", model_says="Notify"),
    # what runs
    trainer({}, RUN, "give either recipe (with config) or command (with workingDir)"),
    trainer(RUN | IC, IC, "give either recipe (with config) or command (with workingDir)"),
    trainer(IC | {"image": "a"}, RUN | {"image": "a"}, "workingDir, image and code belong to command"),
    trainer(IC | {"workingDir": "/"}, RUN | {"workingDir": "/"}, "workingDir, image and code belong to command"),
    trainer(IC | CODE, RUN | CODE, "workingDir, image and code belong to command; a recipe has its own"),
    trainer(RUN | {"code": "sha256:a"}, RUN | CODE, "must be the digest of a code bundle: sha256: and 64 hex digits"),
    trainer(RUN | CODE | {"workingDir": "/a"}, RUN | CODE | {"workingDir": "a/b"}, "must be a path within it"),
    trainer(RUN | {"pythonPath": ["src"]}, RUN | CODE | {"pythonPath": ["src", "."]}, "pythonPath goes with code"),
    *(
        trainer(RUN | CODE | {"pythonPath": [path]}, RUN | CODE | {"pythonPath": ["a.."]}, "folders within the code")
        for path in ("/src", "a/..", "a:b")
    ),
    trainer(RUN | {"requirements": "uv.lock"}, RUN | CODE | {"requirements": "a/uv.lock"}, "names a file of the code"),
    *(
        trainer(RUN | CODE | {"requirements": path}, RUN | CODE | {"requirements": "a/dev.txt"}, "must be the path of")
        for path in ("/uv.lock", "../uv.lock", "a/../b.txt", "setup.py", ".txt", "a b.txt")
    ),
    trainer(RUN | CODE | {"workingDir": "a/.."}, RUN | CODE | {"workingDir": "a.."}, "with code, workingDir must be a"),
    trainer({"recipe": "gpt-9"}, IC, "there is: bert, gpt, image-classification, lstm"),
    trainer(RUN | {"config": {"epochs": 1}}, IC | {"config": {"epochs": 1}}, "config belongs to recipe"),
    trainer({"command": []}, RUN, "command must name a program"),
    trainer({"command": [""]}, RUN, "command must name a program"),
    trainer(RUN | {"image": "a b"}, RUN | {"image": "r.example/t/train:1.2"}, IMAGE),
    job({"precision": "bf16"}, {"precision": "auto"}, "precision works with a recipe; with a command only the program"),
    job({"precision": "int3"}, {"precision": "bf16"}, "Unsupported value", RECIPE, model_says="'auto', 'fp32'"),
    job({"stop": {"maxSteps": 3}}, {"stop": {}}, "stop.maxSteps works with a recipe"),
    job(
        {"workers": 2, "stop": {"target": {"value": 0.9}}},
        {"workers": 1, "stop": {"target": {"value": 0.9}}},
        "stop.target of a command works with one worker",
    ),
    job(
        {"elastic": {"min": 1, "max": 2}, "stop": {"target": {"value": 0.9}}},
        {"elastic": {"min": 1, "max": 1}, "stop": {"target": {"value": 0.9}}},
        "stop.target of a command works with one worker",
    ),
    job(
        {"stop": {"target": {"metric": "reward", "value": -110}}},
        {"stop": {"target": {"metric": "reward", "value": -110, "mode": "max"}}},
        "only accuracy and loss have a mode by themselves",
    ),
    job(
        {"stop": {"target": {"metric": "f1", "value": 0.9, "mode": "max"}}},
        {"stop": {"target": {"metric": "loss", "value": 0.9, "mode": "min"}}},
        "metric is accuracy or loss",
        RECIPE,
    ),
    job({"stop": {"patience": {"evaluations": 3}}}, {"stop": {}}, "stop.patience works with a recipe"),
    job(
        {"stop": {"exitZeroAfterSignal": "Stopped"}},
        {"stop": {"exitZeroAfterSignal": "Succeeded"}},
        "stop.exitZeroAfterSignal: Stopped is for a command",
        RECIPE,
    ),
    # env
    job(
        {"gpusPerWorker": 1, "gpu": {"minComputeCapability": "8.10"}},
        {"gpusPerWorker": 1, "gpu": {"minComputeCapability": "8.9"}},
        "is no compute capability",
    ),
    job(
        {"gpusPerWorker": 1, "gpu": {"minComputeCapability": "sm_90"}},
        {"gpusPerWorker": 1, "gpu": {"minComputeCapability": "9.0"}},
        "is no compute capability",
    ),
    job(
        {"gpusPerWorker": 0, "gpu": {"maxPower": 400}},
        {"gpusPerWorker": 1, "gpu": {"maxPower": 400}},
        "gpu says which GPUs, but gpusPerWorker is 0",
    ),
    *(
        job(
            {"gpusPerWorker": 1, "gpu": {"resource": name}},
            {"gpusPerWorker": 1, "gpu": {"resource": "nvidia.com/mig-1g.10gb"}},
            "must be what a device plug-in calls GPUs",
        )
        for name in [
            *("", "cpu", "memory", "ephemeral-storage", "hugepages-2Mi", "pods", "rdma/hca", "amd.com/gpu", "gpu"),
            *("nvidia.com/hostdev", "nvidia.com/GA102GL_A10", "nvidia.com/gpu.product", "requests.nvidia.com/gpu"),
            *("nvidia.com/mig-1g.10gb/x", "nvidia.com/MIG-1g.10gb", "nvidia.com/gpu\n", " nvidia.com/gpu"),
        ]
    ),
    job(
        {"gpu": {"resource": "nvidia.com/gpu.shared"}},
        {"gpu": {"resource": "nvidia.com/gpu"}},
        "gpu says which GPUs, but gpusPerWorker is 0",
    ),
    job(
        {"gpusPerWorker": 2, "gpu": {"resource": "nvidia.com/gpu.shared"}},
        {"gpusPerWorker": 1, "gpu": {"resource": "nvidia.com/gpu.shared"}},
        "gpu.resource names parts of GPUs, of which a job has one",
    ),
    job({"topology": {"required": "a rack"}}, {"topology": {"required": "x/rack"}}, "must be the key of a node label"),
    job({"trainer": IC | {"initFrom": {}}}, {"trainer": IC | {"initFrom": {"job": "a"}}}, "give either job"),
    job(
        {"trainer": IC | {"initFrom": {"job": "a", "path": "/x"}}},
        {"trainer": IC | {"initFrom": {"path": "/x", "partly": True}}},
        "give either job",
    ),
    job(
        {"trainer": IC | {"initFrom": {"path": "x.pt"}}},
        {"trainer": IC | {"initFrom": {"path": "/x.pt"}}},
        "must be an absolute path",
    ),
    job(
        {"trainer": IC | {"initFrom": {"path": "/x", "weights": "best"}}},
        {"trainer": IC | {"initFrom": {"job": "a", "weights": "best"}}},
        "weights belongs to job",
    ),
    job(
        {"trainer": RUN | {"initFrom": {"job": "a"}}},
        {"trainer": IC | {"initFrom": {"job": "a"}}},
        "initFrom belongs to recipe",
    ),
    job(
        {"checkpoint": {"from": {}}},
        {"checkpoint": {"from": {"job": "a"}}},
        "Required value",
        model_says="Field required",
    ),
    job({"checkpoint": {"from": {"job": "A"}}}, {"checkpoint": {"from": {"job": "a", "step": 0}}}, LABEL),
    job(
        {"checkpoint": {"from": {"job": "a"}}, "trainer": IC | {"initFrom": {"path": "/x"}}},
        {"checkpoint": {"from": {"job": "a"}}, "trainer": IC},
        "brings its own weights",
    ),
    job({"env": {"1X": ""}}, {"env": {"X1": ""}}, "an environment variable's name is letters, digits and '_'"),
    job({"env": {"RANK": "0"}}, {"env": {"RANKS": "0"}}, "is set by Stoker; choose another name"),
    job({"env": {"STOKER_X": "0"}}, {"env": {"STOKER_TRACE_FILE": "t"}}, "is set by Stoker; choose another name"),
    job({"env": {"PET_X": "0"}}, {"env": {"PETS": "0"}}, "is set by Stoker; choose another name"),
    job({"env": {"X" * 257: ""}}, {"env": {"X" * 256: ""}}, "256 characters", model_says="at most 256 characters"),
    job({"env": {"X": 1}}, {"env": {"X": "1"}}, "must be of type string", model_says="valid string"),
    runtime({"env": {"MASTER_PORT": "1"}}, {"env": {"NCCL_DEBUG": "INFO"}}, "is set by Stoker; choose another name"),
    # GPUs
    job(
        {"gpu": {"models": ["H100"]}},
        {"gpu": {"models": ["H100"]}, "gpusPerWorker": 1},
        "gpu says which GPUs, but gpusPerWorker is 0; ask for at least one or leave gpu out",
    ),
    job({"gpu": {"minMemory": 1}}, {"gpu": {}}, "gpu says which GPUs, but gpusPerWorker is 0"),
    # workers
    job(
        {"workers": 5, "elastic": {"min": 2, "max": 4}},
        {"workers": 3, "elastic": {"min": 2, "max": 4}},
        "workers must be from elastic.min to elastic.max",
    ),
    job({"elastic": {"min": 2, "max": 4}}, {"elastic": {"min": 1, "max": 4}}, "workers must be from elastic.min"),
    # data
    job({"data": [DATA, DATA]}, {"data": [DATA]}, "Duplicate value", model_says="data have the same name"),
    job(
        {"data": [DATA, DATA | {"name": "e", "mountPath": "/data/d"}]},
        {"data": [DATA, DATA | {"name": "e"}]},
        "two entries of data have the same mountPath",
    ),
    job({"data": [DATA | {"mountPath": "x"}]}, {"data": [DATA | {"mountPath": "/x"}]}, MOUNT),
    job({"data": [DATA | {"mountPath": "/x/../y"}]}, {"data": [DATA | {"mountPath": "/x/y"}]}, MOUNT),
    job({"data": [DATA | {"mountPath": "/x:ro"}]}, {"data": [DATA | {"mountPath": "/x/y"}]}, MOUNT),
    job({"data": [DATA | {"mountPath": "/tmp/x"}]}, {"data": [DATA | {"mountPath": "/tmpx"}]}, "a worker's own place"),
    job({"data": [DATA | {"mountPath": "/var"}]}, {"data": [DATA | {"mountPath": "/var/x"}]}, "a worker's own place"),
    job({"data": [DATA | {"subPath": "../x"}]}, {"data": [DATA | {"subPath": "x/y"}]}, "a path within the volume"),
    job({"data": [DATA | {"claim": "A"}]}, {"data": [DATA | {"claim": "a.b"}]}, OBJECT),
    job({"data": [DATA | {"path": "b"}]}, {"data": [{"name": "d", "path": "b"}]}, ONE_SOURCE),
    job({"data": [{"name": "d"}]}, {"data": [{"name": "d", "path": "/b c/ü"}]}, ONE_SOURCE),
    job({"data": [{"name": "d", "path": "B"}]}, {"data": [{"name": "d", "path": "/B"}]}, "must be an absolute path"),
    job({"data": [{"name": "d", "path": "/a\n"}]}, {"data": [{"name": "d", "path": "/"}]}, "must be an absolute path"),
    job({"data": [DATA | URL]}, {"data": [URL | DIGEST | {"unpack": True}]}, ONE_SOURCE),
    *(
        job({"data": [URL | {"url": bad}]}, {"data": [URL | {"url": good}]}, "must begin with https://")
        for bad, good in (
            ("file:///etc/passwd", "s3://bucket/x"),
            ("https://u:p@a.example/x", "https://a.example:8080/x?sig=/"),
            ("https://a.example/", "hf://datasets/a/b/"),
            ("simplecache::https://a.example/x", "gs://a/x::y"),
            ("https://a.example/x y", "http://a.example/x"),
        )
    ),
    job({"data": [URL | {"digest": "sha256:0"}]}, {"data": [URL | DIGEST]}, "must be sha256: and 64 hex digits"),
    job({"data": [URL | {"subPath": "x"}]}, {"data": [DATA | {"subPath": "x"}]}, "digest and unpack belong to url"),
    job({"data": [DATA | {"unpack": True}]}, {"data": [URL | {"unpack": True}]}, "digest and unpack belong to url"),
    job({"data": [URL | {"readOnly": False}]}, {"data": [URL]}, "digest and unpack belong to url"),
    job({"data": [URL | {"url": "https://a/b/"}]}, {"data": [URL | {"url": "s3://a/b/"}]}, "is a folder, of s3"),
    job(
        {"data": [URL | DIGEST | {"url": "s3://a/b/"}]},
        {"data": [URL | {"url": "s3://a/" + "b/"}]},
        "is a folder, of s3",
    ),
    job(
        {"data": [URL | {"url": "https://a/b.txt?x=.zip", "unpack": True}]},
        {"data": [URL | {"url": "https://a/b.zip?x=/", "unpack": True}]},
        "unpack needs a url whose path ends in",
    ),
    job(
        {"trainer": {"command": ["x"], "leftOut": [{"path": "a/", "by": "b:1"}]}},
        {"trainer": {"command": ["x"], "leftOut": [{"path": "a/", "by": "b:1"}]} | CODE},
        "leftOut belongs to code",
    ),
    # secrets
    job(
        {"env": {"A": "x"}, "secretEnv": {"A": {"secret": "s"}}},
        {"env": {"B": "x"}, "secretEnv": {"A": {"secret": "s"}}},
        "stands in env and in secretEnv",
    ),
    job({"secretEnv": {"RANK": {"secret": "s"}}}, {"secretEnv": {"R": {"secret": "s"}}}, "is set by Stoker"),
    job(
        {"secretEnv": {"A": {"secret": "S"}}},
        {"secretEnv": {"A": {"secret": "s-1", "key": "K.k"}}},
        "1 to 63 characters",
    ),
    job({"secretEnv": {"A": {"secret": "s", "key": ".."}}}, {"secretEnv": {}}, "must be a key of a secret"),
    # retries
    *(
        job(
            {"retry": {"rules": [{"categories": ["Killed", category], "limit": 3}]}},
            {"retry": {"rules": [{"categories": ["Killed"], "limit": 3}]}},
            f"{category} can't be given retries: ",
        )
        for category in (
            "BadConfig",
            "Diverged",
            "Rejected",
            "SecretMissing",
            "StartTimeout",
            "Interrupted",
            "MaxDuration",
        )
    ),
    job(
        {"retry": {"rules": [{"categories": ["Bad"], "limit": 3}]}},
        {"retry": {"rules": [{"categories": ["NodeLost"], "limit": 3, "backoff": "5s"}]}},
        "Unsupported value",
        model_says="'UserError'",
    ),
    job(
        {"retry": {"rules": [{"categories": [], "limit": 3}]}},
        {"retry": {}},
        "at least 1 items",
        model_says="at least 1 item",
    ),
    # runtimes
    runtime({"checkpoints": {}}, {"checkpoints": {"claim": "c"}}, "give either claim or template"),
    runtime(
        {"checkpoints": {"claim": "c", "template": {"size": "1Gi"}}},
        {"checkpoints": {"template": {"size": "1Gi"}}},
        "give either claim or template",
    ),
    runtime({"cache": {}}, {"cache": {"claim": "c"}}, "give either claim or hostPath"),
    runtime(
        {"cache": {"claim": "c", "hostPath": "/a"}},
        {"cache": {"hostPath": "/mnt/a.b", "limit": "1Ti"}},
        "give either claim or hostPath",
    ),
    *(
        runtime({"cache": {"hostPath": bad}}, {"cache": {"hostPath": "/mnt/x"}}, "must be an absolute path of letters")
        for bad in ("mnt", "/", "/mnt/../etc", "/mnt/", "/a\n")
    ),
    runtime({"cache": {"hostPath": "/a", "limit": "x"}}, {"cache": {"hostPath": "/a"}}, NO_QUANTITY),
    runtime({"tolerations": [{}]}, {"tolerations": [{"operator": "Exists"}]}, "a toleration without a key"),
    runtime(
        {"tolerations": [{"key": "a", "operator": "Exists", "value": "x"}]},
        {"tolerations": [{"key": "a", "value": "x"}]},
        "a toleration with operator Exists has no value",
    ),
    runtime(
        {"tolerations": [{"key": "a", "tolerationSeconds": 1}]},
        {"tolerations": [{"key": "a", "effect": "NoExecute", "tolerationSeconds": 1}]},
        "tolerationSeconds belongs to effect NoExecute",
    ),
    runtime({"nodeSelector": {"": "x"}}, {"nodeSelector": {"x": ""}}, "a key is empty", model_says="at least 1 char"),
    runtime(
        {"nodeSelector": {"x" * 317: ""}},
        {"nodeSelector": {"x" * 316: ""}},
        "more than 316",
        model_says="at most 316",
    ),
    runtime(
        {"security": {"addCapabilities": ["CAP sys"]}},
        {"security": {"addCapabilities": ["IPC_LOCK", "SYS_PTRACE"]}},
        "must be a Linux capability",
    ),
    runtime({"volumes": [VOLUME, VOLUME]}, {"volumes": [VOLUME]}, "Duplicate value", model_says="the same name"),
]
